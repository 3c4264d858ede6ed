// checkpoint_all: keep everything. What PyTorch does; the name is POET's (Patil et al., ICML 2022,
// Figure 2).
//
// Chosen: the step as it was traced, without any action: values die when autograd lets them go, not
// earlier. Bound: none; its time is the least there is. Weakness: it has one plan, whatever the
// budget.
#include "graph/error.h"
#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "schedule/simulator.h"

namespace poet::methods {

Schedule planCheckpointAll(const Graph& graph, const DeviceProfile& profile,
                           const SolveOptions& options) {
  const planner::Deadline deadline(options.time_limit_seconds);
  Schedule schedule = planner::emptySchedule(graph, options);
  schedule.method = "checkpoint_all";
  schedule.status = Status::kFeasible;
  schedule.before.resize(static_cast<size_t>(graph.numOps()) + 1);
  schedule.after.resize(static_cast<size_t>(graph.numOps()));
  finalize(graph, profile, schedule);
  schedule.believed_peak_bytes = schedule.peak_bytes;
  schedule.believed_seconds = schedule.makespan_seconds;
  schedule.solve_seconds = deadline.elapsed();
  const bool in_time = !options.runtime_budget_seconds ||
                       schedule.makespan_seconds <=
                           *options.runtime_budget_seconds * (1 + planner::kSecondsTolerance);
  if (schedule.peak_bytes <= options.ram_budget_bytes && in_time) {
    // Nothing is faster, and nothing that computes as much needs less energy.
    const bool optimal = options.minimize != Objective::kMemory;
    schedule.status = optimal ? Status::kOptimal : Status::kFeasible;
    schedule.bound = optimal ? schedule.objectiveValue() : 0;
    schedule.gap = optimal ? 0 : 1;
    return schedule;
  }
  Schedule without = planner::emptySchedule(graph, options);
  without.method = schedule.method;
  without.status = Status::kInfeasible;
  without.bound_scope = "candidates";
  without.solve_seconds = schedule.solve_seconds;
  if (in_time) {
    without.least_ram_budget = schedule.peak_bytes;
    without.least_ram_op = schedule.peak_op;
    without.message =
        detail::message("plain training needs ", schedule.peak_bytes, " bytes, and ram_budget is ",
                        options.ram_budget_bytes, " bytes");
  } else {
    without.message =
        detail::message("plain training takes ", schedule.makespan_seconds,
                        " s, and runtime_budget is ", *options.runtime_budget_seconds, " s");
  }
  return without;
}

}  // namespace poet::methods
