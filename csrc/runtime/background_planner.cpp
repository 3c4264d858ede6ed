#include "runtime/background_planner.h"

#include <utility>

namespace poet {

void BackgroundPlanner::add(int variant) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) return;
  waiting_.push_back(variant);
  if (!thread_.joinable()) thread_ = std::jthread([this](const std::stop_token& s) { work(s); });
  changed_.notify_all();
}

void BackgroundPlanner::work(const std::stop_token& stop) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return !waiting_.empty(); })) {
    const int variant = waiting_.front();
    waiting_.pop_front();
    running_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      job_(variant, stop);
    } catch (...) {  // shown at the next call: a thread has nobody to tell
      error = std::current_exception();
    }
    lock.lock();
    running_ = false;
    if (error) {
      error_ = error;
      waiting_.clear();
    }
    changed_.notify_all();
    if (stop.stop_requested()) return;
  }
}

bool BackgroundPlanner::wait(std::optional<std::chrono::milliseconds> timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  const auto done = [this] { return idle(); };
  if (timeout) return changed_.wait_for(lock, *timeout, done);
  changed_.wait(lock, done);
  return true;
}

bool BackgroundPlanner::busy() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !idle();
}

void BackgroundPlanner::rethrow() {
  std::exception_ptr error;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    error = std::exchange(error_, nullptr);
  }
  if (error) std::rethrow_exception(error);
}

void BackgroundPlanner::close() {
  std::jthread thread;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
    waiting_.clear();
    thread = std::move(thread_);
  }
}  // the thread is asked to stop and joined here, without the lock

}  // namespace poet
