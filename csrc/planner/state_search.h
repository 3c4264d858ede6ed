// The last word on tiny graphs: shortest paths over (next op, resident values, kept generator
// states), with every order and every repetition of replays.
//
// It closes what the relaxed program leaves open (Note [Bounds for every schedule]), and gives up
// where there are too many states. O(states x (values + replays)).
#pragma once

#include <cstdint>
#include <optional>

#include "planner/clock.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct StateSearchResult {
  bool complete = false;           // every state that matters was seen
  std::optional<ReplayPlan> plan;  // of least cost; none (and complete): there is no plan
};

// Plans within the budget that cost at most `most_cost`. The problem must be exact, and wake-ups
// cost nothing.
StateSearchResult searchStates(const Problem& problem, int64_t budget_bytes, double most_cost,
                               const Deadline& deadline);

}  // namespace poet::planner
