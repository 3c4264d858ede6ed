// The outline of a solve: plain training, the floor, then a proof for small graphs or a search for
// large ones.
#include <algorithm>
#include <cmath>
#include <string>

#include "graph/error.h"
#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/exact.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/planner.h"
#include "planner/search.h"
#include "schedule/simulator.h"

namespace poet {
namespace planner {
namespace {

// Of the time limit: then the search for a cheap plan gives way to one for any plan.
constexpr double kShareWithoutPlan = 0.4;

class SolveRun {
 public:
  SolveRun(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
           const IncumbentCallback& on_incumbent)
      : graph_(graph),
        profile_(profile),
        options_(options),
        deadline_(options.time_limit_seconds),
        plain_(simulatePlain(graph, profile)),
        table_(graph),
        problem_(
            graph, table_, profile,
            {.small_bytes = ProblemOptions::defaultSmallBytes(plain_.peak_bytes), .lean = false}),
        best_(graph, profile, options, on_incumbent) {}

  Schedule run() {
    Schedule schedule = plan();
    schedule.solve_seconds = deadline_.elapsed();
    return schedule;
  }

 private:
  Schedule plan() {
    if (options_.runtime_budget_seconds &&
        plain_.makespan_seconds > *options_.runtime_budget_seconds * (1 + kSecondsTolerance)) {
      return tooSlow();
    }
    if (plain_.peak_bytes <= options_.ram_budget_bytes) {
      best_.offer(problem_, emptyPlan());
      if (options_.minimize != Objective::kMemory)
        return best_.finished(plain_.makespan_seconds, "all");
    }
    const bool small =
        problem_.exact && countCandidates(allCandidates(problem_, 1)) <= kMostExactCandidates;
    return small ? solveSmall() : solveLarge();
  }

  // ---- small graphs: proofs
  // ---------------------------------------------------------------------------------------
  Schedule solveSmall() {
    if (options_.minimize == Objective::kMemory) {
      const ExactPeak peak = leastPeak(problem_, exactOptions());
      if (peak.plan) best_.offer(problem_, *peak.plan);
      if (!best_.any()) return withoutPlan(peak);
      return best_.finished(static_cast<double>(peak.bound_bytes), "all");
    }
    if (problem_.floor_bytes <= options_.ram_budget_bytes) {
      const ExactPlan found = leastSeconds(problem_, options_.ram_budget_bytes, exactOptions());
      if (found.plan) best_.offer(problem_, *found.plan);
      if (best_.any()) return best_.finished(plain_.makespan_seconds + found.bound_seconds, "all");
      if (!found.infeasible) return withoutPlan(ExactPeak{});
    }
    return withoutPlan(leastPeak(problem_, exactOptions()));
  }

  ExactOptions exactOptions() const {
    return {.time_limit_seconds = deadline_.left(),
            .replay_seconds_limit = replayLimit(),
            .threads = options_.threads};
  }

  // No plan within the budget: infeasible where the least peak that any schedule needs lies above
  // it.
  Schedule withoutPlan(const ExactPeak& peak) {
    Schedule schedule = emptySchedule(graph_, options_);
    if (peak.plan && peak.peak_bytes <= options_.ram_budget_bytes) {
      best_.offer(problem_, *peak.plan);
      return best_.finished(plain_.makespan_seconds, "all");
    }
    if (peak.infeasible || peak.bound_bytes > options_.ram_budget_bytes)
      schedule.status = Status::kInfeasible;
    if (peak.plan) setLeast(schedule, *peak.plan, peak.peak_bytes, peak.proven);
    return schedule;
  }

  // ---- large graphs: search
  // ---------------------------------------------------------------------------------------
  Schedule solveLarge() {
    floor_ = problem_.exact ? Floor{problem_.floor_bytes, problem_.floor_op} : exactFloor();
    if (options_.minimize == Objective::kMemory) {
      const SearchOutcome outcome = searchLeastPeak(0);
      return best_.any() ? best_.finished(static_cast<double>(floor_.bytes), "all")
                         : withoutPlan(outcome);
    }
    if (floor_.bytes > options_.ram_budget_bytes) return withoutPlan(searchLeastPeak(0));
    SearchOutcome outcome = searchLeastSeconds({}, kShareWithoutPlan * options_.time_limit_seconds);
    if (!best_.any()) {
      outcome = searchLeastPeak(options_.ram_budget_bytes);
      if (outcome.closest_peak_bytes > options_.ram_budget_bytes) return withoutPlan(outcome);
      outcome = searchLeastSeconds({outcome.closest}, options_.time_limit_seconds);
    }
    best_.setBound(plain_.makespan_seconds, "all");
    return best_.finished(plain_.makespan_seconds + outcome.bound_seconds, "candidates");
  }

