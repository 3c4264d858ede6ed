// Plans for the tightest budgets: what is missing comes back one value after the other, each with
// all that it needs in turn, and only the inputs of replays that have begun are locked meanwhile.
//
// Source: DTR brings values back in this order (Kirisame et al., ICLR 2021, section 3.1). Here the
// step is known: what nothing asks for any more goes at once, what can never come back stays as
// long as something that is missing needs it, and what goes first is what is cheap to bring back
// for its bytes and the time until it is asked for. Weakness: replays, many more than the greedy of
// greedy.h takes where both have a plan.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct DepthFirstOptions {
  int64_t budget_bytes = 0;
  double distance_exponent = 1;
  // What a stage or a replay reads is locked before any of it comes back: else it may leave for
  // what comes back first, and come back itself after it.
  bool locks_first = true;
  double time_limit_seconds = std::numeric_limits<double>::infinity();
};

// Nullopt where it finds no way at some stage, or not in time. Replays of a stage stand in the
// order in which they run, and one may stand there more than once.
std::optional<ReplayPlan> depthFirstPlan(const Problem& problem, const DepthFirstOptions& options);

// The first that one of the ways to choose what leaves comes to.
std::optional<ReplayPlan> anyDepthFirstPlan(const Problem& problem, int64_t budget_bytes,
                                            double time_limit_seconds);

// Ever smaller budgets, from below `most_bytes`: halfway between the least that a plan was found
// for and one that has none, down to `floor_bytes`. Nullopt where none is below `most_bytes`.
std::optional<ReplayPlan> leastDepthFirstPlan(const Problem& problem, int64_t floor_bytes,
                                              int64_t most_bytes, double time_limit_seconds);

}  // namespace poet::planner
