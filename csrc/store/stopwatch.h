// Stopwatch and BusyTime: add seconds to a counter.
#pragma once

#include <chrono>

namespace poet {

// The seconds of its lifetime.
template <class Clock>
class StopwatchOf {
 public:
  explicit StopwatchOf(double* seconds) : seconds_(seconds) {}
  ~StopwatchOf() { *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  StopwatchOf(const StopwatchOf&) = delete;
  StopwatchOf& operator=(const StopwatchOf&) = delete;

 private:
  double* seconds_;
  typename Clock::time_point start_ = Clock::now();
};

using Stopwatch = StopwatchOf<std::chrono::steady_clock>;

// The seconds in which something is under way, however much at once.
class BusyTime {
 public:
  explicit BusyTime(double* seconds) : seconds_(seconds) {}

  void begin() {
    if (under_way_++ == 0) start_ = Clock::now();
  }
  void end() {
    if (--under_way_ == 0)
      *seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  int under_way_ = 0;
  Clock::time_point start_;
};

}  // namespace poet
