// Many transfers under way at once, on every way in which requests are carried out: order, faults,
// slow disks, cancellation, forks.
#include "store/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "store/file_store.h"
#include "store/store_testing.h"
#include "store/transfer_queue.h"

namespace poet::store {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Ticket = TransferQueue::Ticket;

constexpr int64_t kPipedSizes[] = {5000, 3000001, 0, 131072, 1, 9 << 20, 4096, 700000};

std::vector<Bytes> someValues(uint64_t seed) {
  std::vector<Bytes> values;
  for (const int64_t bytes : kPipedSizes)
    values.push_back(randomValue(bytes, seed + static_cast<uint64_t>(bytes)));
  return values;
}

Ticket begin(TransferQueue& queue, const Bytes& value) {
  return queue.write(value.data(), static_cast<int64_t>(value.size()));
}

double processorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

PipelineOptions unruly(uint64_t seed, microseconds delay) {
  PipelineOptions options;
  options.engine = [=](int) { return std::make_unique<UnrulyEngine>(seed, delay); };
  return options;
}

class StorePipeline : public StoreTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    StoreTest::SetUp();
    if (!works(GetParam())) GTEST_SKIP() << "no io_uring here";
    store_ = std::make_shared<FileStore>(directory_, GetParam().options);
    queue_ = std::make_unique<TransferQueue>(store_);
  }
  void TearDown() override {
    queue_ = nullptr;
    store_ = nullptr;
    StoreTest::TearDown();
  }

  Bytes readThrough(int64_t slot, int64_t bytes) {
    Bytes back(static_cast<size_t>(bytes), std::byte{0xEE});
    queue_->wait(queue_->read(slot, back.data()));
    return back;
  }

  std::shared_ptr<FileStore> store_;
  std::unique_ptr<TransferQueue> queue_;
};

INSTANTIATE_TEST_SUITE_P(Ways, StorePipeline, ::testing::ValuesIn(everyWay()),
                         [](const auto& run) { return run.param.name; });

TEST_P(StorePipeline, GivesBackWhatItWasGivenWhileMuchIsUnderWay) {
  std::vector<std::pair<int64_t, Bytes>> kept;
  for (uint64_t round = 0; round < 4; ++round) {
    const std::vector<Bytes> values = someValues(round);
    std::vector<Bytes> back;
    std::vector<Ticket> reads, writes;
    back.reserve(kept.size());
    for (const Bytes& value : values) {
      writes.push_back(begin(*queue_, value));
      if (back.size() == kept.size()) continue;
      const auto& [slot, written] = kept[back.size()];  // reads between the writes
      back.emplace_back(written.size());
      reads.push_back(queue_->read(slot, back.back().data()));
    }
    for (size_t i = 0; i < reads.size(); ++i) {
      EXPECT_EQ(queue_->wait(reads[i]), kept[i].first);
      EXPECT_EQ(back[i], kept[i].second);
      queue_->release(kept[i].first);
    }
    kept.clear();
    for (size_t i = 0; i < values.size(); ++i)
      kept.emplace_back(queue_->wait(writes[i]), values[i]);
  }
  const StoreCounters counters = queue_->counters();
  EXPECT_EQ(counters.writes, 4 * std::ssize(kPipedSizes));
  EXPECT_EQ(counters.reads, 3 * std::ssize(kPipedSizes));
  EXPECT_EQ(counters.retries + counters.repaired_chunks, 0);
  EXPECT_EQ(store_->slotsInUse(), std::ssize(kPipedSizes));
}

TEST_P(StorePipeline, TheWayIsTheOneThatWasAskedFor) {
  const Bytes value = randomValue(5000, 1);
  queue_->wait(begin(*queue_, value));
  if (GetParam().options.engine || !GetParam().options.direct) return;
  EXPECT_EQ(store_->path(), GetParam().options.path);
}

