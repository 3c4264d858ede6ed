#include "graph/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "graph/error.h"

namespace poet {
namespace {

[[noreturn]] void fail(std::string_view what, const std::string& path, int error) {
  throw Error(detail::message("poet: cannot ", what, " '", path, "': ", std::strerror(error)));
}

// An open file descriptor.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  // 0 or errno. Some file systems report a failed write only here.
  int close() { return ::close(std::exchange(fd_, -1)) == 0 ? 0 : errno; }

 private:
  int fd_;
};

// Removes the temporary file unless it has been renamed.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!renamed_) ::unlink(path_.c_str());
  }

  int renameTo(const std::string& target) {
    renamed_ = std::rename(path_.c_str(), target.c_str()) == 0;
    return renamed_ ? 0 : errno;
  }

 private:
  std::string path_;
  bool renamed_ = false;
};

int writeAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return 0;
}

// A new file beside `target`, with the permissions that the process gives to new files (mkstemp's
// are the owner's alone, and asking for the umask means to set it, for all threads).
std::string makeBeside(const std::string& target, int* fd) {
  static std::atomic<unsigned> counter{0};
  for (int attempt = 0; attempt < 1000; ++attempt) {
    std::string name = detail::message(target, ".", ::getpid(), "-", counter++, ".tmp");
    *fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd >= 0 || errno != EEXIST) return name;
  }
  return {};  // errno is EEXIST
}

// A file that is replaced keeps its permissions.
int copyPermissions(const std::string& from, int fd) {
  struct stat existing {};
  if (::stat(from.c_str(), &existing) != 0) return 0;
  return ::fchmod(fd, existing.st_mode & 0777) == 0 ? 0 : errno;
}

// The rename itself reaches the disk with its folder. Not every file system can do it: then it
// stays best effort.
void syncFolder(const std::filesystem::path& folder) {
  const Descriptor fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());
}

// A symbolic link stays one: the file that it points to is replaced.
std::string followLinks(const std::string& path) {
  std::error_code error;
  const auto target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

// A device, a pipe, or whatever the process has open (/dev/stdout, /dev/fd/3): written into, since
// renaming a file over it would put that in its place.
bool isWrittenInto(const std::string& path) {
  if (path.rfind("/dev/", 0) == 0 || path.rfind("/proc/", 0) == 0) return true;
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

void writeInto(const std::string& path, std::string_view bytes) {
  Descriptor fd(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  int error = fd.get() < 0 ? errno : writeAll(fd.get(), bytes);
  if (fd.get() >= 0) {
    const int close_error = fd.close();
    if (error == 0) error = close_error;
  }
  if (error != 0) fail("write", path, error);
}

}  // namespace

std::string readFile(const std::string& path) {
  // O_NONBLOCK: a named pipe without a writer must not hang us before we see that it is no regular
  // file.
  const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) fail("open", path, errno);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) fail("read", path, errno);
  POET_CHECK_AS(Error, S_ISREG(info.st_mode), "poet: cannot read '", path,
                "': it is not a regular file");
  POET_CHECK_AS(Error, info.st_size <= kMaxFileBytes, "poet: cannot read '", path, "': it has ",
                info.st_size, " bytes, and at most ", kMaxFileBytes, " are read");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::read(fd.get(), bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path, errno);
    if (got == 0) break;  // it has become shorter since
    done += static_cast<size_t>(got);
  }
  bytes.resize(done);
  return bytes;
}

void writeFileAtomically(const std::string& path, std::string_view bytes) {
  if (isWrittenInto(path)) return writeInto(path, bytes);
  const std::string target = followLinks(path);
  int opened = -1;
  const std::string name = makeBeside(target, &opened);
  if (opened < 0) fail("write", path, errno);
  Descriptor fd(opened);
  TemporaryFile temporary(name);
  int error = copyPermissions(target, fd.get());
  if (error == 0) error = writeAll(fd.get(), bytes);
  if (error == 0 && ::fsync(fd.get()) != 0) error = errno;
  const int close_error = fd.close();
  if (error == 0) error = close_error;
  if (error == 0) error = temporary.renameTo(target);
  if (error != 0) fail("write", path, error);
  const auto folder = std::filesystem::path(target).parent_path();
  syncFolder(folder.empty() ? std::filesystem::path(".") : folder);
}

}  // namespace poet
