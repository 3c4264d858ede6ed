#include "store/page_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/chunks.h"
#include "store/io_hooks.h"
#include "store/page_store.h"

namespace poet::store {
namespace {

constexpr int kMostAttempts = 5;
constexpr int kNoProgress = -1;                      // beside errno's numbers
constexpr std::chrono::milliseconds kFirstPause{1};  // doubles at each attempt

constexpr const char* kWhatToPass = " Pass page_dir= a directory on a disk that you can write to.";

// The descriptor of a new file without a name, or -1 with errno.
int openUnnamed(const std::string& directory) {
  // O_EXCL: nobody can give it a name later.
  const int fd =
      ::open(directory.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, S_IRUSR | S_IWUSR);
  // EISDIR: a kernel without O_TMPFILE; EOPNOTSUPP, EINVAL: a file system without it.
  if (fd >= 0 || (errno != EISDIR && errno != EOPNOTSUPP && errno != EINVAL)) return fd;
  std::string name = directory + "/poet-page-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named >= 0) ::unlink(name.c_str());
  return named;
}

void checkDirectory(const std::string& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    const int error = errno;
    throw ArgumentError(
        error == ENOENT ? detail::message("page_dir: the directory '", directory,
                                          "' does not exist. Create it, or pass another directory.")
                        : detail::message("page_dir: cannot look at the directory '", directory,
                                          "': ", std::strerror(error), ".", kWhatToPass));
  }
  POET_CHECK(S_ISDIR(status.st_mode), "page_dir: '", directory, "' is not a directory.",
             kWhatToPass);
}

// A write that ends there is cut short without an error.
int64_t mostBytesOfAFile() {
  rlimit limit{};
  const bool is_limited = ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return is_limited ? static_cast<int64_t>(limit.rlim_cur) : INT64_MAX;
}

// The name of a file system that lies in RAM, or null.
const char* nameOfRamFileSystem(int fd) {
  struct statfs status {};
  if (::fstatfs(fd, &status) != 0) return nullptr;
  switch (static_cast<uint32_t>(status.f_type)) {
    case TMPFS_MAGIC:
      return "tmpfs";
    case RAMFS_MAGIC:
      return "ramfs";
    case HUGETLBFS_MAGIC:
      return "hugetlbfs";
    default:
      return nullptr;
  }
}

std::string whatToDoAbout(int error) {
  if (error == EFBIG)
    return "A limit on the size of files (RLIMIT_FSIZE, `ulimit -f`) is in force; raise it.";
  if (error == EBADF) return "Something in this process has closed poet's file.";
  return "The disk may be failing; pass page_dir= a directory on another one.";
}

}  // namespace

// Goes on after EINTR, and a few times after an I/O error, with pauses that grow.
class PageFile::Attempts {
 public:
  explicit Attempts(int64_t* retries) : retries_(retries) {}

  bool goesOnAfter(int error) {
    if (error == EINTR) return true;
    if ((error != EIO && error != EAGAIN) || ++failures_ >= kMostAttempts) return false;
    std::this_thread::sleep_for(kFirstPause * (1 << (failures_ - 1)));
    return true;
  }
  // Fewer bytes than were asked for. Without a whole block that counts as a failure.
  bool goesOnAfterShort(int64_t blocks) {
    if (blocks == 0) return goesOnAfter(EIO);
    ++short_;
    return true;
  }
  void succeeded() { *retries_ += failures_ > 0 || short_ > 0; }

 private:
  int64_t* retries_;
  int failures_ = 0;
  int short_ = 0;
};

PageFile::PageFile(const std::string& directory, bool direct) : directory_(directory) {
  checkDirectory(directory);
  fd_ = openUnnamed(directory);
  POET_CHECK(fd_ >= 0, "page_dir: cannot create a file in '", directory,
             "': ", std::strerror(errno), ".", kWhatToPass);
  if (const char* ram = nameOfRamFileSystem(fd_)) {
    ::close(std::exchange(fd_, -1));
    throw ArgumentError(detail::message("page_dir: '", directory, "' is a ", ram,
                                        ", which lies in RAM: paging there frees no memory.",
                                        kWhatToPass));
  }
  direct_ = direct && ::fcntl(fd_, F_SETFL, O_RDWR | O_DIRECT) == 0;
  if (!direct_) useCache();
}

PageFile::~PageFile() {
  if (fd_ >= 0) ::close(fd_);
}

void PageFile::growTo(int64_t bytes) {
  if (bytes <= bytes_) return;
  try {
    allocate(bytes);
  } catch (...) {
    // A part may have been allocated. The file's own length is what counts as ours.
    if (::ftruncate(fd_, bytes_) != 0) { /* the space stays taken until the file is closed */
    }
    throw;
  }
  bytes_ = bytes;
}

