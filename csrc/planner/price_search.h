// The search for devices whose transfers run beside computation: prices, then the clock.
#pragma once

#include <vector>

#include "planner/incumbent.h"
#include "planner/problem.h"
#include "planner/search.h"

namespace poet::planner {

struct PriceSearchInput {
  const Graph& graph;
  const RecipeTable& table;
  const DeviceProfile& profile;
  ProblemOptions options;  // the price left out
  SearchGoal goal;         // not the least peak
  SearchLimits limits;
};

// Note [A bound with overlap]
// With R seconds of replays and X seconds of transfers on c channels a step of P seconds takes
// M >= P + R and M >= X / c. So (1 + price * c) * M >= P + R + price * X: a bound on
// R + price * X, from transfers that take memory for no longer than they must, bounds M. Not
// claimed from programs with a deadline's row that charges transfers in full.
inline double boundWithOverlap(double plain_seconds, double bound_cost, double price,
                               int channels) {
  return (plain_seconds + bound_cost) / (1 + price * channels);
}

// Searches plans at several prices (Note [The price of a transfer]) for a share of the time each,
// goes on at the one whose plan is best by the simulator, and spends the rest on plans around the
// best one, each of them timed. Every plan is offered to `best`. `starts` are plans of a problem
// with any price: they have the same replays.
SearchOutcome searchPrices(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts,
                           Incumbent& best);

}  // namespace poet::planner
