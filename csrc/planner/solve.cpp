#include <algorithm>
#include <chrono>
#include <cmath>

#include "graph/error.h"
#include "planner/extract.h"
#include "planner/greedy.h"
#include "planner/options.h"
#include "planner/planner.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"

namespace poet {
namespace planner {
namespace {

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
        Schedule none = emptySchedule(graph_, options_);
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
    Schedule schedule = emptySchedule(graph_, options_);
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
