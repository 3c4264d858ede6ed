// Time within a solve: the wall's, or work that is counted.
#pragma once

#include <algorithm>
#include <chrono>

namespace poet::planner {

// Note [Work]
// A search that looks at the wall's clock finds other plans on a busy machine than on an idle one.
// With SolveOptions::deterministic it looks at a meter instead, which the search itself moves:
// annealing by its moves, the state search by its states, solvers by simplex iterations and nodes
// (each with a constant, so that a second of work takes about a second of a quiet machine). Nothing
// else may influence a search: its random numbers have fixed seeds, and solvers get limits of
// iterations and nodes. What waits for a process keeps the wall's clock (WallDeadline), with limits
// (watchdogSeconds) that only a process that hangs meets.
class WorkMeter {
 public:
  // In force in this thread, and in the processes that it forks, until it is destroyed.
  WorkMeter() : previous_(current_) { current_ = this; }
  WorkMeter(const WorkMeter&) = delete;
  WorkMeter& operator=(const WorkMeter&) = delete;
  ~WorkMeter() { current_ = previous_; }

  // Null where the wall's clock counts.
  static WorkMeter* current() { return current_; }

  void add(double seconds) { seconds_ += seconds; }
  double seconds() const { return seconds_; }

 private:
  static inline thread_local WorkMeter* current_ = nullptr;
  WorkMeter* previous_;
  double seconds_ = 0;
};

inline void chargeWork(double seconds) {
  if (WorkMeter* meter = WorkMeter::current()) meter->add(seconds);
}

inline double watchdogSeconds(double limit_seconds) { return 60 + 20 * limit_seconds; }

class WallDeadline {
 public:
  explicit WallDeadline(double seconds) : end_(seconds) {}
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double left() const { return std::max(0.0, end_ - elapsed()); }
  bool over() const { return elapsed() >= end_; }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point start_ = Clock::now();
  double end_;
};

// Of the meter that is in force where it is made, else of the wall.
class Deadline {
 public:
  explicit Deadline(double seconds)
      : meter_(WorkMeter::current()),
        wall_(seconds),
        begin_(meter_ != nullptr ? meter_->seconds() : 0),
        end_(seconds) {}
  double elapsed() const {
    return meter_ != nullptr ? meter_->seconds() - begin_ : wall_.elapsed();
  }
  double left() const { return std::max(0.0, end_ - elapsed()); }
  bool over() const { return elapsed() >= end_; }

 private:
  const WorkMeter* meter_;
  WallDeadline wall_;
  double begin_;
  double end_;
};

}  // namespace poet::planner
