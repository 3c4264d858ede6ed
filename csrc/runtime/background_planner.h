// One thread that does jobs in turn, so that training goes on meanwhile.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

namespace poet {

// Thread-safe. A job that throws ends the queue; its exception waits for rethrow().
class BackgroundPlanner {
 public:
  using Job = std::function<void(int variant, const std::stop_token& stop)>;

  explicit BackgroundPlanner(Job job) : job_(std::move(job)) {}
  ~BackgroundPlanner() { close(); }
  BackgroundPlanner(const BackgroundPlanner&) = delete;
  BackgroundPlanner& operator=(const BackgroundPlanner&) = delete;

  void add(int variant);  // starts the thread if there is none; nothing after close()
  // Until nothing waits or runs; false at the timeout.
  bool wait(std::optional<std::chrono::milliseconds> timeout);
  bool busy();
  void rethrow();  // what a job threw, once
  void close();    // asks the running job to stop and waits for it

 private:
  void work(const std::stop_token& stop);
  bool idle() const { return waiting_.empty() && !running_; }

  Job job_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<int> waiting_;
  bool running_ = false;
  bool closed_ = false;
  std::exception_ptr error_;
  std::jthread thread_;  // last: it uses all the others
};

}  // namespace poet
