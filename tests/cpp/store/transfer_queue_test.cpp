// Transfers beside the caller: their order, their failures, forks, and their end.
#include "store/transfer_queue.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "store/store_testing.h"

namespace poet::store {
namespace {

// A store whose transfers wait until they are let go, and that counts how many run at once.
class GatedStore final : public PageStore {
 public:
  void letGo(int transfers) {
    const std::lock_guard lock(mutex_);
    allowed_ += transfers;
    moved_.notify_all();
  }
  int begun() {
    const std::lock_guard lock(mutex_);
    return begun_;
  }
  std::vector<std::string> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

  void reserve(int64_t) override {}
  int64_t write(const void*, int64_t bytes) override {
    pass("write " + std::to_string(bytes));
    return bytes;
  }
  void read(int64_t slot, void*) override {
    pass("read " + std::to_string(slot));
    if (slot == 13) throw StoreError("slot 13 is damaged");
  }
  void release(int64_t slot) override {
    const std::lock_guard lock(mutex_);
    order_.push_back("release " + std::to_string(slot));
  }
  int64_t bytesOf(int64_t slot) const override { return slot; }
  int64_t slotsInUse() const override { return 0; }
  int64_t bufferBytes() const override { return 0; }
  double cachedShare() const override { return 0; }
  const StoreCounters& counters() const override { return counters_; }
  const std::string& directory() const override { return directory_; }

 private:
  void pass(const std::string& what) {
    std::unique_lock lock(mutex_);
    order_.push_back(what);
    ++begun_;
    moved_.wait(lock, [&] { return allowed_ >= begun_; });
  }

  std::mutex mutex_;
  std::condition_variable moved_;
  int allowed_ = 0, begun_ = 0;
  std::vector<std::string> order_;
  StoreCounters counters_;
  std::string directory_;
};

TEST(TransferQueue, TheCallerGoesOnWhileATransferRuns) {
  auto store = std::make_shared<GatedStore>();
  TransferQueue queue(store);
  const auto first = queue.write(nullptr, 7);
  const auto second = queue.read(7, nullptr);
  EXPECT_FALSE(queue.isDone(first));
  EXPECT_FALSE(queue.isDone(second));
  store->letGo(1);
  EXPECT_EQ(queue.wait(first), 7);
  EXPECT_FALSE(queue.isDone(second));
  store->letGo(1);
  queue.wait(second);
  EXPECT_TRUE(queue.isDone(second));
}

TEST(TransferQueue, TransfersRunInTheOrderInWhichTheyWereAskedFor) {
  auto store = std::make_shared<GatedStore>();
  store->letGo(100);
  TransferQueue queue(store);
  queue.write(nullptr, 3);
  queue.read(3, nullptr);
  queue.release(3);
  queue.wait(queue.write(nullptr, 4));
  EXPECT_EQ(store->order(),
            (std::vector<std::string>{"write 3", "read 3", "release 3", "write 4"}));
}

TEST(TransferQueue, AFailureIsToldToWhoeverAsksAndToNobodyElse) {
  auto store = std::make_shared<GatedStore>();
  store->letGo(100);
  TransferQueue queue(store);
  const auto failing = queue.read(13, nullptr);
  const auto later = queue.read(14, nullptr);
  EXPECT_EQ(queue.wait(later), 14);
  EXPECT_TRUE(queue.isDone(failing));
  for (int i = 0; i < 2; ++i) {
    try {
      queue.wait(failing);
      FAIL() << "expected a StoreError";
    } catch (const StoreError& error) {
      EXPECT_STREQ(error.what(), "slot 13 is damaged");
    }
  }
}

TEST(TransferQueue, ItsEndWaitsForWhatWasAskedFor) {
  auto store = std::make_shared<GatedStore>();
  {
    TransferQueue queue(store);
    queue.write(nullptr, 1);
    queue.write(nullptr, 2);
    store->letGo(2);
  }
  EXPECT_EQ(store->order().size(), 2u);
}

class TransferQueueOnDisk : public StoreTest {};

TEST_F(TransferQueueOnDisk, GivesBackWhatItWasGiven) {
  TransferQueue queue(PageStore::open(directory_));
  std::vector<Bytes> values;
  std::vector<TransferQueue::Ticket> written;
  for (int i = 0; i < 20; ++i) values.push_back(randomValue(100'000 * i, 7 + i));
  for (const Bytes& value : values)
    written.push_back(queue.write(value.data(), static_cast<int64_t>(value.size())));
  std::vector<Bytes> back(values.size());
  std::vector<TransferQueue::Ticket> read;
  for (size_t i = 0; i < values.size(); ++i) {
    back[i].resize(values[i].size());
    read.push_back(queue.read(queue.wait(written[i]), back[i].data()));
  }
  for (size_t i = 0; i < values.size(); ++i) {
    queue.wait(read[i]);
    EXPECT_EQ(back[i], values[i]) << i;
  }
  EXPECT_EQ(queue.counters().writes, 20);
  EXPECT_EQ(queue.counters().reads, 20);
}

TEST_F(TransferQueueOnDisk, AForkFindsItWholeAndReadsWithoutTheThread) {
  auto owned = std::make_unique<TransferQueue>(PageStore::open(directory_));
  TransferQueue& queue = *owned;
  const Bytes value = randomValue(8 << 20, 1);
  std::vector<TransferQueue::Ticket> written;
  for (int i = 0; i < 8; ++i)
    written.push_back(queue.write(value.data(), static_cast<int64_t>(value.size())));
  const pid_t child = ::fork();  // while transfers run
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::alarm(60);
    Bytes back(value.size());
    int failures = 0;
    for (const auto& ticket : written) {
      queue.wait(queue.read(queue.wait(ticket), back.data()));
      failures += back != value;
    }
    try {
      queue.wait(queue.write(value.data(), static_cast<int64_t>(value.size())));
      ++failures;  // a fork may not write
    } catch (const StoreError&) {
    }
    owned.reset();  // waits for nobody
    ::_exit(failures);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  EXPECT_EQ(WEXITSTATUS(status), 0);
  Bytes back(value.size());
  for (const auto& ticket : written) {
    queue.wait(queue.read(queue.wait(ticket), back.data()));
    EXPECT_EQ(back, value);
  }
}

TEST(TransferQueue, SignalsOfTheProcessDoNotReachItsThread) {
  static std::atomic<pthread_t> heard_by{};
  struct sigaction action {};
  action.sa_handler = [](int) { heard_by = ::pthread_self(); };
  struct sigaction before {};
  ::sigaction(SIGUSR1, &action, &before);
  auto store = std::make_shared<GatedStore>();
  TransferQueue queue(store);
  const auto ticket = queue.write(nullptr, 1);
  while (store->begun() == 0) std::this_thread::yield();
  ::kill(::getpid(), SIGUSR1);
  EXPECT_EQ(heard_by.load(), ::pthread_self());
  ::sigaction(SIGUSR1, &before, nullptr);
  store->letGo(1);
  queue.wait(ticket);
}

}  // namespace
}  // namespace poet::store
