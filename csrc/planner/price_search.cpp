#include "planner/price_search.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <span>

#include "planner/annealing.h"
#include "planner/clock.h"

namespace poet::planner {
namespace {

// For energy the store's own joules keep transfers from being free, and price 0 is the objective
// itself where every transfer is hidden.
constexpr double kTimePrices[] = {0.3, 0.1, 0.03, 1};
constexpr double kEnergyPrices[] = {0, 0.1, 0.3, 1};
constexpr size_t kLaxPrice = 1;               // 0.1, where no plan keeps the deadline yet
constexpr double kShareOfFirst = 0.45;        // of the time limit: the price of the best bound
constexpr double kSharePerPrice = 0.06;       // likewise, of the others
constexpr double kShareOfBest = 0.15;         // of what is left then, at the best price
constexpr double kCloseEnoughToPrice = 2e-5;  // (value - bound) / value
// Around the best plan: short and mostly cold, so that a walk stays near it.
constexpr int64_t kMovesAround = 4096, kMovesFurther = 16384;
constexpr double kHottestAround[] = {0.02, 0.1, 0.4, 1.5};
// Walks without a better plan: each price and temperature four times, then twelve times with more
// moves.
constexpr int kPatience = 64, kPatienceFurther = 192;

}  // namespace

class PriceSearch::Prices {
 public:
  Prices(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts, PlanSource source,
         Incumbent& best)
      : input_(input),
        starts_(starts),
        start_source_(source),
        best_(best),
        deadline_(input.limits.time_limit_seconds),
        prices_(input.options.objective == Objective::kEnergy && input.profile.store_watts > 0
                    ? kEnergyPrices
                    : kTimePrices) {}

  SearchOutcome run() {
    SearchOutcome outcome;
    size_t best_price = 0;
    for (const double price : prices_) {
      problems_.push_back(problemAt(price));
      const double before = value();
      const double share = problems_.size() == 1 ? kShareOfFirst : kSharePerPrice;
      outcome = searchAt(problems_.size() - 1, share * input_.limits.time_limit_seconds);
      if (value() < before) best_price = problems_.size() - 1;
      if (finished()) return outcome;
    }
    if (!best_.any()) best_price = kLaxPrice;
    const bool fits = best_.any() || outcome.best;
    outcome = searchAt(best_price, fits ? kShareOfBest * deadline_.left() : deadline_.left());
    if (best_.any() || outcome.best) searchAround(outcome);
    return outcome;
  }

  SearchOutcome goOn(double time_limit_seconds) {
    deadline_ = Deadline(time_limit_seconds);
    if (best_.any()) searchAround({});
    return {};
  }

 private:
  bool finished() const { return deadline_.over() || best_.gap() <= kCloseEnoughToPrice; }

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
    if (!limit || prices_[price] >= 1) return limit;
    const double deadline_seconds = *limit + problems_[price]->plain_seconds;
    return *limit + prices_[price] * input_.profile.dma_channels * deadline_seconds;
  }

  SearchOutcome searchAt(size_t price, double seconds) {
    const Problem& problem = *problems_[price];
    SearchLimits limits = input_.limits;
    limits.time_limit_seconds = std::min(seconds, deadline_.left());
    limits.seconds_without_plan =
        std::max(0.0, input_.limits.seconds_without_plan - deadline_.elapsed());
    limits.bound_first = price == 0 && bounds_.empty();
    SearchGoal goal = input_.goal;
    goal.replay_seconds_limit = replayLimit(price);
    std::vector<ReplayPlan> starts = starts_;
    if (best_.any()) starts.push_back(best_.bestPlan());
    SearchOutcome outcome =
        PlanSearch(problem, goal, limits, [&](const ReplayPlan& plan, PlanSource source, double) {
          best_.offer(plan, source);
          return false;
        }).run(starts, best_.any() ? best_.bestSource() : start_source_);
    if (!input_.goal.replay_seconds_limit || prices_[price] < 1) {
      bounds_.resize(problems_.size(), 0);
      bounds_[price] = std::max(  // a second search may have had no time for its relaxation
          bounds_[price],
          boundWithOverlap(problem, input_.profile, input_.options.objective, outcome.bound_cost));
      best_.setBoundValue(*std::max_element(bounds_.begin(), bounds_.end()), "candidates");
    }
    return outcome;
  }

  // Cheap plans at some price are many, and only the clock tells them apart: walks from the best
  // plan at all prices and temperatures in turn, with a look at the clock on the way.
  void searchAround(const SearchOutcome& outcome) {
    for (; turn_ - last_progress_ < kPatience + kPatienceFurther; ++turn_) {
      if (finished()) return;
      const size_t price = turn_ % problems_.size();
      const Problem& problem = *problems_[price];
      const auto look = [&](const ReplayPlan& plan) {
        if (best_.offer(plan, PlanSource::kAround)) last_progress_ = turn_;
      };
      anneal(problem, best_.any() ? best_.bestPlan() : *outcome.best,
             {.budget_bytes = input_.goal.budget_bytes,
              .replay_seconds_limit = replayLimit(price),
              .most_moves = turn_ - last_progress_ < kPatience ? kMovesAround : kMovesFurther,
              .hottest = kHottestAround[(turn_ / problems_.size()) % std::size(kHottestAround)],
              .time_limit_seconds = deadline_.left(),
              .seed = turn_,
              .look = look});
    }
  }

  const PriceSearchInput input_;
  const std::vector<ReplayPlan> starts_;
  const PlanSource start_source_;
  Incumbent& best_;
  Deadline deadline_;
  // Of the walks around the best plan.
  uint64_t turn_ = 0, last_progress_ = 0;
  const std::span<const double> prices_;
  std::vector<double> bounds_;                      // by price, of its last search
  std::vector<std::unique_ptr<Problem>> problems_;  // by price
};

double boundWithOverlap(const Problem& problem, const DeviceProfile& profile, Objective objective,
                        double bound_cost) {
  const double price = problem.transferPrice();
  const int channels = profile.dma_channels;
  const double seconds = problem.plain_seconds + bound_cost;
  if (objective != Objective::kEnergy) return seconds / (1 + price * channels);
  const double a = problem.costOfTransfer(1);
  const double q = std::min(1.0, price * channels / (1 + a * channels));
  return (profile.busyWatts() + (1 - q) * profile.alwaysWatts()) * seconds;
}

PriceSearch::PriceSearch(const PriceSearchInput& input, const std::vector<ReplayPlan>& starts,
                         PlanSource source, Incumbent& best)
    : prices_(std::make_unique<Prices>(input, starts, source, best)) {}

PriceSearch::~PriceSearch() = default;

SearchOutcome PriceSearch::run() { return prices_->run(); }

SearchOutcome PriceSearch::goOn(double time_limit_seconds) {
  return prices_->goOn(time_limit_seconds);
}

}  // namespace poet::planner
