// PlanChoice: the best of a method's plans, where it has several, and what it needs at least.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "methods/finished_plan.h"
#include "planner/clock.h"
#include "planner/planner.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::methods {

// Problem, profile and options must outlive it.
class PlanChoice {
 public:
  PlanChoice(const planner::Problem& problem, const SolveOptions& options, std::string method);

  // Simulates the plan; keeps it where it lies within the budgets and costs less than the best so
  // far. Returns its peak. `note`: the message of its schedule.
  int64_t offer(const planner::ReplayPlan& plan, std::string note = {});

  bool any() const { return best_.has_value(); }
  const planner::Deadline& deadline() const { return deadline_; }

  // The best plan; without one "infeasible", with the least budget of all that were offered.
  // `what_it_is`: of the message, "its one plan", "the least of its plans".
  Schedule finish(const std::string& what_it_is) const;
  Schedule without(Status status, const std::string& message) const;

 private:
  struct Plan {
    planner::ReplayPlan plan;
    std::string note;
    int64_t peak_bytes = 0;
    OpId peak_op;
    double seconds = 0;
    double value = 0;  // in the objective's unit
  };

  const planner::Problem& problem_;
  const SolveOptions& options_;
  const FinishedPlan finished_;
  const planner::Deadline deadline_;
  std::optional<Plan> best_, smallest_;
  std::optional<double> least_seconds_;  // of those within the memory budget
};

}  // namespace poet::methods
