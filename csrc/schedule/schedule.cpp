#include "schedule/schedule.h"

#include <limits>

#include "graph/error.h"
#include "graph/file_io.h"
#include "graph/heap_bytes.h"
#include "graph/json_reader.h"

namespace poet {
namespace {

// Checks the actions of a schedule against what they index.
class PlanCheck {
 public:
  PlanCheck(const Schedule& schedule, const Graph& graph) : schedule_(schedule), graph_(graph) {}

  void run() const {
    checkSizes();
    for (size_t r = 0; r < schedule_.recipes.size(); ++r) checkRecipe(r);
    for (size_t k = 0; k < schedule_.before.size(); ++k)
      checkActions("before", k, schedule_.before[k]);
    for (size_t k = 0; k < schedule_.after.size(); ++k)
      checkActions("after", k, schedule_.after[k]);
    const auto& away = schedule_.away_between_steps;
    for (size_t i = 0; i < away.size(); ++i) checkAway(away[i], i > 0 ? away[i - 1] : kNoValue);
  }

 private:
  void checkSizes() const {
    const auto ops = static_cast<size_t>(graph_.numOps());
    const bool empty = schedule_.before.empty() && schedule_.after.empty();
    POET_CHECK_AS(ScheduleError,
                  empty || (schedule_.before.size() == ops + 1 && schedule_.after.size() == ops),
                  "schedule: expected ", ops + 1, " lists of actions before and ", ops,
                  " after the ops, got ", schedule_.before.size(), " and ", schedule_.after.size());
  }

  void checkRecipe(size_t r) const {
    for (OpId op : schedule_.recipes[r]) {
      POET_CHECK_AS(ScheduleError, op.valid() && op.index < graph_.numOps(), "schedule: recipes[",
                    r, "]: expected op indices in [0, ", graph_.numOps(), "), got ", op.index);
    }
  }

  void checkActions(const char* when, size_t k, const std::vector<Action>& actions) const {
    for (const Action& action : actions) {
      POET_CHECK_AS(ScheduleError, action.kind <= ActionKind::kPageIn, "schedule: ", when, "[", k,
                    "]: there is no action of number ", static_cast<int>(action.kind));
      const bool recompute = action.kind == ActionKind::kRecompute;
      const int64_t count =
          recompute ? static_cast<int64_t>(schedule_.recipes.size()) : graph_.numValues();
      POET_CHECK_AS(ScheduleError, action.arg >= 0 && action.arg < count, "schedule: ", when, "[",
                    k, "]: ", toString(action.kind), ": expected a ",
                    recompute ? "recipe" : "value", " index in [0, ", count, "), got ", action.arg);
    }
  }

  void checkAway(ValueId v, ValueId last) const {
    POET_CHECK_AS(ScheduleError, last < v,
                  "schedule: away_between_steps: expected ascending value indices, got ",
                  last.index, " before ", v.index);
    POET_CHECK_AS(ScheduleError, v.valid() && v.index < graph_.numValues(),
                  "schedule: away_between_steps: expected value indices in [0, ",
                  graph_.numValues(), "), got ", v.index);
    const Value& value = graph_.value(v);
    POET_CHECK_AS(ScheduleError,
                  value.evictable && value.producer == kNoOp && value.death == graph_.endOfStep(),
                  "schedule: away_between_steps: value ", v.index,
                  " must be evictable, exist before the step and outlive it");
  }

  const Schedule& schedule_;
  const Graph& graph_;
};

}  // namespace

std::string_view toString(ActionKind kind) {
  switch (kind) {
    case ActionKind::kFree:
      return "free";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kRetain:
      return "retain";
    case ActionKind::kPageOut:
      return "page_out";
    case ActionKind::kPageIn:
      return "page_in";
  }
  return "?";
}

std::string_view toString(Status status) {
  switch (status) {
    case Status::kOptimal:
      return "optimal";
    case Status::kFeasible:
      return "feasible";
    case Status::kInfeasible:
      return "infeasible";
    case Status::kTimeLimit:
      return "time_limit";
  }
  return "?";
}

std::string_view toString(Objective objective) {
  switch (objective) {
    case Objective::kEnergy:
      return "energy";
    case Objective::kTime:
      return "time";
    case Objective::kMemory:
      return "memory";
  }
  return "?";
}

Objective objectiveFromString(std::string_view name) {
  for (Objective each : {Objective::kEnergy, Objective::kTime, Objective::kMemory}) {
    if (toString(each) == name) return each;
  }
  throw ArgumentError(
      detail::message("minimize: expected \"energy\", \"time\" or \"memory\", got \"", name, "\""));
}

double Schedule::objectiveValue() const {
  switch (objective) {
    case Objective::kEnergy:
      return energy_joules;
    case Objective::kTime:
      return makespan_seconds;
    case Objective::kMemory:
      return static_cast<double>(peak_bytes);
  }
  return std::numeric_limits<double>::quiet_NaN();
}

Schedule Schedule::besideMore(int64_t bytes) const {
  Schedule more = *this;
  more.peak_bytes += bytes;
  more.believed_peak_bytes += bytes;
  if (more.least_ram_budget) *more.least_ram_budget += bytes;
  if (least_plan) more.least_plan = std::make_shared<const Schedule>(least_plan->besideMore(bytes));
  if (objective != Objective::kMemory) return more;
  const auto add = [bytes](std::optional<double>& figure) {
    if (figure) *figure += static_cast<double>(bytes);
  };
  add(more.bound);
  add(more.bound_all);
  for (SearchPoint& point : more.history) {
    add(point.value);
    add(point.bound);
  }
  if (more.gap && more.bound && more.peak_bytes > 0)
    more.gap = 1 - *more.bound / static_cast<double>(more.peak_bytes);
  return more;
}

int64_t Schedule::countActions(ActionKind kind) const {
  int64_t count = 0;
  for (const auto* lists : {&before, &after}) {
    for (const auto& actions : *lists) {
      for (const Action& action : actions) count += action.kind == kind;
    }
  }
  return count;
}

void Schedule::checkAgainst(const Graph& graph) const {
  POET_CHECK_AS(ScheduleError, graph_signature == graph.signature(),
                "schedule: it was made for another graph: the "
                "schedule's signature is ",
                json::toHex(graph_signature), ", the graph's ", json::toHex(graph.signature()),
                ". Solve again for this graph.");
  POET_CHECK_AS(ScheduleError, num_ops == graph.numOps(), "schedule: it was made for a graph of ",
                num_ops, " ops, and this one has ", graph.numOps(),
                ". Solve again for this graph.");
  PlanCheck(*this, graph).run();
}

void Schedule::save(const std::string& path) const { writeFileAtomically(path, toJson()); }

Schedule Schedule::load(const std::string& path) {
  const std::string text = readFile(path);
  try {
    return fromJson(text);
  } catch (const FormatError& error) {
    throw FormatError(detail::message("'", path, "': ", error.what()));
  }
}

int64_t Schedule::ownBytes() const {
  return static_cast<int64_t>(sizeof(*this)) + heapBytes(before) + heapBytes(after) +
         heapBytes(recipes) + heapBytes(away_between_steps) + heapBytes(history) +
         heapBytes(message);
}

}  // namespace poet
