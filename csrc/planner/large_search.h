// Steps too large for a proof: greedy starts, simulated annealing, a bound from the relaxation, and
// the program with the best plan as its start.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "planner/exact.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct LargeOptions {
  int64_t budget_bytes = 0;
  std::optional<double> replay_seconds_limit;
  double time_limit_seconds = 60;
  int threads = 1;
};

struct LargeCallbacks {
  std::function<void(const ReplayPlan&)> plan;   // a plan within the budgets
  std::function<void(double)> candidates_bound;  // least replay seconds over the candidate replays
};

// Least replay seconds within the budget, as far as it finds them. Ends early where the plan comes
// within kCloseEnough of the relaxation's bound. False if it found no plan.
bool searchLarge(const Problem& problem, const LargeOptions& options,
                 const LargeCallbacks& callbacks);

// Least peak. Starts from the same plans and seeds whatever the budget, and counts moves rather
// than seconds while time lasts, so that the answer does not depend on the budget that was asked
// for.
ExactPeak searchLeastPeak(const Problem& problem, const LargeOptions& options);

}  // namespace poet::planner
