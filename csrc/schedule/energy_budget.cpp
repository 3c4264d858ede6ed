#include "schedule/energy_budget.h"

#include <cmath>
#include <optional>
#include <utility>

#include "graph/error.h"

namespace poet {
namespace {

// Sums of thousands of doubles, added up in another order by whoever set the cap.
constexpr double kTolerance = 1e-9;  // relative

// What every schedule takes, as far as that is known.
std::optional<double> boundOverAll(const Schedule& schedule) {
  if (schedule.bound && schedule.bound_scope == "all") return schedule.bound;
  return schedule.bound_all;
}

void dropPlan(Schedule& schedule) {
  schedule.least_energy_joules = schedule.energy_joules;
  schedule.before.clear();
  schedule.after.clear();
  schedule.recipes.clear();
  schedule.away_between_steps.clear();
  schedule.peak_bytes = schedule.believed_peak_bytes = 0;
  schedule.peak_op = OpId();
  schedule.makespan_seconds = schedule.believed_seconds = schedule.energy_joules = 0;
  schedule.gap.reset();
  schedule.start.clear();
}

}  // namespace

Schedule withinEnergy(Schedule schedule, double joules) {
  POET_CHECK(std::isfinite(joules) && joules > 0, "energy budget: expected joules above 0; got ",
             joules);
  POET_CHECK(schedule.objective == Objective::kEnergy,
             "energy budget: expected a schedule that minimizes energy; this one minimizes ",
             toString(schedule.objective), ", which says nothing about the least energy");
  schedule.energy_budget_joules = joules;
  if (!schedule.hasPlan() || schedule.energy_joules <= joules * (1 + kTolerance)) return schedule;
  const std::optional<double> bound = boundOverAll(schedule);
  const bool proven = bound && *bound > joules * (1 + kTolerance);
  dropPlan(schedule);
  schedule.status = proven ? Status::kInfeasible : Status::kTimeLimit;
  schedule.message =
      proven ? detail::message("an energy budget of ", joules, " J a step cannot be met: every ",
                               "schedule takes ", *bound, " J or more, the best found ",
                               *schedule.least_energy_joules, " J")
             : detail::message("no plan was found within an energy budget of ", joules,
                               " J a step: the best takes ", *schedule.least_energy_joules,
                               " J, and nothing proves that there is none");
  return schedule;
}

}  // namespace poet
