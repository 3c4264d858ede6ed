// Schedule <-> JSON. The plan is one flat list of actions, one a line, with the ops of a recompute
// spelled out, so that a person can read it beside the graph. See Note [Reading hostile files].
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <map>
#include <utility>

#include "graph/error.h"
#include "graph/json_reader.h"
#include "schedule/schedule.h"

namespace poet {
namespace {

using json::Json;
using json::ObjectReader;
using json::OrderedJson;

constexpr std::string_view kFormat = "poet-schedule";

// Writes everything but the plan as the lines of one object.
class HeadWriter {
 public:
  void put(const char* key, const OrderedJson& value) { putText(key, json::dump(value)); }
  void putText(const char* key, const std::string& value) {
    text_ += detail::message(text_.empty() ? "" : ",\n", '"', key, "\": ", value);
  }
  // JSON has no infinity and no NaN.
  void putNumber(const char* key, double number) {
    POET_CHECK_AS(ScheduleError, std::isfinite(number), "schedule: ", key,
                  ": expected a finite number, got ", number);
    put(key, number);
  }
  void putIfAny(const char* key, const std::optional<double>& number) {
    if (number) putNumber(key, *number);
  }
  void putIfAny(const char* key, const std::optional<int64_t>& number) {
    if (number) put(key, *number);
  }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

OrderedJson toJson(const SearchPoint& point) {
  const auto finite = [](double number) {
    POET_CHECK_AS(ScheduleError, std::isfinite(number),
                  "schedule: history: expected finite numbers, got ", number);
    return number;
  };
  OrderedJson object = {{"seconds", finite(point.seconds)}};
  if (point.value) object["value"] = finite(*point.value);
  if (point.bound) object["bound"] = finite(*point.bound);
  return object;
}

std::string headToJson(const Schedule& schedule) {
  HeadWriter out;
  out.put("format", kFormat);
  out.put("version", Schedule::kFormatVersion);
  out.put("graph_signature", json::toHex(schedule.graph_signature));
  out.put("num_ops", schedule.num_ops);
  out.put("method", schedule.method);
  out.put("status", toString(schedule.status));
  out.put("objective", toString(schedule.objective));
  out.putIfAny("ram_budget_bytes", schedule.ram_budget_bytes);
  out.putIfAny("runtime_budget_seconds", schedule.runtime_budget_seconds);
  out.putIfAny("energy_budget_joules", schedule.energy_budget_joules);
  out.put("peak_bytes", schedule.peak_bytes);
  out.put("peak_op", schedule.peak_op.index);
  out.putNumber("makespan_seconds", schedule.makespan_seconds);
  out.putNumber("energy_joules", schedule.energy_joules);
  out.putIfAny("bound", schedule.bound);
  out.putIfAny("gap", schedule.gap);
  out.put("bound_scope", schedule.bound_scope);
  out.putIfAny("bound_all", schedule.bound_all);
  out.put("believed_peak_bytes", schedule.believed_peak_bytes);
  out.putNumber("believed_seconds", schedule.believed_seconds);
  out.putNumber("solve_seconds", schedule.solve_seconds);
  out.putIfAny("least_ram_budget", schedule.least_ram_budget);
  out.put("least_ram_op", schedule.least_ram_op.index);
  out.putIfAny("least_energy_joules", schedule.least_energy_joules);
  out.put("message", schedule.message);
  if (!schedule.start.empty()) out.put("start", schedule.start);
  if (!schedule.history.empty()) {
    OrderedJson points = OrderedJson::array();
    for (const SearchPoint& point : schedule.history) points.push_back(toJson(point));
    out.put("history", points);
  }
  if (!schedule.away_between_steps.empty()) {
    OrderedJson values = OrderedJson::array();
    for (const ValueId v : schedule.away_between_steps) values.push_back(v.index);
    out.put("away_between_steps", values);
  }
  if (schedule.least_plan) out.putText("least_plan", schedule.least_plan->toJson());
  return out.take();
}

// What is wrong with the ops of a recompute, or nothing.
std::string problemWith(const std::vector<OpId>& ops) {
  if (ops.empty()) return "expected at least one op";
  for (size_t i = 1; i < ops.size(); ++i) {
    if (ops[i - 1] < ops[i]) continue;
    return detail::message("expected ascending ops, got ", ops[i - 1].index, " before ",
                           ops[i].index);
  }
  return {};
}

OrderedJson toJson(const Schedule& schedule, const Action& action, int64_t at, const char* when) {
  OrderedJson object = {{"at", at}, {"when", when}, {"do", toString(action.kind)}};
  if (action.kind != ActionKind::kRecompute) {
    POET_CHECK_AS(ScheduleError, action.arg >= 0, "schedule: ", when, "[", at,
                  "]: ", toString(action.kind), ": expected a value index, got ", action.arg);
    object["value"] = action.arg;
    return object;
  }
  POET_CHECK_AS(ScheduleError,
                action.arg >= 0 && static_cast<size_t>(action.arg) < schedule.recipes.size(),
                "schedule: ", when, "[", at, "]: recompute: expected a recipe index in [0, ",
                schedule.recipes.size(), "), got ", action.arg);
  const auto& ops = schedule.recipes[static_cast<size_t>(action.arg)];
  const std::string problem = problemWith(ops);
  POET_CHECK_AS(ScheduleError, problem.empty(), "schedule: recipes[", action.arg, "]: ", problem);
  POET_CHECK_AS(ScheduleError, ops.front().valid() && ops.back().index < schedule.num_ops,
                "schedule: recipes[", action.arg, "]: expected op indices in [0, ",
                schedule.num_ops, ")");
  auto& list = object["ops"] = OrderedJson::array();
  for (OpId op : ops) list.push_back(op.index);
  return object;
}

std::string planToJson(const Schedule& schedule) {
  std::string text;
  const auto put = [&](const std::vector<Action>& actions, size_t at, const char* when) {
    for (const Action& action : actions) {
      text += text.empty() ? "\n  " : ",\n  ";
      text += json::dump(toJson(schedule, action, static_cast<int64_t>(at), when));
    }
  };
  for (size_t k = 0; k < schedule.before.size(); ++k) {
    put(schedule.before[k], k, "before");
    if (k < schedule.after.size()) put(schedule.after[k], k, "after");
  }
  return text.empty() ? "[]" : "[" + text + "\n]";
}

template <class Enum>
Enum parseEnum(const std::string& name, std::initializer_list<Enum> known,
               const std::string& where) {
  std::string names;
  for (Enum each : known) {
    if (toString(each) == name) return each;
    names += detail::message(names.empty() ? "" : ", ", '"', toString(each), '"');
  }
  throw FormatError(
      detail::message(where, ": expected one of ", names, ", got \"", name.substr(0, 40), "\""));
}

// Reads the list of actions into a schedule that knows num_ops and status.
class PlanReader {
 public:
  explicit PlanReader(Schedule* schedule) : schedule_(*schedule) {}

