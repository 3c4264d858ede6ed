// Small graphs: plans with a proof, over every schedule. See Note [Bounds for every schedule].
#pragma once

#include <limits>
#include <optional>

#include "planner/problem.h"
#include "planner/replay_plan.h"
#include "planner/solver_choice.h"

namespace poet::planner {

// Above this many candidate replays (stages x runnable recipes) a proof is not tried. Where values
// may be paged the programs are harder for their count, which has few of the page-ins.
inline constexpr size_t kMostExactCandidates = 2500;
inline constexpr size_t kMostExactCandidatesWithPages = 600;

struct ExactOptions {
  double time_limit_seconds = 10;
  std::optional<double> replay_seconds_limit;
  int threads = 1;
  SolverChoice solver = {};
  double peak_gap = 0;  // relative: leastPeak may stop at plans so close to the bound
};

// Least cost (in seconds of plain computation) within a budget.
struct ExactPlan {
  bool infeasible = false;         // proven: no schedule keeps budget and deadline
  std::optional<ReplayPlan> plan;  // the best that was found
  double bound_cost = 0;           // no schedule costs less
  bool proven = false;             // the plan attains the bound
};
ExactPlan leastCost(const Problem& problem, int64_t budget_bytes, const ExactOptions& options);

// Above this many candidate replays a bound over every schedule is not tried.
inline constexpr size_t kMostBoundedCandidates = 30000;

// A bound over every schedule for problems of middling size: the relaxed program with its cuts, and
// branch and cut where little is left between it and the best plan. The problem must be exact.
struct BoundOverAll {
  bool any = false;                // a bound was found in time
  double bound_cost = 0;           // no schedule costs less, in seconds of plain computation
  std::optional<ReplayPlan> plan;  // of the relaxed program; it may exceed the budget
};
struct KnownPlan {
  const ReplayPlan* plan = nullptr;  // null: none
  double cost = std::numeric_limits<double>::infinity();
  bool is_last = false;  // nothing else has a use for the time, be it as short as it may
};
BoundOverAll boundOverAll(const Problem& problem, int64_t budget_bytes, const KnownPlan& best,
                          const ExactOptions& options);

// Whether branch and cut over so many free columns gets anywhere in the time: its root alone, with
// cuts and heuristics, takes about this long for each of them.
inline constexpr double kSearchSecondsPerColumn = 3e-4;
inline bool isWorthSearching(int free_columns, double seconds) {
  return free_columns * kSearchSecondsPerColumn <= seconds;
}

// Least peak within a deadline.
struct ExactPeak {
  bool infeasible = false;  // proven: no schedule keeps the deadline
  std::optional<ReplayPlan> plan;
  int64_t peak_bytes = 0;   // of plan
  int64_t bound_bytes = 0;  // no schedule needs less
  bool proven = false;      // peak_bytes == bound_bytes
};
ExactPeak leastPeak(const Problem& problem, const ExactOptions& options);

}  // namespace poet::planner
