#include "methods/moccasin.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/json_reader.h"
#include "methods/child_process.h"
#include "methods/finished_plan.h"
#include "methods/moccasin_child.h"
#include "planner/clock.h"
#include "planner/options.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

using json::Json;
using planner::Deadline;
using planner::Evictable;
using planner::Problem;
using planner::Replay;
using planner::ReplayPlan;
using planner::Stage;

// CP-SAT counts in integers. Above these its sums of bytes x events come near to 2^63.
constexpr int64_t kMostCapacity = int64_t{1} << 24;
constexpr double kCostUnits = 1e9;  // of the plain step
// Past its time limit the child gets this long for its answer before it is killed. CP-SAT looks at
// the clock often enough; building its program for a large step does not, and then there is none.
constexpr double kGraceSeconds = 0.5;
constexpr int kNoOrtools = 3;  // the child's exit status
constexpr size_t kLongestReason = 2000;

// The request to the child, in its units.
class Request {
 public:
  Request(const Problem& problem, const SolveOptions& options, int64_t plain_peak_bytes)
      : problem_(problem),
        options_(options),
        plain_peak_bytes_(plain_peak_bytes),
        unit_((options.ram_budget_bytes + kMostCapacity - 1) / kMostCapacity) {}

  // Costs and seconds of one recipe in the child's units; costs down, so that its bound holds.
  double costUnit() const {
    return kCostUnits / (problem_.plain_seconds > 0 ? problem_.plain_seconds : 1);
  }

  Json make(const std::optional<double>& seconds_limit, int intervals, double time_limit) const {
    Json json = {{"stages", problem_.numStages()},
                 {"width", problem_.replays.size() + 1},
                 {"capacity", options_.ram_budget_bytes / unit_},
                 // Rounding up makes even plain training look larger.
                 {"plain_peak", units(plain_peak_bytes_) + problem_.numValues() + 2},
                 {"generator", units(problem_.generator_bytes)},
                 {"values", Json::array()},
                 {"recipes", Json::array()},
                 {"fixed", fixed()},
                 {"seconds_limit", nullptr},
                 {"intervals", intervals},
                 {"threads", options_.threads},
                 {"time_limit", time_limit}};
    if (seconds_limit)
      json["seconds_limit"] = static_cast<int64_t>(std::floor(*seconds_limit * costUnit()));
    for (const Evictable& value : problem_.values) json["values"].push_back(describe(value));
    for (size_t r = 0; r < problem_.replays.size(); ++r) json["recipes"].push_back(describe(r));
    return json;
  }

 private:
  int64_t units(int64_t bytes) const { return (bytes + unit_ - 1) / unit_; }

  Json describe(const Evictable& value) const {
    return {{"bytes", units(value.bytes)},
            {"recipe", value.recipe},
            {"pin", value.pin_stage},
            {"uses", value.use_stages}};
  }

  Json describe(size_t r) const {
    const Replay& replay = problem_.replays[r];
    int64_t made = 0;
    for (const int v : replay.outputs) made += problem_.values[static_cast<size_t>(v)].bytes;
    const auto& first = problem_.values[static_cast<size_t>(replay.outputs.front())];
    return {
        {"place", r},
        {"made", first.first_stage},
        {"first", replay.last_stage + 1},
        {"last", std::min(replay.until_stage, problem_.endStage())},
        {"cost", static_cast<int64_t>(std::floor(replay.cost * costUnit()))},
        {"seconds", static_cast<int64_t>(std::ceil(replay.seconds * costUnit()))},
        {"workspace", units(replay.replay_bytes - made)},
        {"inputs", replay.inputs},
        {"generators", problem_.generator_bytes > 0 ? replay.random_stages : std::vector<int>()}};
  }

  // What is resident whatever the plan: [first event, last event, bytes], equal neighbours merged.
  Json fixed() const {
    const auto width = static_cast<int64_t>(problem_.replays.size()) + 1;
    Json spans = Json::array();
    const auto add = [&](int64_t first, int64_t last, int64_t bytes) {
      const int64_t held = units(bytes);
      if (first > last || held == 0) return;
      if (!spans.empty() && spans.back()[2] == held && spans.back()[1] == first - 1) {
        spans.back()[1] = last;
      } else {
        spans.push_back({first, last, held});
      }
    };
    for (int64_t t = 0; t < problem_.numStages(); ++t) {
      const Stage& stage = problem_.stages[static_cast<size_t>(t)];
      int64_t born = 0;
      for (const int v : stage.born) born += problem_.values[static_cast<size_t>(v)].bytes;
      add(t * width, t * width + width - 2, stage.fixed_before_bytes);
      add(t * width + width - 1, t * width + width - 1, stage.fixed_during_bytes - born);
    }
    return spans;
  }

