// A step seen at a few moments: a program that every schedule is a point of, whatever the length of
// the step, and the bound that it gives.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/candidates.h"
#include "planner/exact.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

class Program;

// Note [Moments]
// A moment is the first execution of a stage, m_0 < m_1 < ... Memory is looked at there and nowhere
// else; what lies between two moments is a *block*. A step at its moments is a Problem of its own:
// for each block a stage that touches all that plain training touches in it, makes all that it
// makes in it, and has no memory row (Stage::kNoMemoryRow), and after it the stage of the moment.
// All replays of a block stand before the former. Then the relaxed program (Note [Bounds for every
// schedule]) without rows (5') holds for every schedule:
//   r_{k,i}  block k replays i at all;
//   x of a gap within block k: v is resident at some time in the block, by then or because a replay
//            of the block makes it;
//   x of a gap over moments: v is resident during all of them.
// A replay may run in block k if its outputs exist before the block, and reads of its inputs those
// that exist before it may run at all; so blocks allow more than stages do. What else the problem
// of the single stages leaves out is left free: a value's memory between two writes and its
// version, wake-ups, generator states, and what is held at its death although it may be in the
// store. With one moment a recompute and all it needs are whole (no fraction feeds a second one);
// with all stages as moments it is the relaxed program itself.

// `fine`: with every size a choice (small_bytes 0). `moments`: stages, ascending. Values up to
// `free_bytes` take no memory and are there whenever something reads them.
Problem atMoments(const Problem& fine, const std::vector<int>& moments, int64_t free_bytes = 0);

// All replays of a problem at moments, in its blocks.
Candidates momentCandidates(const Problem& coarse, double most_cost = kAnyCost);

// By value: whether the relaxation at one moment, the stage at which plain training needs the most,
// keeps it across that moment (or it is not there then). Nearly whole: what to evict is read off
// it. Empty where the relaxation has no point.
struct KeptOptions {
  int64_t budget_bytes = 0;
  std::optional<double> replay_seconds_limit;
  double time_limit_seconds = 10;
  SolverChoice solver = {};
};
std::vector<char> keptAtPeak(const Problem& fine, const KeptOptions& options);

// The plans that the relaxations round to (planBetween), at one moment, two, three and so on,
// chosen as below. Each may exceed the budget, the last one mostly least. They have the replays
// that pay off at the peak, and the chains that those need, however long: as candidates they are
// what a few ancestors of each stage's inputs are not.
std::vector<ReplayPlan> plansAtMoments(const Problem& fine, const KeptOptions& options);

// Note [Which moments]
// The first moment is the stage at which plain training needs the most. The relaxation at the
// moments so far says what is resident between them, at least. The next moments are where that is
// the most, half as many again in each round while it is above the budget somewhere, then as many
// again. So they gather where memory decides. Source: the idea is that of dynamic discretization
// discovery (Boland, Hewitt, Marshall, Savelsbergh, Operations Research 2017). The best bound of
// all rounds, more of them while time lasts, and of branch and cut in the last one where little is
// left free in it. The store must not charge wake-ups. BoundOverAll::plan is what the last whole
// point rounds to: it may exceed the budget between moments.
BoundOverAll boundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes,
                            double best_cost, const ExactOptions& options);

}  // namespace poet::planner
