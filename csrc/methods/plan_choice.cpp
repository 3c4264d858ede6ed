#include "methods/plan_choice.h"

#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "planner/extract.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"

namespace poet::methods {

PlanChoice::PlanChoice(const planner::Problem& problem, const SolveOptions& options,
                       std::string method)
    : problem_(problem),
      options_(options),
      finished_(problem, options, std::move(method)),
      deadline_(options.time_limit_seconds) {}

int64_t PlanChoice::offer(const planner::ReplayPlan& plan, std::string note) {
  Plan offered;
  offered.plan = plan;
  offered.note = std::move(note);
  planner::dropUselessReplays(problem_, offered.plan);
  Schedule schedule = planner::emptySchedule(problem_.graph(), options_);
  schedule.status = Status::kFeasible;
  planner::writeActions(problem_, offered.plan, schedule);
  finalize(problem_.graph(), problem_.profile(), schedule);
  offered.peak_bytes = schedule.peak_bytes;
  offered.peak_op = schedule.peak_op;
  offered.seconds = schedule.makespan_seconds;
  offered.value = schedule.objectiveValue();
  const bool fits = offered.peak_bytes <= options_.ram_budget_bytes;
  const bool in_time =
      !options_.runtime_budget_seconds ||
      offered.seconds <= *options_.runtime_budget_seconds * (1 + planner::kSecondsTolerance);
  if (fits) least_seconds_ = std::min(least_seconds_.value_or(offered.seconds), offered.seconds);
  if (fits && in_time && (!best_ || offered.value < best_->value)) best_ = offered;
  const int64_t peak = offered.peak_bytes;
  if (!smallest_ || peak < smallest_->peak_bytes) smallest_ = std::move(offered);
  return peak;
}

Schedule PlanChoice::without(Status status, const std::string& message) const {
  Schedule schedule = finished_.without(status, message, deadline_.elapsed());
  if (smallest_ && smallest_->peak_bytes > options_.ram_budget_bytes) {
    schedule.least_ram_budget = smallest_->peak_bytes;
    schedule.least_ram_op = smallest_->peak_op;
  }
  return schedule;
}

Schedule PlanChoice::finish(const std::string& what_it_is) const {
  if (best_) {
    Schedule schedule = finished_.with(best_->plan, 0, deadline_.elapsed());
    if (schedule.hasPlan()) schedule.message = best_->note;
    return schedule;
  }
  if (!smallest_) return without(Status::kInfeasible, what_it_is);
  if (smallest_->peak_bytes <= options_.ram_budget_bytes) {
    return without(Status::kInfeasible,
                   detail::message(what_it_is, " within the memory budget takes ", *least_seconds_,
                                   " s at least, and runtime_budget is ",
                                   options_.runtime_budget_seconds.value_or(0), " s"));
  }
  const OpId op = smallest_->peak_op;
  const bool is_op = op.valid() && op < problem_.graph().endOfStep();
  return without(Status::kInfeasible,
                 detail::message(what_it_is, " needs ", smallest_->peak_bytes, " bytes, at ",
                                 is_op ? detail::message("op ", op.index, " (",
                                                         problem_.graph().op(op).name, ")")
                                       : "the end of the step",
                                 ", and ram_budget is ", options_.ram_budget_bytes, " bytes"));
}

}  // namespace poet::methods