  void read(const Json::array_t& actions) {
    if (!schedule_.hasPlan()) {
      POET_CHECK_AS(FormatError, actions.empty(), "schedule: actions: expected none with status \"",
                    toString(schedule_.status), "\", got ", actions.size());
      return;
    }
    schedule_.before.resize(static_cast<size_t>(schedule_.num_ops) + 1);
    schedule_.after.resize(static_cast<size_t>(schedule_.num_ops));
    for (size_t i = 0; i < actions.size(); ++i) readAction(actions[i], i);
  }

 private:
  void readAction(const Json& json, size_t index) {
    ObjectReader in(json, detail::message("schedule: actions[", index, "]"));
    const std::string when = in.text("when");
    POET_CHECK_AS(FormatError, when == "before" || when == "after", in.path("when"),
                  ": expected \"before\" or \"after\", got \"", when.substr(0, 40), "\"");
    auto& lists = when == "before" ? schedule_.before : schedule_.after;
    const auto at =
        static_cast<size_t>(in.integer("at", 0, static_cast<int64_t>(lists.size()) - 1));
    const std::string name = in.text("do");
    Action action;
    action.kind = parseEnum(name,
                            {ActionKind::kFree, ActionKind::kRecompute, ActionKind::kRetain,
                             ActionKind::kPageOut, ActionKind::kPageIn},
                            in.path("do"));
    action.arg =
        action.kind == ActionKind::kRecompute
            ? recipe(in)
            : static_cast<int32_t>(in.integer("value", 0, std::numeric_limits<int32_t>::max() - 1));
    in.finish();
    lists[at].push_back(action);
  }

