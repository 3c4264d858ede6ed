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
  double cutoff = kInfinity;  // only points below it are wanted (MipOptions)
  double step = 0.6;          // of searchStep: where its target stands from bound (0) to cutoff (1)
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

// Note [Steps to a proof]
// Little is left to search where only points well below the best plan are wanted: reduced costs fix
// more, and every node ends sooner. So a step asks for points below a target between the bound that
// is known and options.cutoff, the cost of the best plan. kInfeasible: there are none, and
// SearchResult::bound is the target (`plan` may be one that costs more all the same). kOptimal: the
// cheapest of them. A search below the best plan itself has neither until it is done, and much more
// to do. What a step fixes is free again after it.
SearchResult searchStep(const Program& program, Relaxation& root, double bound,
                        const SearchOptions& options);

}  // namespace poet::planner
