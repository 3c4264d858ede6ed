// What the store does when the disk, or somebody else, does not do its part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/file_store.h"
#include "store/store_testing.h"

namespace poet::store {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int64_t kShort = 5000;
constexpr int64_t kLong = 3000001;  // two transfers
const int64_t kStepSizes[] = {kShort, kLong, 131072};

class StoreFaultTest : public StoreTest, public ::testing::WithParamInterface<FaultOnWay> {};

// Writes three values, reads them twice. Whatever is thrown, what was written before stays whole.
TEST_P(StoreFaultTest, EveryTransferEndsWholeOrInAnError) {
  const auto& [fault_case, way] = GetParam();
  if (!works(way)) GTEST_SKIP() << "no io_uring here";
  const auto [fault, outcome, name] = fault_case;
  for (int64_t nth = 1;; ++nth) {
    FileStore store(directory_, way.options);
    std::vector<std::pair<int64_t, Bytes>> written;
    injectStoreFault(fault, nth);
    std::string error;
    try {
      for (const int64_t bytes : kStepSizes) {
        const Bytes value = randomValue(bytes, static_cast<uint64_t>(bytes + nth));
        written.emplace_back(writeValue(store, value), value);
      }
      for (int round = 0; round < 2; ++round) {
        for (const auto& [slot, value] : written) ASSERT_EQ(readBack(store, slot), value);
      }
    } catch (const StoreError& caught) {
      error = caught.what();
    }
    const int64_t struck = storeFaultsStruck();
    injectStoreFault(StoreFault::kNone);
    if (struck == 0) {
      EXPECT_EQ(error, "");
      EXPECT_GT(nth, 3) << "the fault struck fewer transfers than there are";
      break;
    }
    EXPECT_EQ(error.empty(), outcome == Outcome::kGoesOn) << "transfer " << nth << ": " << error;
    if (!error.empty()) {
      EXPECT_THAT(error, HasSubstr(directory_));
    }
    EXPECT_EQ(store.slotsInUse(), std::ssize(written));
    // The store carries on; only bytes that were ruined on the file are lost.
    if (fault != StoreFault::kRuin) {
      for (const auto& [slot, value] : written) EXPECT_EQ(readBack(store, slot), value);
    }
    const Bytes later = randomValue(kLong, 77);
    EXPECT_EQ(readBack(store, writeValue(store, later)), later);
  }
}

INSTANTIATE_TEST_SUITE_P(Faults, StoreFaultTest, everyFaultOnEveryWay(), nameOf);

class StoreDamageTest : public StoreTest {};

TEST_F(StoreDamageTest, MessagesNameTheCause) {
  const auto store = PageStore::open(directory_);
  const Bytes value = randomValue(kLong, 1);
  Bytes target(value.size());
  const int64_t slot = writeValue(*store, value);
  injectStoreFault(StoreFault::kGrowNoSpace);
  EXPECT_THAT(storeErrorOf([&] { store->reserve(123 << 20); }),
              AllOf(HasSubstr("No space left"), HasSubstr("wanted"), HasSubstr("free"),
                    HasSubstr("page_dir=")));
  injectStoreFault(StoreFault::kWriteNoSpace);
  EXPECT_THAT(storeErrorOf([&] { writeValue(*store, value); }),
              AllOf(HasSubstr("No space left"), HasSubstr("free")));
  injectStoreFault(StoreFault::kWriteError);
  EXPECT_THAT(storeErrorOf([&] { writeValue(*store, value); }), HasSubstr("Input/output error"));
  injectStoreFault(StoreFault::kReadError);
  EXPECT_THAT(storeErrorOf([&] { store->read(slot, target.data()); }),
              AllOf(HasSubstr("Input/output error"), HasSubstr("3000001")));
  injectStoreFault(StoreFault::kReadNothing);
  EXPECT_THAT(storeErrorOf([&] { store->read(slot, target.data()); }), HasSubstr("ends too early"));
}

TEST_F(StoreDamageTest, PassingFaultsAreCounted) {
  const auto store = PageStore::open(directory_);
  const Bytes value = randomValue(kLong, 2);
  int64_t retries = 0;
  for (const StoreFault fault : {StoreFault::kWriteErrorOnce, StoreFault::kShortWrite,
                                 StoreFault::kReadErrorOnce, StoreFault::kShortRead}) {
    injectStoreFault(fault);
    EXPECT_EQ(readBack(*store, writeValue(*store, value)), value);
    EXPECT_EQ(store->counters().retries, ++retries);
  }
  EXPECT_EQ(store->counters().repaired_chunks, 0);
}

// One bit in each block of the slot in turn, the parity's too, a different bit each time.
TEST_F(StoreDamageTest, AnyOneFlippedBitIsRepaired) {
  for (const int64_t bytes : {int64_t{1}, kShort, int64_t{131072}, int64_t{300000}}) {
    FileStore store(directory_);
    const Bytes value = randomValue(bytes, 3);
    const int64_t slot = writeValue(store, value);
    const ChunkLayout layout(bytes);
    int64_t repaired = 0;
    for (int64_t at = 0; at < layout.fileBytes(); at += kBlockBytes) {
      const int64_t bit = at * 8 + at * 31 / kBlockBytes * 1009 % (kBlockBytes * 8);
      flipBitFromOutside(bit);
      ASSERT_EQ(readBack(store, slot), value) << "bit " << bit;
      if (at < layout.dataBytes()) {
        ASSERT_EQ(store.counters().repaired_chunks, ++repaired);
      } else {
        flipBitFromOutside(bit);  // the parity is looked at only where it is wanted
      }
    }
    ASSERT_EQ(readBack(store, slot), value);
    EXPECT_EQ(store.counters().repaired_chunks, repaired) << "repaired on the file, too";
  }
}

TEST_F(StoreDamageTest, TwoDamagedChunksAreAnError) {
  const auto store = PageStore::open(directory_);
  const Bytes before = randomValue(kLong, 4);
  const int64_t other = writeValue(*store, before);
  const ChunkLayout layout(kLong);
  const int64_t slot = writeValue(*store, before);
  Bytes target(kLong);
  flipBitFromOutside((layout.fileBytes() + 10) * 8);
  flipBitFromOutside((layout.fileBytes() + layout.chunkOffset(5) + 10) * 8);
  EXPECT_THAT(
      storeErrorOf([&] { store->read(slot, target.data()); }),
      AllOf(HasSubstr(directory_), HasSubstr("offset " + std::to_string(layout.fileBytes())),
            HasSubstr("2 of "), HasSubstr("changed from outside"), HasSubstr("disk")));
  EXPECT_EQ(readBack(*store, other), before);
}

TEST_F(StoreDamageTest, ADamagedChunkAndDamagedParityAreAnError) {
  const auto store = PageStore::open(directory_);
  const ChunkLayout layout(kLong);
  const int64_t slot = writeValue(*store, randomValue(kLong, 5));
  Bytes target(kLong);
  flipBitFromOutside(8 * 100);
  flipBitFromOutside(layout.dataBytes() * 8 + 9);
  EXPECT_THAT(storeErrorOf([&] { store->read(slot, target.data()); }), HasSubstr("parity"));
}

// A write that the disk acknowledged and lost leaves the bytes of the value before.
TEST_F(StoreDamageTest, BytesOfAnEarlierValueAreDamage) {
  const auto store = PageStore::open(directory_);
  const ChunkLayout layout(kShort);
  store->release(writeValue(*store, randomValue(kShort, 6)));
  Bytes old(static_cast<size_t>(layout.fileBytes()));
  const int fd = openFromOutside();
  ASSERT_EQ(::pread(fd, old.data(), old.size(), 0), std::ssize(old));
  // The same bytes once more: only the slot differs.
  const int64_t slot = writeValue(*store, randomValue(kShort, 7));
  ASSERT_EQ(::pwrite(fd, old.data(), old.size(), 0), std::ssize(old));
  ASSERT_EQ(::fsync(fd), 0);
  ::close(fd);
  Bytes target(kShort);
  EXPECT_THROW(store->read(slot, target.data()), StoreError);
}

TEST_F(StoreDamageTest, ATruncatedFileIsAnError) {
  const auto store = PageStore::open(directory_);
  const int64_t slot = writeValue(*store, randomValue(kLong, 8));
  const int fd = openFromOutside();
  ASSERT_EQ(::ftruncate(fd, kLong / 2), 0);
  ::close(fd);
  Bytes target(kLong);
  EXPECT_THAT(storeErrorOf([&] { store->read(slot, target.data()); }), HasSubstr("ends too early"));
}

// Full for real: the kernel refuses to let the file grow.
TEST_F(StoreDamageTest, ALimitOnFileSizeIsAnErrorAndNotASignal) {
  FileStore store(directory_);
  const Bytes value = randomValue(kLong, 9);
  const int64_t slot = writeValue(store, value);
  const int64_t file_bytes = store.fileBytes();
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const struct rlimit small { static_cast<rlim_t>(file_bytes + 4096), old.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string at_write = storeErrorOf([&] { writeValue(store, value); });
  const std::string at_reserve = storeErrorOf([&] { store.reserve(1 << 20); });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  EXPECT_THAT(at_write, HasSubstr("RLIMIT_FSIZE"));
  EXPECT_THAT(at_reserve, HasSubstr("RLIMIT_FSIZE"));
  EXPECT_EQ(store.fileBytes(), file_bytes);
  EXPECT_EQ(readBack(store, slot), value);
  EXPECT_EQ(readBack(store, writeValue(store, value)), value);
}

// A fork shares the file, and neither knows what the other writes.
TEST_F(StoreDamageTest, AForkReadsAndDoesNotWrite) {
  FileStore store(directory_);
  const Bytes value = randomValue(kLong, 11);
  const int64_t slot = writeValue(store, value);
  const pid_t child = ::fork();
  if (child == 0) {
    const bool reads = readBack(store, slot) == value;
    const std::string at_write = storeErrorOf([&] { writeValue(store, value); });
    const std::string at_reserve = storeErrorOf([&] { store.reserve(1 << 20); });
    const bool refused = at_write.find("is a fork") != std::string::npos &&
                         at_reserve.find("is a fork") != std::string::npos;
    ::_exit(reads && refused ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(readBack(store, slot), value);
}

}  // namespace
}  // namespace poet::store
