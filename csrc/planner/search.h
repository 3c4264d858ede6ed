// Large steps: greedy start, annealing, and windows of the program solved exactly, in turns while
// they pay.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "planner/clock.h"
#include "planner/plan_source.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"
#include "planner/solver_choice.h"

namespace poet::planner {

struct SearchGoal {
  int64_t budget_bytes = 0;
  std::optional<double> replay_seconds_limit;
  // Least peak instead of least seconds: the budget is then the floor that no plan can go below,
  // and a peak of enough_bytes ends the search.
  bool least_peak = false;
  int64_t enough_bytes = 0;
};

struct SearchOutcome {
  std::optional<ReplayPlan> best;  // keeps the budget (least_peak: the deadline)
  int64_t best_peak_bytes = 0;
  double best_cost = 0;  // in the objective, in seconds of plain computation
  ReplayPlan closest;    // least peak seen within the deadline, whether it keeps the budget or not
  int64_t closest_peak_bytes = 0;
  double bound_cost = 0;  // lower bound over the candidates of the program, likewise
};

struct SearchLimits {
  double time_limit_seconds = 60;
  // Gives up after this long without any plan that keeps the budget.
  double seconds_without_plan = 60;
  // run() ends where the best plan is so close to the bound over its candidates, of the plain
  // step's seconds and the plan's cost; goOn() does not.
  double enough_gap = 0;
  bool bound_first = false;  // relaxes before it anneals: a short search has a bound, too
  int threads = 1;
  SolverChoice solver = {};
};

// Hears of every better plan.
// True: nothing better is wanted, the search may end.
using PlanCallback = std::function<bool(const ReplayPlan&, PlanSource, double bound_cost)>;

// A search that can be interrupted, for a bound over every schedule say, and goes on where it
// stood.
class PlanSearch {
 public:
  // `problem` must outlive it.
  PlanSearch(const Problem& problem, const SearchGoal& goal, const SearchLimits& limits,
             const PlanCallback& on_better);
  ~PlanSearch();
  PlanSearch(const PlanSearch&) = delete;
  PlanSearch& operator=(const PlanSearch&) = delete;

  // `source`: where the starts come from.
  SearchOutcome run(const std::vector<ReplayPlan>& starts, PlanSource source = PlanSource::kGiven);
  // For so long; `start`: the best plan by now, wherever it comes from.
  SearchOutcome goOn(const ReplayPlan& start, PlanSource source, double time_limit_seconds);
  // One walk from a plan of a proof, which costs little and may exceed the budget.
  void walkFrom(const ReplayPlan& plan, double time_limit_seconds);

 private:
  class Turns;
  std::unique_ptr<Turns> turns_;
};

}  // namespace poet::planner
