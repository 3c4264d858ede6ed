// Wall-clock time within a solve.
#pragma once

#include <algorithm>
#include <chrono>

namespace poet::planner {

class Deadline {
 public:
  explicit Deadline(double seconds) : end_(seconds) {}
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double left() const { return std::max(0.0, end_ - elapsed()); }
  bool over() const { return elapsed() >= end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  double end_;
};

}  // namespace poet::planner
