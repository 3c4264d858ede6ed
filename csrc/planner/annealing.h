// Simulated annealing over replay plans: a fast search for large steps, whose best plans the exact
// windows then polish.
//
// The state is a set of (stage, replay). What is resident follows (Note [Liveness by events]), so
// every set is a plan, and only its memory may be too much: an excess is charged, at a price that
// rises while the state stays infeasible. Moves add a replay before a touch (with the replays that
// its absent inputs need), remove one, or shift one, and some do so at a row of twins at once (Note
// [Repeated blocks]). Source: Kirkpatrick, Gelatt, Vecchi, Science 1983; the moves are poet's.
// Weakness: no bound.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct AnnealingOptions {
  int64_t budget_bytes = 0;
  std::optional<double> replay_seconds_limit;
  int64_t most_moves =
      1000000;  // the schedule of temperatures follows the moves: equal seeds give equal results
  // First temperature, in percent of the plain step's seconds; of long steps of the seconds of
  // 1,000 average ops.
  double hottest = 3;
  double temperature_scale = 1;   // of all temperatures: less where all plans cost next to nothing
  double time_limit_seconds = 5;  // ends it early
  uint64_t seed = 0;
  bool pages = true;              // moves may page
  std::vector<int> without = {};  // replays that no plan of the walk has
  // Shown the plan every few hundred moves, where it keeps budget and deadline.
  std::function<void(const ReplayPlan&)> look = {};
};

struct AnnealingResult {
  std::optional<ReplayPlan> best;  // keeps budget and deadline
  double cost = 0;                 // its replays and transfers, in the objective
  ReplayPlan closest;              // the least excess seen, `best` where there is one
  int64_t closest_peak_bytes = 0;
  int64_t moves = 0;
};

AnnealingResult anneal(const Problem& problem, const ReplayPlan& start,
                       const AnnealingOptions& options);

}  // namespace poet::planner
