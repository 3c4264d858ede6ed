// What every method does at its end: a plan, through the simulator, into a Schedule.
#pragma once

#include <optional>
#include <string>

#include "planner/planner.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::methods {

// Problem and options must outlive it.
class FinishedPlan {
 public:
  FinishedPlan(const planner::Problem& problem, const SolveOptions& options, std::string method)
      : problem_(problem), options_(options), method_(std::move(method)) {}

  // Seconds that replays and transfers may take within the runtime budget; below 0 where plain
  // training is too slow.
  std::optional<double> replaySecondsLimit() const;

  // `bound_cost`: no plan of the method's class costs less, in seconds of plain computation
  // (Replay::cost), -infinity where nothing is known. Replays that nothing reads are dropped. Where
  // the simulator finds the plan outside the budgets (the solver's tolerance), there is no plan.
  // `start`: the phase that found it (Schedule::start), of methods with several.
  Schedule with(planner::ReplayPlan plan, double bound_cost, double solve_seconds,
                const std::string& start = {}) const;
  Schedule without(Status status, const std::string& message, double solve_seconds) const;

 private:
  double inUnit(double seconds) const;

  const planner::Problem& problem_;
  const SolveOptions& options_;
  const std::string method_;
};

}  // namespace poet::methods
