// A first plan: walk the step once, evict what is cheapest to bring back for the memory and the
// time it gives.
//
// The score is the replay cost of everything that would be missing, divided by bytes x (stages to
// the next use)^exponent: the size and staleness heuristic of DTR (Kirisame et al., ICLR 2021) with
// the future known. It keeps the budget and knows nothing of a deadline. Weakness: it never looks
// back, so at tight budgets it fails where plans exist.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

struct GreedyOptions {
  int64_t budget_bytes = 0;
  double distance_exponent = 1;
  double size_exponent = 1;
  double jitter = 0;  // scores are multiplied by 1 +- jitter
  uint64_t seed = 0;
  // By value: to be kept where there is a choice, as a relaxation has it. Empty: no advice.
  std::vector<char> kept = {};
  // Evicts what raises the forecast of all replays least for its bytes (Note [Forecast]), not by
  // the score above. Page-ins are not forecast.
  bool forecast = false;
  // With the former: what Note [Placement] keeps goes last.
  bool placed = false;
};

// Nullopt where it finds no way at some stage.
std::optional<ReplayPlan> greedyPlan(const Problem& problem, const GreedyOptions& options);

}  // namespace poet::planner
