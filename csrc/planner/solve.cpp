#include <algorithm>
#include <chrono>
#include <cmath>

#include "graph/error.h"
#include "planner/extract.h"
#include "planner/greedy.h"
#include "planner/planner.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"

namespace poet {
namespace planner {
namespace {

void checkOptions(const SolveOptions& options) {
  POET_CHECK(options.ram_budget_bytes > 0, "ram_budget must be a positive number of bytes, got ",
             options.ram_budget_bytes);
  if (options.runtime_budget_seconds) {
    POET_CHECK(std::isfinite(*options.runtime_budget_seconds) && *options.runtime_budget_seconds > 0,
               "runtime_budget must be a positive number of seconds, got ", *options.runtime_budget_seconds);
  }
  POET_CHECK(std::isfinite(options.time_limit_seconds) && options.time_limit_seconds > 0,
             "time_limit_s must be a positive number of seconds, got ", options.time_limit_seconds);
  POET_CHECK(options.threads >= 1, "solve_threads must be at least 1, got ", options.threads);
}

class Solve {
 public:
  Solve(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options, const IncumbentCallback& callback)
      : graph_(graph), profile_(profile), options_(options), callback_(callback) {}

  Schedule run() {
    const SimulationResult plain = simulatePlain(graph_, profile_);
    const RecipeTable table(graph_);
    const int64_t small = ProblemOptions::defaultSmallBytes(plain.peak_bytes);
    const Problem problem(graph_, table, profile_, {.small_bytes = small, .lean = graph_.numOps() > 400});
    ReplayPlan best;
    best.by_stage.resize(problem.stages.size());
    if (plain.peak_bytes > options_.ram_budget_bytes) {
      double cost = -1;
      for (const double exponent : {1.0, 0.5, 0.2, 2.0}) {
        const auto plan = greedyPlan(problem, {.budget_bytes = options_.ram_budget_bytes, .distance_exponent = exponent});
        if (!plan) continue;
        const Timeline timeline = makeTimeline(problem, *plan);
        if (timeline.peak_bytes > options_.ram_budget_bytes) continue;
        if (cost < 0 || timeline.replay_seconds < cost) {
          cost = timeline.replay_seconds;
          best = *plan;
        }
      }
      if (cost < 0) {
        Schedule none;
        none.message = "no plan found";
        return none;
      }
    }
    Schedule schedule = toSchedule(problem, best);
    schedule.status = Status::kFeasible;
    if (callback_) callback_(schedule);
    return schedule;
  }

 private:
  Schedule toSchedule(const Problem& problem, const ReplayPlan& plan) {
    Schedule schedule;
    schedule.graph_signature = graph_.signature();
    schedule.num_ops = graph_.numOps();
    schedule.objective = options_.minimize;
    schedule.ram_budget_bytes = options_.ram_budget_bytes;
    schedule.runtime_budget_seconds = options_.runtime_budget_seconds;
    writeActions(problem, plan, schedule);
    schedule.status = Status::kFeasible;
    finalize(graph_, profile_, schedule);
    return schedule;
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const IncumbentCallback& callback_;
};

}  // namespace
}  // namespace planner

Schedule solve(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
               const IncumbentCallback& on_incumbent) {
  planner::checkOptions(options);
  return planner::Solve(graph, profile, options, on_incumbent).run();
}

}  // namespace poet
