// One Program solved as it stands: relaxation, then CBC, with memory rows added until its point
// keeps the budget.
#pragma once

#include <optional>

#include "planner/lp_loop.h"
#include "planner/program.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct SearchOptions {
  double time_limit_seconds = 10;
  double relative_gap = 1e-7;  // of the scaled objective, where a branch and cut may stop
  double absolute_gap = 0;     // likewise
  int threads = 1;
  // Ends at once where the plan of a relaxed program breaks the budget (its bound is what was
  // wanted).
  const ReplayPlan* start = nullptr;
  SolverChoice solver = {};
};

struct SearchResult {
  // kOptimal: `plan` attains `bound`. kInfeasible: the program has no point. kStopped: out of time.
  SolverStatus status = SolverStatus::kStopped;
  std::optional<ReplayPlan> plan;  // a point of the program, with the useless replays dropped
  double bound = -kInfinity;       // on the program's scaled objective
};

// `root` may carry rows and cuts of an earlier relaxation of the same program; it grows.
SearchResult searchProgram(const Program& program, Relaxation& root, const SearchOptions& options);

}  // namespace poet::planner