void PageFile::allocate(int64_t bytes) {
  struct rlimit limit {};
  // Growing past the limit would end the process with SIGXFSZ where that is not ignored.
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      static_cast<uint64_t>(bytes) > limit.rlim_cur) {
    throw StoreError(detail::message("poet: the page file in '", directory_, "' cannot grow from ",
                                     bytes_, " to ", bytes,
                                     " bytes: the limit on the size of files is ", limit.rlim_cur,
                                     " bytes (RLIMIT_FSIZE). Raise it (ulimit -f)."));
  }
  const std::string free = freeSpace();  // a failed attempt holds what it got
  int error = 0;
  do {
    error = allocateAt(fd_, bytes_, bytes - bytes_) == 0 ? 0 : errno;
  } while (error == EINTR);
  if (error == EOPNOTSUPP || error == ENOSYS) return fillWithZeros(bytes_, bytes);
  if (error == 0) return;
  throw StoreError(detail::message(
      "poet: the page file in '", directory_, "' cannot grow from ", bytes_, " to ", bytes,
      " bytes: ", std::strerror(error), ". ", bytes - bytes_, " bytes more are wanted, ", free,
      " are free. Make room there, or pass page_dir= a directory on another disk."));
}

void PageFile::fillWithZeros(int64_t from, int64_t to) {
  const AlignedBuffer zeros(std::min(to - from, kLargestChunkBytes));
  std::memset(zeros.data(), 0, static_cast<size_t>(zeros.bytes()));
  for (int64_t at = from; at < to; at += zeros.bytes()) {
    write(zeros.data(), std::min(zeros.bytes(), to - at), at);
  }
}

IoRequest PageFile::request(Transfer kind, std::byte* data, int64_t bytes, int64_t offset) const {
  IoRequest request;
  request.kind = kind;
  request.fd = fd_;
  request.direct = direct_;
  request.data = data;
  request.bytes = bytes;
  request.offset = offset;
  return request;
}

int PageFile::finish(IoRequest request) {
  Attempts attempts(&retries_);
  for (;;) {
    const int error = request.answer < 0 ? static_cast<int>(-request.answer) : 0;
    if (error == EINVAL && request.direct) {
      if (direct_) useCache();
      request.direct = false;
    } else {
      const int64_t whole = error == 0 ? request.answer / kBlockBytes * kBlockBytes : 0;
      if (error == 0 && whole == request.bytes) break;
      const bool goes_on =
          error != 0 ? attempts.goesOnAfter(error) : attempts.goesOnAfterShort(whole);
      if (!goes_on) return error != 0 ? error : kNoProgress;
      request.data += whole;
      request.bytes -= whole;
      request.offset += whole;
    }
    request.fault = drawFault(request.kind);
    request.answer = carryOut(request);
  }
  attempts.succeeded();
  return 0;
}

void PageFile::write(std::byte* data, int64_t bytes, int64_t offset) {
  IoRequest whole = request(Transfer::kWrite, data, bytes, offset);
  whole.fault = drawFault(whole.kind);
  whole.answer = carryOut(whole);
  finishWrite(whole);
}

void PageFile::finishWrite(const IoRequest& request) {
  int error = finish(request);
  if (error == 0) return;
  const int64_t end = request.offset + request.bytes;
  if (error == kNoProgress && end > mostBytesOfAFile()) error = EFBIG;
  const bool full = error == ENOSPC || error == EDQUOT;
  throw StoreError(detail::message(
      "poet: cannot write ", request.bytes, " bytes to the page file in '", directory_,
      "' at offset ", request.offset, ": ",
      error == kNoProgress ? "the disk takes no bytes" : std::strerror(error), ". ",
      full ? freeSpace() +
                 " are free. Make room there, or pass page_dir= a directory on another disk."
           : whatToDoAbout(error)));
}

std::optional<std::string> PageFile::read(std::byte* data, int64_t bytes, int64_t offset) {
  IoRequest whole = request(Transfer::kRead, data, bytes, offset);
  whole.fault = drawFault(whole.kind);
  whole.answer = carryOut(whole);
  return finishRead(whole);
}

std::optional<std::string> PageFile::finishRead(const IoRequest& request) {
  const int error = finish(request);
  if (error == 0) return std::nullopt;
  return error == kNoProgress ? "the file ends too early" : std::string(std::strerror(error));
}

void PageFile::useCache() {
  ::fcntl(fd_, F_SETFL, O_RDWR);
  ::posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM);  // nothing is read ahead
  direct_ = false;
}

std::string PageFile::freeSpace() const {
  struct statvfs status {};
  if (::fstatvfs(fd_, &status) != 0) return "an unknown number of bytes";
  return detail::message(static_cast<uint64_t>(status.f_bavail) * status.f_frsize, " bytes");
}

double PageFile::cachedShare() const {
  if (bytes_ == 0) return 0;
  const auto length = static_cast<size_t>(bytes_);
  void* const mapped = ::mmap(nullptr, length, PROT_READ, MAP_SHARED, fd_, 0);
  POET_INTERNAL_ASSERT(mapped != MAP_FAILED, "mmap of the page file: ", std::strerror(errno));
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> resident((length + page - 1) / page);
  const int error = ::mincore(mapped, length, resident.data()) == 0 ? 0 : errno;
  ::munmap(mapped, length);
  POET_INTERNAL_ASSERT(error == 0, "mincore of the page file: ", std::strerror(error));
  const auto cached = std::count_if(resident.begin(), resident.end(),
                                    [](unsigned char flags) { return (flags & 1) != 0; });
  return static_cast<double>(cached) / static_cast<double>(resident.size());
}

}  // namespace poet::store