  // Equal lists of ops share one entry of Schedule::recipes.
  int32_t recipe(ObjectReader& in) {
    in.require("ops");
    const auto ops = in.ids<OpId>("ops", schedule_.num_ops);
    const std::string problem = problemWith(ops);
    POET_CHECK_AS(FormatError, problem.empty(), in.path("ops"), ": ", problem);
    const auto [entry, is_new] =
        known_.try_emplace(ops, static_cast<int32_t>(schedule_.recipes.size()));
    if (is_new) schedule_.recipes.push_back(ops);
    return entry->second;
  }

  Schedule& schedule_;
  std::map<std::vector<OpId>, int32_t> known_;
};

double nonNegative(ObjectReader& in, const char* key) {
  const double number = in.number(key);
  POET_CHECK_AS(FormatError, number >= 0, in.path(key), ": expected a number >= 0, got ", number);
  return number;
}

std::optional<double> numberIfAny(ObjectReader& in, const char* key) {
  const Json* found = in.find(key);
  if (found == nullptr) return std::nullopt;
  return json::asNumber(*found, in.path(key));
}

std::optional<int64_t> bytesIfAny(ObjectReader& in, const char* key) {
  if (in.find(key) == nullptr) return std::nullopt;
  return in.integer(key, 0);
}

SearchPoint readSearchPoint(const Json& json, const std::string& where) {
  ObjectReader in(json, where);
  const SearchPoint point{.seconds = nonNegative(in, "seconds"),
                          .value = numberIfAny(in, "value"),
                          .bound = numberIfAny(in, "bound")};
  in.finish();
  return point;
}

Schedule readHead(ObjectReader& in) {
  Schedule s;
  in.require("format");
  in.require("version");
  s.graph_signature = in.hex("graph_signature");
  s.num_ops = in.integer("num_ops", 0, json::kMaxFileOps);
  s.method = in.text("method");
  s.status =
      parseEnum(in.text("status"),
                {Status::kOptimal, Status::kFeasible, Status::kInfeasible, Status::kTimeLimit},
                in.path("status"));
  s.objective =
      parseEnum(in.text("objective"), {Objective::kEnergy, Objective::kTime, Objective::kMemory},
                in.path("objective"));
  s.ram_budget_bytes = bytesIfAny(in, "ram_budget_bytes");
  s.runtime_budget_seconds = numberIfAny(in, "runtime_budget_seconds");
  s.energy_budget_joules = numberIfAny(in, "energy_budget_joules");
  s.peak_bytes = in.integer("peak_bytes", 0);
  s.peak_op = OpId(in.integer("peak_op", -1, s.num_ops));
  s.makespan_seconds = nonNegative(in, "makespan_seconds");
  s.energy_joules = nonNegative(in, "energy_joules");
  s.bound = numberIfAny(in, "bound");
  s.gap = numberIfAny(in, "gap");
  s.bound_scope = in.text("bound_scope");
  s.bound_all = numberIfAny(in, "bound_all");
  s.believed_peak_bytes = in.integer("believed_peak_bytes", 0);
  s.believed_seconds = nonNegative(in, "believed_seconds");
  s.solve_seconds = nonNegative(in, "solve_seconds");
  s.least_ram_budget = bytesIfAny(in, "least_ram_budget");
  s.least_ram_op = OpId(in.integer("least_ram_op", -1, s.num_ops));
  s.least_energy_joules = numberIfAny(in, "least_energy_joules");
  s.message = in.text("message");
  if (in.find("start") != nullptr) s.start = in.text("start");
  if (in.find("history") != nullptr) {
    const Json::array_t& points = json::asList(in.require("history"), in.path("history"));
    for (size_t i = 0; i < points.size(); ++i) {
      s.history.push_back(
          readSearchPoint(points[i], detail::message(in.path("history"), "[", i, "]")));
    }
  }
  if (in.find("away_between_steps") != nullptr) {
    s.away_between_steps =
        in.ids<ValueId>("away_between_steps", std::numeric_limits<int32_t>::max());
    POET_CHECK_AS(FormatError,
                  std::adjacent_find(s.away_between_steps.begin(), s.away_between_steps.end(),
                                     [](ValueId a, ValueId b) { return !(a < b); }) ==
                      s.away_between_steps.end(),
                  in.path("away_between_steps"), ": expected ascending value indices");
    POET_CHECK_AS(FormatError, s.hasPlan() || s.away_between_steps.empty(),
                  in.path("away_between_steps"), ": expected none without a plan");
  }
  return s;
}

Schedule readSchedule(const Json& document, const std::string& where);

// It is a plan, and has none of its own.
std::shared_ptr<const Schedule> readLeastPlan(ObjectReader& in, const Schedule& of) {
  const Json* document = in.find("least_plan");
  if (document == nullptr) return nullptr;
  const std::string where = in.path("least_plan");
  POET_CHECK_AS(FormatError, !of.hasPlan(), where, ": expected none beside a plan");
  POET_CHECK_AS(FormatError, document->is_object() && !document->contains("least_plan"), where,
                ": expected a plan");
  Schedule least = readSchedule(*document, where);
  POET_CHECK_AS(FormatError, least.hasPlan(), where, ": expected a plan");
  POET_CHECK_AS(FormatError,
                least.graph_signature == of.graph_signature && least.num_ops == of.num_ops, where,
                ": expected a plan of the same graph");
  return std::make_shared<const Schedule>(std::move(least));
}

Schedule readSchedule(const Json& document, const std::string& where) {
  json::checkHeader(document, kFormat, Schedule::kFormatVersion);
  ObjectReader in(document, where);
  Schedule schedule = readHead(in);
  schedule.least_plan = readLeastPlan(in, schedule);
  const auto& actions = json::asList(in.require("actions"), in.path("actions"));
  in.finish();
  PlanReader(&schedule).read(actions);
  return schedule;
}

}  // namespace

std::string Schedule::toJson() const {
  POET_CHECK_AS(ScheduleError, num_ops >= 0 && num_ops <= json::kMaxFileOps,
                "schedule: num_ops: expected [0, ", json::kMaxFileOps, "], got ", num_ops);
  const auto ops = static_cast<size_t>(num_ops);
  const bool empty = before.empty() && after.empty();
  POET_CHECK_AS(ScheduleError,
                empty || (hasPlan() && before.size() == ops + 1 && after.size() == ops),
                "schedule: expected ", ops + 1, " lists of actions before and ", ops,
                " after the ops with a plan and none without, got ", before.size(), " and ",
                after.size(), " with status \"", toString(status), "\"");
  return detail::message("{", headToJson(*this), ",\n\"actions\": ", planToJson(*this), "\n}\n");
}

Schedule Schedule::fromJson(std::string_view text) {
  return readSchedule(json::parse(text, "schedule"), "schedule");
}

}  // namespace poet
