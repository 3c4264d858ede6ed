#include "store/page_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>

#include <cmath>
#include <fstream>
#include <map>

#include "store/file_store.h"
#include "store/store_testing.h"

namespace poet::store {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kSizes[] = {0,       1,       4095,    4096,    4097,    131071,
                              131072,  131073,  1000003, 8388607, 8388608, 8388609,
                              2097152, 2097153, 70000,   262145,  33554433};

class PageStoreTest : public StoreTest {};

// Both ways of keeping bytes out of the page cache.
class PageStoreModeTest : public StoreTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(DirectAndBuffered, PageStoreModeTest, ::testing::Bool(),
                         [](const auto& run) { return run.param ? "Direct" : "Buffered"; });

TEST_P(PageStoreModeTest, GivesBackEverySize) {
  FileStore store(directory_, {.direct = GetParam()});
  std::vector<int64_t> slots;
  for (const int64_t bytes : kSizes)
    slots.push_back(writeValue(store, randomValue(bytes, 1 + bytes)));
  for (size_t i = 0; i < slots.size(); ++i) {
    EXPECT_EQ(store.bytesOf(slots[i]), kSizes[i]);
    EXPECT_EQ(readBack(store, slots[i]), randomValue(kSizes[i], 1 + kSizes[i])) << kSizes[i];
    EXPECT_EQ(readBack(store, slots[i]), randomValue(kSizes[i], 1 + kSizes[i])) << "again";
  }
  EXPECT_EQ(store.slotsInUse(), std::ssize(kSizes));
  EXPECT_EQ(store.counters().writes, std::ssize(kSizes));
  EXPECT_EQ(store.counters().reads, 2 * std::ssize(kSizes));
  EXPECT_EQ(store.counters().read_bytes, 2 * store.counters().written_bytes);
  EXPECT_EQ(store.counters().repaired_chunks, 0);
  EXPECT_EQ(store.counters().retries, 0);
}

TEST_P(PageStoreModeTest, KeepsBytesOutOfThePageCache) {
  FileStore store(directory_, {.direct = GetParam()});
  const Bytes value = randomValue(16 << 20, 2);
  std::vector<int64_t> slots;
  for (int i = 0; i < 4; ++i) slots.push_back(writeValue(store, value));
  EXPECT_LE(store.cachedShare(), 0.05) << "written";
  for (const int64_t slot : slots) EXPECT_EQ(readBack(store, slot), value);
  EXPECT_LE(store.cachedShare(), 0.05) << "read";
}

// The measure itself: a stranger who reads the file through the page cache is seen.
TEST_F(PageStoreTest, CachedShareSeesWhatIsCached) {
  const auto store = PageStore::open(directory_);
  EXPECT_EQ(store->cachedShare(), 0);
  Bytes value = randomValue(4 << 20, 3);
  writeValue(*store, value);
  const int fd = openFromOutside();
  ASSERT_EQ(::pread(fd, value.data(), value.size(), 0), std::ssize(value));
  ::close(fd);
  EXPECT_GT(store->cachedShare(), 0.9);
}

TEST_F(PageStoreTest, TakesPointersOfEveryAlignment) {
  const auto store = PageStore::open(directory_);
  constexpr int64_t kBytes = 300001;
  for (size_t shift = 0; shift < 70; shift += 3) {
    const Bytes value = randomValue(kBytes + 70, shift);
    const int64_t slot = store->write(value.data() + shift, kBytes);
    Bytes target(kBytes + 80, std::byte{0xEE});
    store->read(slot, target.data() + 70 - shift);
    EXPECT_EQ(std::memcmp(target.data() + 70 - shift, value.data() + shift, kBytes), 0);
    EXPECT_EQ(target[kBytes + 70 - shift], std::byte{0xEE}) << "written behind the end";
    store->release(slot);
  }
}

TEST_F(PageStoreTest, ZeroBytesNeedNoPointerAndNoSpace) {
  FileStore store(directory_);
  const int64_t slot = store.write(nullptr, 0);
  EXPECT_GE(slot, 0);
  store.read(slot, nullptr);
  store.release(slot);
  EXPECT_EQ(store.fileBytes(), 0);
}

TEST_F(PageStoreTest, AgreesWithAMapOverManyRandomSteps) {
  FileStore store(directory_);
  std::mt19937 random(5);
  std::map<int64_t, Bytes> model;
  for (int i = 0; i < 600; ++i) {
    const auto chosen =
        model.empty() ? model.end() : std::next(model.begin(), random() % model.size());
    if (model.size() < 4 || (model.size() < 12 && random() % 2 == 0)) {
      const Bytes value = randomValue(random() % (random() % 4 == 0 ? 3000000 : 40000), random());
      const auto [at, is_new] = model.emplace(writeValue(store, value), value);
      ASSERT_TRUE(is_new);
    } else if (random() % 2 == 0) {
      ASSERT_EQ(readBack(store, chosen->first), chosen->second);
    } else {
      store.release(chosen->first);
      model.erase(chosen);
    }
    ASSERT_EQ(store.slotsInUse(), std::ssize(model));
  }
  for (const auto& [slot, value] : model) ASSERT_EQ(readBack(store, slot), value);
  EXPECT_LT(store.fileBytes(), int64_t{12} * 3 * 3000000);
}

TEST_F(PageStoreTest, ReleasedPlacesAreUsedAgain) {
  FileStore store(directory_);
  int64_t after_first = 0;
  for (int step = 0; step < 20; ++step) {
    std::vector<int64_t> slots;
    for (const int64_t bytes : kSizes) slots.push_back(writeValue(store, Bytes(bytes)));
    for (const int64_t slot : slots) store.release(slot);
    if (step == 0) after_first = store.fileBytes();
    EXPECT_EQ(store.fileBytes(), after_first);
  }
  EXPECT_EQ(store.slotsInUse(), 0);
}

TEST_F(PageStoreTest, AReleasedSlotIsGone) {
  const auto store = PageStore::open(directory_);
  const int64_t slot = writeValue(*store, Bytes(10));
  store->release(slot);
  Bytes target(10);
  EXPECT_THROW(store->read(slot, target.data()), Error);
  EXPECT_THROW(store->release(slot), Error);
  EXPECT_THROW(store->bytesOf(slot), Error);
  EXPECT_NE(writeValue(*store, Bytes(10)), slot);
}

TEST_F(PageStoreTest, ReservedSpaceIsOnTheDiskAndSuffices) {
  FileStore store(directory_);
  constexpr int64_t kValues = 40;
  constexpr int64_t kBytes = 65537;
  store.reserve(kValues * kBytes);
  const int64_t reserved = store.fileBytes();
  struct stat status {};
  ASSERT_EQ(::fstat(storeDescriptor(), &status), 0);
  EXPECT_GE(status.st_blocks * 512, kValues * kBytes);
  injectStoreFault(StoreFault::kGrowNoSpace);
  for (int i = 0; i < kValues; ++i) writeValue(store, Bytes(kBytes));
  EXPECT_EQ(store.fileBytes(), reserved);
  EXPECT_EQ(storeFaultsStruck(), 0);
}

TEST_F(PageStoreTest, ReserveCountsWhatIsInUse) {
  FileStore store(directory_);
  store.reserve(1 << 20);
  const int64_t first = store.fileBytes();
  store.reserve(1 << 20);
  EXPECT_EQ(store.fileBytes(), first);
  writeValue(store, Bytes(1 << 20));
  store.reserve(1 << 20);
  EXPECT_GE(store.fileBytes(), first + (1 << 20));
  store.reserve(0);
  EXPECT_THROW(store.reserve(-1), ArgumentError);
}

TEST_F(PageStoreTest, BuffersAreBounded) {
  const auto store = PageStore::open(directory_);
  store->release(writeValue(*store, Bytes(16 << 20)));
  const int64_t empty = store->bufferBytes();
  EXPECT_LE(empty, 4 << 20);
  const int64_t slot = writeValue(*store, Bytes(32 << 20));
  EXPECT_LE(store->bufferBytes() - empty, 4096);
  store->release(slot);
  EXPECT_EQ(store->bufferBytes(), empty);
}

TEST_F(PageStoreTest, FileHasNoNameAndIsItsOwnersAlone) {
  const auto store = PageStore::open(directory_);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
  const int fd = storeDescriptor();
  struct stat status {};
  ASSERT_EQ(::fstat(fd, &status), 0);
  EXPECT_EQ(status.st_nlink, 0u);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
}

TEST_F(PageStoreTest, GoesOnWhenItsDirectoryIsRemoved) {
  FileStore store(directory_);
  const Bytes value = randomValue(1000003, 6);
  const int64_t before = writeValue(store, value);
  std::filesystem::remove_all(directory_);
  const int64_t after = writeValue(store, value);
  EXPECT_EQ(readBack(store, before), value);
  EXPECT_EQ(readBack(store, after), value);
}

std::string argumentErrorOf(const std::string& directory) {
  try {
    PageStore::open(directory);
  } catch (const ArgumentError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no ArgumentError for " << directory;
  return "";
}

bool isTmpfs(const char* directory) {
  struct statfs status {};
  return ::statfs(directory, &status) == 0 && status.f_type == 0x01021994;
}

TEST_F(PageStoreTest, RefusesADirectoryInRam) {
  if (!isTmpfs("/dev/shm")) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  EXPECT_THAT(argumentErrorOf("/dev/shm"), AllOf(HasSubstr("/dev/shm"), HasSubstr("tmpfs"),
                                                 HasSubstr("RAM"), HasSubstr("page_dir=")));
}

TEST_F(PageStoreTest, DefaultPassesOverADirectoryInRam) {
  if (!isTmpfs("/dev/shm")) GTEST_SKIP() << "/dev/shm is no tmpfs here";
  const char* const old = std::getenv("TMPDIR");
  const std::string kept = old == nullptr ? "" : old;
  ::setenv("TMPDIR", "/dev/shm", 1);
  EXPECT_NE(PageStore::open("")->directory(), "/dev/shm");
  ::setenv("TMPDIR", directory_.c_str(), 1);
  EXPECT_EQ(PageStore::open("")->directory(), directory_);
  old == nullptr ? ::unsetenv("TMPDIR") : ::setenv("TMPDIR", kept.c_str(), 1);
}

TEST_F(PageStoreTest, NamesTheDirectoryThatIsNotThere) {
  EXPECT_THAT(argumentErrorOf(directory_ + "/absent"),
              AllOf(HasSubstr(directory_ + "/absent"), HasSubstr("does not exist")));
  const std::string file = directory_ + "/file";
  std::ofstream(file) << "x";
  EXPECT_THAT(argumentErrorOf(file), AllOf(HasSubstr(file), HasSubstr("not a directory")));
  EXPECT_THAT(argumentErrorOf("/proc"), AllOf(HasSubstr("/proc"), HasSubstr("cannot create")));
}

TEST_F(PageStoreTest, MeasuresWhatItDoes) {
  const StoreSpeed speed = measureStore(directory_, 0.2);
  for (const double rate : {speed.read_rate, speed.write_rate}) {
    EXPECT_GT(rate, 1e5);
    EXPECT_LT(rate, 1e12);
  }
  for (const double latency : {speed.read_latency_seconds, speed.write_latency_seconds}) {
    EXPECT_GT(latency, 0);
    EXPECT_LT(latency, 1);
  }
  EXPECT_THROW(measureStore(directory_ + "/absent"), ArgumentError);
  EXPECT_THROW(measureStore(directory_, 0), ArgumentError);
}

// Many views of the same 64 MiB: a value longer than 32 bits count, without the memory for it.
class RepeatedMemory {
 public:
  explicit RepeatedMemory(size_t bytes) : bytes_(bytes) {
    const int fd = ::memfd_create("poet-test", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(fd, kViewBytes), 0);
    void* const all =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = static_cast<std::byte*>(all);
    for (size_t at = 0; at < bytes; at += kViewBytes) {
      EXPECT_NE(::mmap(data_ + at, std::min<size_t>(kViewBytes, bytes - at), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_FIXED, fd, 0),
                MAP_FAILED);
    }
    ::close(fd);
  }
  ~RepeatedMemory() { ::munmap(data_, bytes_); }
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  std::byte* data() const { return data_; }
  static constexpr size_t kViewBytes = 64 << 20;

 private:
  size_t bytes_;
  std::byte* data_ = nullptr;
};

TEST_F(PageStoreTest, HoldsAValueOfFiveGigabytes) {
  if (std::getenv("POET_NIGHTLY") == nullptr) GTEST_SKIP() << "set POET_NIGHTLY=1: takes a minute";
  if (std::filesystem::space(directory_).available < (uint64_t{12} << 30)) {
    GTEST_SKIP() << "less than 12 GiB are free in " << directory_;
  }
  constexpr int64_t kBytes = (int64_t{5} << 30) + 12345;
  const RepeatedMemory source(kBytes);
  const Bytes pattern = randomValue(RepeatedMemory::kViewBytes, 12);
  std::memcpy(source.data(), pattern.data(), pattern.size());
  FileStore store(directory_);
  const int64_t slot = store.write(source.data(), kBytes);
  const int64_t behind = writeValue(store, randomValue(5000, 13));
  EXPECT_EQ(store.bytesOf(slot), kBytes);
  const RepeatedMemory target(kBytes);
  store.read(slot, target.data());
  EXPECT_EQ(std::memcmp(target.data(), pattern.data(), pattern.size()), 0);
  EXPECT_EQ(readBack(store, behind), randomValue(5000, 13));
  EXPECT_EQ(store.counters().repaired_chunks, 0);
}

}  // namespace
}  // namespace poet::store
