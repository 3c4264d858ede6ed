// What a point of the program at moments says of the stages between them: when its replays run,
// what is resident meanwhile, and the plan that it comes to.
#pragma once

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "planner/problem.h"
#include "planner/program.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// What a point has of each value, by block and moment (Note [Moments] in moments.h).
class PointAtMoments {
 public:
  PointAtMoments(const Program& program, const std::vector<double>& x);

  // Of v in the block at `stage`, at most 1.
  double replayed(int v, int stage) const;
  // Of v during the moment at `stage`.
  double resident(int v, int stage) const;
  // Of the block at `stage`: (replay, share), what is read before what reads it.
  const std::vector<std::pair<int, double>>& replaysOf(int stage) const {
    return replays_[static_cast<size_t>(stage)];
  }

 private:
  const Program& program_;
  const std::vector<double>& x_;
  std::vector<std::vector<std::pair<int, double>>> replayed_;  // by value: (stage, share)
  std::vector<std::vector<std::pair<int, double>>> replays_;   // by stage
};

// Note [When a block replays]
// A point says that a block replays something, not when. Here each replay runs once, right before
// the first thing that its outputs are for: a first execution of the block that touches them, a
// later replay of the block that reads them, or the moment after the block. What it reads stays up
// to then. So a value that is only made for the sake of another one is resident from that one's
// first need to its own last touch: a chain that is replayed whole lies in memory whole.
class NeedsOfReplays {
 public:
  static constexpr int kNever = std::numeric_limits<int>::max();

  NeedsOfReplays(const Problem& fine, const Problem& coarse, const PointAtMoments& point);

  // Turns to the block at `stage`, whose replays may run in the fine stages `first` to `last`.
  void look(int stage, int first, int last);

  // Of v: the first and the last stage at which something of the block's replays asks for it, and
  // the greatest share of what does; kNever, -1 and 0 where nothing does.
  int first(int v) const { return first_[static_cast<size_t>(v)]; }
  int last(int v) const { return last_[static_cast<size_t>(v)]; }
  double share(int v) const { return share_[static_cast<size_t>(v)]; }

 private:
  void forget();
  void need(int v, int at, double share);

  const Problem& fine_;
  const Problem& coarse_;
  const PointAtMoments& point_;
  std::vector<int> first_, last_, seen_;
  std::vector<double> share_;
};

// Where a point of the program at moments has the most in memory between them: the stage of each
// block that needs the most, worst first. Values up to `free_bytes` take no memory. What has been
// touched for the last time goes at once, as far as the point has it so.
struct Excess {
  int stage = 0;
  double bytes = 0;  // above the budget; negative below it
};
std::vector<Excess> excessBetween(const Problem& fine, const std::vector<int>& moments,
                                  int64_t free_bytes, const Program& program,
                                  const std::vector<double>& x);

// The plan that the point rounds to. It may exceed the budget, between moments above all.
ReplayPlan planBetween(const Problem& fine, const std::vector<int>& moments, const Program& program,
                       const std::vector<double>& x);

}  // namespace poet::planner