TEST_P(StorePipeline, AReleaseWaitsForTheReadsBeforeIt) {
  const Bytes value = randomValue(9 << 20, 2);
  const Bytes other = randomValue(9 << 20, 3);
  for (int round = 0; round < 3; ++round) {
    const int64_t slot = queue_->wait(begin(*queue_, value));
    std::vector<Bytes> back(3, Bytes(value.size()));
    std::vector<Ticket> reads;
    for (Bytes& each : back) reads.push_back(queue_->read(slot, each.data()));
    queue_->release(slot);
    const Ticket next = begin(*queue_, other);  // into the same place
    for (const Ticket& read : reads) queue_->wait(read);
    for (const Bytes& each : back) EXPECT_EQ(each, value);
    queue_->release(queue_->wait(next));
  }
  EXPECT_EQ(queue_->counters().repaired_chunks, 0);
  EXPECT_EQ(store_->slotsInUse(), 0);
}

TEST_P(StorePipeline, BuffersAreBoundedHoweverMuchIsUnderWay) {
  EXPECT_EQ(store_->bufferBytes(), 0);
  const Bytes value = randomValue(9 << 20, 4);
  const auto writeMany = [&] {
    std::vector<Ticket> writes;
    for (int i = 0; i < 8; ++i) writes.push_back(begin(*queue_, value));
    for (const Ticket& write : writes) queue_->release(queue_->wait(write));
    queue_->counters();  // idle
    return store_->bufferBytes();
  };
  EXPECT_LE(writeMany(), 4 << 20);
  EXPECT_LE(writeMany(), 4 << 20);
}

TEST_P(StorePipeline, BuffersAreHardlyLargerThanTheLargestValue) {
  const auto after = [&](int64_t bytes) {
    const Bytes value = randomValue(bytes, static_cast<uint64_t>(bytes));
    const Ticket write = begin(*queue_, value);
    const int64_t slot = queue_->wait(write);
    Bytes back(value.size());
    queue_->wait(queue_->read(slot, back.data()));
    EXPECT_EQ(back, value);
    queue_->release(slot);
    queue_->counters();  // idle
    return store_->bufferBytes();
  };
  EXPECT_LE(after(10000), 4 * (128 << 10));
  EXPECT_LE(after(512 << 10), (512 << 10) * 5 / 4);
  EXPECT_LE(after(1 << 20), (1 << 20) * 5 / 4);
  const int64_t of_large = after(20 << 20);
  EXPECT_LE(of_large, 4 << 20);
  EXPECT_EQ(after(10000), of_large) << "they stay";
}

// ------------------------------------------------------------------------------------------------
// cancellation

TEST_P(StorePipeline, ACancelledWriteLeavesNothingBehind) {
  const Bytes value = randomValue(9 << 20, 5);
  const int64_t before = queue_->wait(begin(*queue_, value));
  for (int round = 0; round < 20; ++round) {
    const Bytes unwanted = randomValue(9 << 20, 6);
    const Ticket first = begin(*queue_, unwanted);
    const Ticket second = begin(*queue_, unwanted);
    std::this_thread::sleep_for(microseconds(200 * round));  // from not begun to over
    queue_->cancel(first);
    queue_->cancel(second);
    queue_->cancel(second);  // as often as one likes
    EXPECT_THAT(storeErrorOf([&] { queue_->wait(first); }), HasSubstr("cancelled"));
    EXPECT_TRUE(queue_->isDone(second));
  }
  queue_->counters();  // idle
  EXPECT_EQ(store_->slotsInUse(), 1);
  EXPECT_EQ(readThrough(before, std::ssize(value)), value);
  const int64_t file_bytes = store_->fileBytes();
  queue_->wait(begin(*queue_, value));
  EXPECT_EQ(store_->fileBytes(), file_bytes) << "places of cancelled writes are used again";
}