  const Problem& problem_;
  const SolveOptions& options_;
  const int64_t plain_peak_bytes_;
  const int64_t unit_;  // bytes
};

std::string lastLine(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "it said nothing";
  const size_t begin = text.rfind('\n', end);
  return text.substr(begin == std::string::npos ? 0 : begin + 1, end - begin)
      .substr(0, kLongestReason);
}

std::string ask(const Json& request, const MoccasinOptions& moccasin, double limit_seconds) {
  const methods::ChildResult child =
      methods::runChild({moccasin.python, "-c", methods::kMoccasinChild}, request.dump(),
                        limit_seconds + kGraceSeconds);
  POET_CHECK_AS(Error, child.started, "method \"moccasin\": expected a Python interpreter, got \"",
                moccasin.python, "\", which cannot be started");
  POET_CHECK_AS(Error, child.exit_code != kNoOrtools, "method \"moccasin\": the interpreter \"",
                moccasin.python, "\" has no ortools (", lastLine(child.err),
                "). Install it (pip install ortools), or name another interpreter.");
  if (child.timed_out) return {};
  POET_CHECK_AS(Error, child.exit_code == 0, "method \"moccasin\": its process ended with status ",
                child.exit_code, ": ", lastLine(child.err));
  return child.out;
}

// In a stage recipes run in the order of their places.
ReplayPlan planOf(const Problem& problem, const Json::array_t& replays) {
  ReplayPlan plan;
  plan.by_stage.resize(problem.stages.size());
  for (const Json& pair : replays) {
    const auto& numbers = json::asList(pair, "answer.replays");
    POET_CHECK_AS(FormatError, numbers.size() == 2, "answer.replays: expected pairs");
    const int64_t t = json::asInteger(numbers[0], "answer.replays", 0, problem.endStage());
    const int64_t r = json::asInteger(numbers[1], "answer.replays", 0,
                                      static_cast<int64_t>(problem.replays.size()) - 1);
    POET_CHECK_AS(FormatError, problem.runnable(static_cast<int>(r), static_cast<int>(t)),
                  "answer.replays: recipe ", r, " cannot run in stage ", t);
    plan.by_stage[static_cast<size_t>(t)].push_back(static_cast<int>(r));
  }
  for (auto& stage : plan.by_stage) std::sort(stage.begin(), stage.end());
  return plan;
}

}  // namespace

Schedule solveMoccasin(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, const MoccasinOptions& moccasin) {
  planner::checkOptions(options);
  POET_CHECK(options.minimize != Objective::kMemory,
             "minimize: expected \"energy\" or \"time\" with the method \"moccasin\", got "
             "\"memory\"; the method \"poet\" has it");
  POET_CHECK(moccasin.retention_intervals >= 1, "retention_intervals: expected at least 1, got ",
             moccasin.retention_intervals);
  const Deadline deadline(options.time_limit_seconds);
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile,
                        {.objective = options.minimize, .recompute = options.recompute});
  const methods::FinishedPlan finished(problem, options, "moccasin");
  if (problem.values.empty()) {  // nothing to decide, and no program without a value
    ReplayPlan plain;
    plain.by_stage.resize(problem.stages.size());
    return finished.with(plain, 0, deadline.elapsed());
  }
  const Request request(problem, options, simulatePlain(graph, profile).peak_bytes);
  const std::string text = ask(
      request.make(finished.replaySecondsLimit(), moccasin.retention_intervals, deadline.left()),
      moccasin, deadline.left());
  if (text.empty()) {
    return finished.without(Status::kTimeLimit, "CP-SAT overran its time limit and was ended",
                            deadline.elapsed());
  }
  const Json answer = json::parse(text, "answer");
  json::ObjectReader in(answer, "answer");
  const std::string status = in.text("status");
  if (status == "infeasible") {
    return finished.without(
        Status::kInfeasible,
        detail::message("no schedule with at most ", moccasin.retention_intervals,
                        " retention intervals a value keeps the budgets"),
        deadline.elapsed());
  }
  if (status != "solved") {
    return finished.without(Status::kTimeLimit, "CP-SAT found no solution in time",
                            deadline.elapsed());
  }
  return finished.with(planOf(problem, json::asList(in.require("replays"), in.path("replays"))),
                       in.number("bound") / request.costUnit(), deadline.elapsed(),
                       in.text("phase"));
}

}  // namespace poet
