#include "schedule/other_sizes.h"

#include <algorithm>

#include "graph/error.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

bool sameBesidesSize(const Op& a, const Op& b) {
  return a.name == b.name && a.inputs == b.inputs && a.outputs == b.outputs &&
         a.mutates == b.mutates && a.statistics == b.statistics &&
         a.metadata_only == b.metadata_only && a.reads_no_data == b.reads_no_data &&
         a.random == b.random && a.replayable == b.replayable && a.slice == b.slice;
}

bool sameBesidesSize(const Value& a, const Value& b) {
  return a.kind == b.kind && a.producer == b.producer && a.death == b.death &&
         a.evictable == b.evictable && a.dtype == b.dtype && a.slice == b.slice;
}

template <class T>
bool allTheSame(const std::vector<T>& a, const std::vector<T>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const T& x, const T& y) { return sameBesidesSize(x, y); });
}

double valueOf(const SimulationResult& result, Objective objective) {
  if (objective == Objective::kEnergy) return result.energy_joules;
  return objective == Objective::kTime ? result.makespan_seconds : 0;
}

// All that is known where nobody has searched.
void boundByPlain(Schedule& schedule, const Graph& graph, const DeviceProfile& profile) {
  const double value = schedule.objectiveValue();
  schedule.status = Status::kFeasible;
  schedule.bound = schedule.bound_all =
      std::min(value, valueOf(simulatePlain(graph, profile), schedule.objective));
  schedule.bound_scope = "all";
  schedule.gap = value > 0 ? 1 - *schedule.bound / value : 0;
}

}  // namespace

bool differInSizesOnly(const Graph& a, const Graph& b) {
  return allTheSame(a.ops(), b.ops()) && allTheSame(a.values(), b.values());
}

std::optional<Schedule> withOtherSizes(const Schedule& schedule, const Graph& from, const Graph& to,
                                       const DeviceProfile& profile) {
  if (!schedule.hasPlan() || schedule.graph_signature != from.signature() ||
      !differInSizesOnly(from, to))
    return std::nullopt;
  Schedule other;
  other.graph_signature = to.signature();
  other.num_ops = schedule.num_ops;
  other.method = schedule.method;
  other.objective = schedule.objective;
  other.before = schedule.before;
  other.after = schedule.after;
  other.recipes = schedule.recipes;
  other.away_between_steps = schedule.away_between_steps;
  try {
    finalize(to, profile, other);
  } catch (const ScheduleError&) {
    return std::nullopt;
  }
  other.believed_peak_bytes = other.peak_bytes;
  other.believed_seconds = other.makespan_seconds;
  boundByPlain(other, to, profile);
  other.message = "the plan of a step of other sizes";
  other.start = schedule.start;
  return other;
}

Schedule leavingRoom(Schedule schedule, const Graph& graph, const DeviceProfile& profile,
                     int64_t ram_budget_bytes) {
  POET_CHECK(schedule.hasPlan() && schedule.peak_bytes <= ram_budget_bytes,
             "expected a plan that keeps the budget of ", ram_budget_bytes, " bytes, got one of ",
             schedule.peak_bytes);
  boundByPlain(schedule, graph, profile);
  schedule.message = detail::message("made for ", schedule.ram_budget_bytes.value_or(0),
                                     " bytes: what lies beside the step grows");
  schedule.ram_budget_bytes = ram_budget_bytes;
  schedule.history.clear();
  return schedule;
}

}  // namespace poet
