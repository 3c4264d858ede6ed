#include "store/thread_engine.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "store/masked_thread.h"

namespace poet::store {
namespace {

constexpr int kMostThreads = 2;  // more were no faster: docs/store.md

// Threads that wait for requests, and do nothing while there are none.
class ThreadEngine final : public IoEngine {
 public:
  explicit ThreadEngine(int threads) {
    for (int i = 0; i < threads; ++i) {
      auto thread = startMaskedThread("poet-store", [this] { work(); });
      if (thread != nullptr) threads_.push_back(std::move(thread));
    }
  }
  ~ThreadEngine() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    work_.notify_all();
    for (const auto& thread : threads_) thread->join();
  }

  bool works() const { return !threads_.empty(); }

  IoRequest* take(bool waits) override {
    std::unique_lock lock(mutex_);
    if (waits) done_.wait(lock, [&] { return !over_.empty(); });
    return pop(over_);
  }
  IoPath path() const override { return IoPath::kThreads; }

 protected:
  void begin(IoRequest* request) override {
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(request);
    }
    work_.notify_one();
  }

 private:
  static IoRequest* pop(std::deque<IoRequest*>& from) {
    if (from.empty()) return nullptr;
    IoRequest* const request = from.front();
    from.pop_front();
    return request;
  }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return !waiting_.empty() || ends_; });
      IoRequest* const request = pop(waiting_);
      if (request == nullptr) return;
      lock.unlock();
      request->answer = carryOut(*request);
      lock.lock();
      over_.push_back(request);
      done_.notify_one();
    }
  }

  std::mutex mutex_;  // of all below but the threads
  std::condition_variable work_;
  std::condition_variable done_;
  std::deque<IoRequest*> waiting_;
  std::deque<IoRequest*> over_;
  bool ends_ = false;
  std::vector<std::unique_ptr<std::thread>> threads_;
};

}  // namespace

std::unique_ptr<IoEngine> openThreadEngine(int depth) {
  auto engine = std::make_unique<ThreadEngine>(std::min(depth, kMostThreads));
  if (!engine->works()) return nullptr;
  return engine;
}

}  // namespace poet::store