  SearchOutcome searchLeastSeconds(const std::vector<ReplayPlan>& starts,
                                   double seconds_without_plan) {
    return searchPlan(
        problem_,
        {.budget_bytes = options_.ram_budget_bytes, .replay_seconds_limit = replayLimit()},
        limits(seconds_without_plan), starts, [&](const ReplayPlan& plan, double bound_seconds) {
          best_.setBound(plain_.makespan_seconds + bound_seconds, "candidates");
          best_.offer(problem_, plan);
        });
  }

  // Always the same search, whatever the budget is: a budget at the least that was reported finds
  // its plan again.
  SearchOutcome searchLeastPeak(int64_t enough_bytes) {
    return searchPlan(problem_,
                      {.budget_bytes = problem_.floor_bytes,
                       .replay_seconds_limit = replayLimit(),
                       .least_peak = true,
                       .enough_bytes = enough_bytes},
                      limits(options_.time_limit_seconds), {},
                      [&](const ReplayPlan& plan, double) { best_.offer(problem_, plan); });
  }

  SearchLimits limits(double seconds_without_plan) const {
    return {.time_limit_seconds = deadline_.left(),
            .seconds_without_plan = seconds_without_plan,
            .threads = options_.threads};
  }

  // Of the problem in which nothing is too small to be a choice: below it there is no plan at all.
  struct Floor {
    int64_t bytes = 0;
    OpId op;
  };
  Floor exactFloor() const {
    const Problem every(graph_, table_, profile_, {.small_bytes = 0});
    return {every.floor_bytes, every.floor_op};
  }

  Schedule withoutPlan(const SearchOutcome& outcome) {
    Schedule schedule = emptySchedule(graph_, options_);
    const bool proven = outcome.closest_peak_bytes <= floor_.bytes;
    if (floor_.bytes > options_.ram_budget_bytes) schedule.status = Status::kInfeasible;
    setLeast(schedule, outcome.closest, outcome.closest_peak_bytes, proven);
    return schedule;
  }

  // ---- outcomes without a plan
  // ------------------------------------------------------------------------------------
  Schedule tooSlow() {
    Schedule schedule = emptySchedule(graph_, options_);
    schedule.status = Status::kInfeasible;
    schedule.message = detail::message("runtime_budget of ", *options_.runtime_budget_seconds,
                                       " s cannot be met: plain training alone takes ",
                                       plain_.makespan_seconds, " s");
    return schedule;
  }

  void setLeast(Schedule& schedule, const ReplayPlan& plan, int64_t peak_bytes, bool proven) {
    schedule.least_ram_budget = peak_bytes;
    schedule.least_ram_op = best_.simulated(problem_, plan).peak_op;
    const char* deadline = options_.runtime_budget_seconds ? " within the runtime budget" : "";
    schedule.message = detail::message(
        "ram_budget of ", options_.ram_budget_bytes, " bytes cannot be met", deadline, ": ",
        proven ? "the least that any schedule needs is " : "the least found so far is ", peak_bytes,
        " bytes, at op ", schedule.least_ram_op.index, name(schedule.least_ram_op));
  }

  std::string name(OpId op) const {
    return op.valid() && op < graph_.endOfStep() ? " (" + graph_.op(op).name + ")" : "";
  }

  std::optional<double> replayLimit() const {
    if (!options_.runtime_budget_seconds) return std::nullopt;
    return std::max(0.0, *options_.runtime_budget_seconds - plain_.makespan_seconds);
  }

  ReplayPlan emptyPlan() const {
    ReplayPlan plan;
    plan.by_stage.resize(problem_.stages.size());
    return plan;
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const Deadline deadline_;
  const SimulationResult plain_;
  const RecipeTable table_;
  const Problem problem_;
  Floor floor_;
  Incumbent best_;
};

}  // namespace
}  // namespace planner

Schedule solve(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
               const IncumbentCallback& on_incumbent) {
  planner::checkOptions(options);
  return planner::SolveRun(graph, profile, options, on_incumbent).run();
}

}  // namespace poet
