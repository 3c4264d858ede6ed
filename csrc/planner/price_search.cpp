#include "planner/price_search.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>

#include "planner/annealing.h"
#include "planner/clock.h"

namespace poet::planner {
namespace {

constexpr double kPrices[] = {0.3, 0.1, 0.03, 1};
constexpr size_t kLaxPrice = 1;         // where no plan keeps the deadline yet
constexpr double kSharePerPrice = 0.1;  // of the time limit
constexpr double kShareOfBest = 0.15;   // of what is left then, at the best price
// Around the best plan: short and cold, so that a walk stays near it.
constexpr int64_t kMovesAround = 4096;
constexpr double kHottestAround[] = {0.02, 0.1, 0.4};
constexpr int kPatience = 48;  // walks without a better plan: each price and temperature four times

class PriceSearch {
 public:
  PriceSearch(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts, Incumbent& best)
      : input_(input), starts_(starts), best_(best), deadline_(input.limits.time_limit_seconds) {}

  SearchOutcome run() {
    const double share = kSharePerPrice * input_.limits.time_limit_seconds;
    SearchOutcome outcome;
    size_t best_price = 0;
    for (const double price : kPrices) {
      problems_.push_back(problemAt(price));
      const double before = value();
      outcome = searchAt(problems_.size() - 1, share);
      if (value() < before) best_price = problems_.size() - 1;
      if (best_.isOptimal() || deadline_.over()) return outcome;
    }
    if (!best_.any()) best_price = kLaxPrice;
    const bool fits = best_.any() || outcome.best;
    outcome = searchAt(best_price, fits ? kShareOfBest * deadline_.left() : deadline_.left());
    if (best_.any() || outcome.best) searchAround(outcome);
    return outcome;
  }

 private:
  double value() const {
    return best_.any() ? best_.best().objectiveValue() : std::numeric_limits<double>::infinity();
  }

  std::unique_ptr<Problem> problemAt(double price) const {
    ProblemOptions options = input_.options;
    options.transfer_price = price;
    return std::make_unique<Problem>(input_.graph, input_.table, input_.profile, options);
  }

  // Note [The deadline with overlap]
  // A schedule that is done after D seconds has R <= D - P and X <= c * D, so R + price * X
  // <= D - P + price * c * D: a row that no such schedule breaks. Whether the others keep the
  // deadline is for the clock to say. At full price R + X <= D - P, and then it is certain.
  std::optional<double> replayLimit(size_t price) const {
    const std::optional<double>& limit = input_.goal.replay_seconds_limit;
    if (!limit || kPrices[price] >= 1) return limit;
    const double deadline_seconds = *limit + problems_[price]->plain_seconds;
    return *limit + kPrices[price] * input_.profile.dma_channels * deadline_seconds;
  }

  SearchOutcome searchAt(size_t price, double seconds) {
    const Problem& problem = *problems_[price];
    SearchLimits limits = input_.limits;
    limits.time_limit_seconds = std::min(seconds, deadline_.left());
    limits.seconds_without_plan =
        std::max(0.0, input_.limits.seconds_without_plan - deadline_.elapsed());
    SearchGoal goal = input_.goal;
    goal.replay_seconds_limit = replayLimit(price);
    std::vector<ReplayPlan> starts = starts_;
    if (best_.any()) starts.push_back(best_.bestPlan());
    SearchOutcome outcome =
        searchPlan(problem, goal, limits, starts,
                   [&](const ReplayPlan& plan, double) { best_.offer(problem, plan); });
    if (!input_.goal.replay_seconds_limit || kPrices[price] < 1) {
      best_.setBound(boundWithOverlap(problem.plain_seconds, outcome.bound_cost, kPrices[price],
                                      input_.profile.dma_channels),
                     "candidates");
    }
    return outcome;
  }

  // Cheap plans at some price are many, and only the clock tells them apart: walks from the best
  // plan at all prices and temperatures in turn, with a look at the clock on the way.
  void searchAround(const SearchOutcome& outcome) {
    uint64_t last_progress = 0;
    for (uint64_t turn = 0; turn - last_progress < kPatience; ++turn) {
      if (deadline_.over() || best_.isOptimal()) return;
      const size_t price = turn % problems_.size();
      const Problem& problem = *problems_[price];
      const auto look = [&](const ReplayPlan& plan) {
        if (best_.offer(problem, plan)) last_progress = turn;
      };
      anneal(problem, best_.any() ? best_.bestPlan() : *outcome.best,
             {.budget_bytes = input_.goal.budget_bytes,
              .replay_seconds_limit = replayLimit(price),
              .most_moves = kMovesAround,
              .hottest = kHottestAround[(turn / problems_.size()) % std::size(kHottestAround)],
              .time_limit_seconds = deadline_.left(),
              .seed = turn,
              .look = look});
    }
  }

  const PriceSearchInput& input_;
  const std::vector<ReplayPlan>& starts_;
  Incumbent& best_;
  const Deadline deadline_;
  std::vector<std::unique_ptr<Problem>> problems_;  // by price
};

}  // namespace

SearchOutcome searchPrices(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts,
                           Incumbent& best) {
  return PriceSearch(input, starts, best).run();
}

}  // namespace poet::planner
