// The clock by which ops are timed, and what the program takes between them.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace poet {

// The wall's. What is evicted, and which plan is found, hang on measured times, so that two runs of
// a test may differ; while an OpClock::Counted lives, a microsecond passes with each look at the
// clock instead, in every thread, and steps of one thread are the same in each run.
class OpClock {
 public:
  using Wall = std::chrono::steady_clock;
  using time_point = Wall::time_point;

  static time_point now() {
    if (counted_.load(std::memory_order_relaxed) == 0) return Wall::now();
    return time_point(std::chrono::microseconds(++looks_));
  }

  class Counted {
   public:
    Counted() { ++counted_; }
    ~Counted() { --counted_; }
    Counted(const Counted&) = delete;
    Counted& operator=(const Counted&) = delete;
  };

 private:
  static inline std::atomic<int> counted_{0};
  static inline std::atomic<int64_t> looks_{0};
};

}  // namespace poet
