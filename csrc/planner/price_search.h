// The search for devices whose transfers run beside computation: prices, then the clock.
#pragma once

#include <memory>
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
// M >= P + R and M >= X / c. The relaxed program bounds R + a X from below, for transfers that hold
// memory no longer than they must, with a the problem's cost of a second of transfers.
// - Time, a = price: (1 + price c) M >= P + R + price X.
// - Energy, with w the watts of a busy second, of which w_a are drawn all the time, and w_s those
// of
//   the store: E = (w - w_a)(P + R) + w_a M + w_s X. For any 0 <= q <= 1, M >= (1 - q)(P + R) +
//   q X / c, so E >= (w - q w_a)(P + R) + (w_s + q w_a / c) X. With a = (price w_a + w_s) / w and
//   q = price c / (1 + a c) the second factor is a times the first: E >= (w - q w_a)(P + R + a X).
//   At price 0 nothing is lost but the time that a full channel takes.
// Not claimed from programs with a deadline's row that charges transfers in full.
// In the objective's unit; `bound_cost` bounds R + a X.
double boundWithOverlap(const Problem& problem, const DeviceProfile& profile, Objective objective,
                        double bound_cost);

// Searches plans at several prices (Note [The price of a transfer]) for a share of the time each,
// goes on at the one whose plan is best by the simulator, and spends the rest on plans around the
// best one, each of them timed. Every plan is offered to `best`. `starts` are plans of a problem
// with any price: they have the same replays. `source`: where they come from.
class PriceSearch {
 public:
  // What the input refers to, and `best`, must outlive it.
  PriceSearch(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts,
              PlanSource source, Incumbent& best);
  ~PriceSearch();
  PriceSearch(const PriceSearch&) = delete;
  PriceSearch& operator=(const PriceSearch&) = delete;

  SearchOutcome run();
  // For so long, around the best plan by now.
  SearchOutcome goOn(double time_limit_seconds);

 private:
  class Prices;
  std::unique_ptr<Prices> prices_;
};

}  // namespace poet::planner