TEST_P(StorePipeline, ACancelledReadLeavesTheMemoryAlone) {
  const Bytes value = randomValue(9 << 20, 7);
  const int64_t slot = queue_->wait(begin(*queue_, value));
  for (int round = 0; round < 20; ++round) {
    auto back = std::make_unique<Bytes>(value.size());
    const Ticket read = queue_->read(slot, back->data());
    std::this_thread::sleep_for(microseconds(200 * round));
    queue_->cancel(read);
    back = nullptr;  // sanitizers see who still writes
    EXPECT_TRUE(queue_->isDone(read));
  }
  EXPECT_EQ(readThrough(slot, std::ssize(value)), value);
  queue_->release(slot);
  queue_->counters();
  EXPECT_EQ(store_->slotsInUse(), 0);
}

// ------------------------------------------------------------------------------------------------
// forks

TEST_P(StorePipeline, AForkFindsItWhole) {
  const Bytes value = randomValue(9 << 20, 8);
  std::vector<Ticket> writes;
  for (int i = 0; i < 4; ++i) writes.push_back(begin(*queue_, value));
  const pid_t child = ::fork();  // while transfers are under way
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    int failures = 0;
    for (const Ticket& write : writes)
      failures += readThrough(queue_->wait(write), std::ssize(value)) != value;
    try {
      queue_->wait(begin(*queue_, value));
      ++failures;  // a fork may not write
    } catch (const StoreError&) {
    }
    queue_ = nullptr;  // waits for nobody
    store_ = nullptr;
    ::_exit(failures);
  }
  std::vector<Ticket> more;
  for (int i = 0; i < 4; ++i) more.push_back(begin(*queue_, value));
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  writes.insert(writes.end(), more.begin(), more.end());
  for (const Ticket& write : writes)
    EXPECT_EQ(readThrough(queue_->wait(write), std::ssize(value)), value);
}

// ------------------------------------------------------------------------------------------------
// faults

class StoreFaultUnderWay : public StoreTest, public ::testing::WithParamInterface<FaultOnWay> {};
INSTANTIATE_TEST_SUITE_P(Faults, StoreFaultUnderWay, everyFaultOnEveryWay(), nameOf);

// As StoreFaultTest, but for that nobody waits for one transfer before the next begins.
TEST_P(StoreFaultUnderWay, EveryTransferEndsWholeOrInAnError) {
  const auto& [fault_case, way] = GetParam();
  if (!works(way)) GTEST_SKIP() << "no io_uring here";
  const int64_t transfers = std::ssize(kPipedSizes) - 1;  // zero bytes transfer nothing
  for (int64_t nth = 1; nth <= transfers; ++nth) {
    const auto store = std::make_shared<FileStore>(directory_, way.options);
    TransferQueue queue(store);
    const std::vector<Bytes> values = someValues(static_cast<uint64_t>(nth));
    int64_t errors = 0;
    const auto succeeds = [&](const Ticket& ticket) {
      try {
        queue.wait(ticket);
        return true;
      } catch (const StoreError& error) {
        EXPECT_THAT(error.what(), HasSubstr(directory_));
        ++errors;
        return false;
      }
    };

    injectStoreFault(fault_case.fault, nth);
    std::vector<Ticket> writes;
    for (const Bytes& value : values) writes.push_back(begin(queue, value));
    std::vector<size_t> written;
    for (size_t i = 0; i < values.size(); ++i) {
      if (succeeds(writes[i])) written.push_back(i);
    }
    std::vector<Bytes> back;
    std::vector<Ticket> reads;
    for (const size_t i : written) back.emplace_back(values[i].size());
    for (size_t j = 0; j < written.size(); ++j)
      reads.push_back(queue.read(queue.wait(writes[written[j]]), back[j].data()));
    for (size_t j = 0; j < written.size(); ++j) {
      if (succeeds(reads[j])) {
        EXPECT_EQ(back[j], values[written[j]]);
      }
    }
    const int64_t struck = storeFaultsStruck();
    injectStoreFault(StoreFault::kNone);

    // A file that has grown for a large value has room for what comes behind it.
    if (fault_case.fault != StoreFault::kGrowNoSpace) {
      EXPECT_GT(struck, 0) << "transfer " << nth;
    }
    EXPECT_EQ(errors > 0, struck > 0 && fault_case.outcome == Outcome::kThrows)
        << "transfer " << nth;
    queue.counters();  // idle
    EXPECT_EQ(store->slotsInUse(), std::ssize(written));
    for (const size_t i : written) {  // the store carries on
      if (fault_case.fault != StoreFault::kRuin) {
        EXPECT_EQ(readBack(*store, queue.wait(writes[i])), values[i]);
      }
    }
    const Bytes later = randomValue(3000001, 77);
    EXPECT_EQ(readBack(*store, writeValue(*store, later)), later);
  }
}

