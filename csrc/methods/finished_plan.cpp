#include "methods/finished_plan.h"

#include <algorithm>

#include "graph/error.h"
#include "planner/extract.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"

namespace poet::methods {

std::optional<double> FinishedPlan::replaySecondsLimit() const {
  if (!options_.runtime_budget_seconds) return std::nullopt;
  return *options_.runtime_budget_seconds - problem_.plain_seconds;
}

// Seconds of plain computation in the objective's unit.
double FinishedPlan::inUnit(double seconds) const {
  if (options_.minimize != Objective::kEnergy) return seconds;
  return problem_.profile().joules({.busy_seconds = seconds, .makespan_seconds = seconds});
}

Schedule FinishedPlan::without(Status status, const std::string& message,
                               double solve_seconds) const {
  Schedule schedule = planner::emptySchedule(problem_.graph(), options_);
  schedule.method = method_;
  schedule.status = status;
  schedule.bound_scope = "candidates";
  schedule.message = message;
  schedule.solve_seconds = solve_seconds;
  return schedule;
}

Schedule FinishedPlan::with(planner::ReplayPlan plan, double bound_cost, double solve_seconds,
                            const std::string& start) const {
  Schedule schedule = planner::emptySchedule(problem_.graph(), options_);
  schedule.method = method_;
  schedule.status = Status::kFeasible;
  schedule.start = start;
  schedule.solve_seconds = solve_seconds;
  planner::dropUselessReplays(problem_, plan);
  planner::writeActions(problem_, plan, schedule);
  finalize(problem_.graph(), problem_.profile(), schedule);
  const double latest = options_.runtime_budget_seconds.value_or(schedule.makespan_seconds) *
                        (1 + planner::kSecondsTolerance);
  if (schedule.peak_bytes > options_.ram_budget_bytes || schedule.makespan_seconds > latest) {
    return without(
        Status::kTimeLimit,
        detail::message("the solver's solution misses the budgets by its tolerance: it "
                        "takes ",
                        schedule.peak_bytes, " bytes and ", schedule.makespan_seconds, " s"),
        solve_seconds);
  }
  const double value = schedule.objectiveValue();
  const double plain = inUnit(problem_.plain_seconds);
  if (value <= plain * (1 + planner::kOptimalGap)) {
    schedule.status = Status::kOptimal;
    schedule.bound = std::min(value, plain);
    schedule.gap = 0;
    schedule.bound_scope = "all";
    schedule.bound_all = schedule.bound;
    return schedule;
  }
  schedule.bound = std::min(value, inUnit(problem_.plain_seconds + std::max(0.0, bound_cost)));
  schedule.gap = (value - *schedule.bound) / value;
  schedule.bound_scope = "candidates";
  return schedule;
}

}  // namespace poet::methods