// ------------------------------------------------------------------------------------------------
// slow disks, and answers in any order

class SlowStorePipeline : public StoreTest {};

TEST_F(SlowStorePipeline, AnyOrderOfAnswersGivesTheSameBytes) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    const auto store = std::make_shared<FileStore>(directory_, unruly(seed, microseconds(0)));
    TransferQueue queue(store);
    const std::vector<Bytes> values = someValues(seed);
    std::vector<Ticket> writes;
    for (const Bytes& value : values) writes.push_back(begin(queue, value));
    for (size_t i = 0; i < values.size(); ++i) {
      Bytes back(values[i].size());
      queue.wait(queue.read(queue.wait(writes[i]), back.data()));
      EXPECT_EQ(back, values[i]) << "seed " << seed;
    }
  }
}

// The thread sleeps while the disk works: 20 parts of 10 ms each.
TEST_F(SlowStorePipeline, IsWaitedForAsleep) {
  const auto store = std::make_shared<FileStore>(directory_, unruly(1, milliseconds(10)));
  TransferQueue queue(store);
  const Bytes value = randomValue(10 << 20, 9);
  const auto begun = std::chrono::steady_clock::now();
  const double before = processorSeconds();
  queue.wait(begin(queue, value));
  const double used = processorSeconds() - before;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_GT(took.count(), 0.2);
  EXPECT_LT(used, 0.5 * took.count());
}

TEST_F(SlowStorePipeline, TheCallerDoesNotWaitUntilItAsks) {
  const auto store = std::make_shared<FileStore>(directory_, unruly(2, milliseconds(100)));
  TransferQueue queue(store);
  const Bytes value = randomValue(3000001, 10);
  const Ticket write = begin(queue, value);
  EXPECT_FALSE(queue.isDone(write));
  Bytes back(value.size());
  queue.wait(queue.read(queue.wait(write), back.data()));
  EXPECT_EQ(back, value);
}

TEST_F(SlowStorePipeline, ACancelledTransferStopsMidway) {
  const auto store = std::make_shared<FileStore>(directory_, unruly(3, milliseconds(20)));
  TransferQueue queue(store);
  const Bytes value = randomValue(50 << 20, 11);  // 100 parts: two seconds
  const auto begun = std::chrono::steady_clock::now();
  const Ticket write = begin(queue, value);
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_FALSE(queue.isDone(write));
  queue.cancel(write);
  EXPECT_LT(std::chrono::steady_clock::now() - begun, milliseconds(1000));
  EXPECT_EQ(store->slotsInUse(), 0);
}

TEST_F(SlowStorePipeline, SecondsCountOnceHoweverMuchIsUnderWay) {
  const auto store = std::make_shared<FileStore>(directory_, unruly(4, milliseconds(5)));
  TransferQueue queue(store);
  const Bytes value = randomValue(5000, 12);
  const auto begun = std::chrono::steady_clock::now();
  std::vector<Ticket> writes;
  for (int i = 0; i < 20; ++i) writes.push_back(begin(queue, value));
  for (const Ticket& write : writes) queue.wait(write);
  const double counted = queue.counters().write_seconds;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  EXPECT_GE(counted, 0.1);  // 20 parts
  EXPECT_LE(counted, took.count());
}

}  // namespace
}  // namespace poet::store
