#include "planner/annealing.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>

#include "planner/clock.h"
#include "planner/liveness.h"

namespace poet::planner {
namespace {

constexpr double kPercent = 100;
constexpr double kColdest = 0.003;      // final temperature, in percent of the plain step's seconds
constexpr double kStagesOfUnit = 1000;  // more of them are each worth less: temperatures fall alike
constexpr int kMovesPerUpdate = 512;    // between looks at the clock, temperatures and prices
// Of work: a start, a move, and what a move takes more for each block that it looks at.
constexpr double kSecondsPerStart = 1e-3, kSecondsPerMove = 1e-6, kSecondsPerBlock = 2e-9;
constexpr double kPriceStep = 1.1;
constexpr double kLeastPrice = 0.02, kMostPrice = 500;
constexpr double kInsertShare = 0.45, kRemoveShare = 0.3;  // the rest shifts ...
constexpr double kExchangeShare = 0.3;                     // ... or, so often, exchanges
constexpr double kReplayAbsentInput = 0.7;
constexpr int kMostChain = 12;
// Of the moves: made at several twins at once, where there are any.
constexpr double kTiedShare = 0.15;
constexpr int kMostTiedBits = 7;  // at up to 2^6 of them

class Annealing {
 public:
  Annealing(const Problem& problem, const ReplayPlan& start, const AnnealingOptions& options)
      : problem_(problem),
        options_(options),
        deadline_(options.time_limit_seconds),
        random_(options.seed * 0x9e3779b97f4a7c15ULL + 1),
        unit_(options.temperature_scale * std::min(1.0, kStagesOfUnit / problem.numStages())),
        state_(problem, leftOut(start, options.without), options.budget_bytes) {
    result_.closest = state_.plan();
    result_.closest_peak_bytes = state_.peakBytes();
    for (int t = 0; t < problem.numStages(); ++t) {
      for (const int v : problem.stages[static_cast<size_t>(t)].needs) {
        const Evictable& value = problem.values[static_cast<size_t>(v)];
        if (t - problem.plainTouchBefore(v, t) < 1) continue;
        for (const int r : {value.recipe, value.page}) {
          if (mayInsert(r, t)) touches_.push_back({t, r});
        }
      }
      for (const int r : state_.replaysAt(t)) present_.push_back({t, r});
    }
    findTwins();
  }

  AnnealingResult run() {
    chargeWork(kSecondsPerStart);
    if (touches_.empty()) return std::move(result_);
    remember();
    energy_ = energy();
    while (!deadline_.over() && result_.moves < options_.most_moves) {
      cool();
      const int64_t before = state_.work();
      for (int i = 0; i < kMovesPerUpdate; ++i) step();
      result_.moves += kMovesPerUpdate;
      chargeWork(kSecondsPerMove * kMovesPerUpdate +
                 kSecondsPerBlock * static_cast<double>(state_.work() - before));
      adjustPrice();
    }
    return std::move(result_);
  }

 private:
  struct Place {
    int stage;
    int what;
  };

  static bool contains(const std::vector<int>& some, int r) {
    return std::find(some.begin(), some.end(), r) != some.end();
  }

  static ReplayPlan leftOut(ReplayPlan plan, const std::vector<int>& replays) {
    for (std::vector<int>& stage : plan.by_stage)
      std::erase_if(stage, [&](int r) { return contains(replays, r); });
    return plan;
  }

  bool mayInsert(int r, int t) const {
    return r >= 0 && !contains(options_.without, r) && problem_.runnable(r, t) &&
           (options_.pages || !problem_.replays[static_cast<size_t>(r)].is_page);
  }

  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }

  double energy() const {
    const double scale = problem_.plain_seconds > 0 ? kPercent / problem_.plain_seconds : 1;
    double value = state_.cost() * scale;
    const double price = options_.temperature_scale * price_;
    value += price * kPercent * state_.excessBytes() /
             static_cast<double>(problem_.bytesForStep(options_.budget_bytes));
    if (options_.replay_seconds_limit) {
      value += price * scale * std::max(0.0, state_.seconds() - *options_.replay_seconds_limit);
    }
    return value;
  }

  bool feasible() const {
    return state_.excessBytes() < 0.5 &&
           (!options_.replay_seconds_limit || state_.seconds() <= *options_.replay_seconds_limit);
  }

  void remember() {
    if (!feasible() || (result_.best && state_.cost() >= result_.cost - 1e-12)) return;
    result_.best = state_.plan();
    result_.cost = state_.cost();
    result_.closest = state_.plan();
    result_.closest_peak_bytes = state_.peakBytes();
  }

  void cool() {
    const double moved =
        static_cast<double>(result_.moves) / static_cast<double>(options_.most_moves);
    const double progress = std::max(moved, deadline_.elapsed() / options_.time_limit_seconds);
    temperature_ = unit_ * options_.hottest * std::pow(kColdest / options_.hottest, progress);
  }

  // Feasible states make memory cheaper, infeasible ones dearer: the search walks along the border.
  void adjustPrice() {
    price_ =
        std::clamp(feasible() ? price_ / kPriceStep : price_ * kPriceStep, kLeastPrice, kMostPrice);
    energy_ = energy();
    if (options_.look && feasible()) options_.look(state_.plan());
    if (!result_.best && state_.excessBytes() > 0) {
      const int64_t peak = state_.peakBytes();
      if (peak < result_.closest_peak_bytes) {
        result_.closest = state_.plan();
        result_.closest_peak_bytes = peak;
      }
    }
  }

  void step() {
    added_.clear();
    const double kind = uniform();
    if (!twins_.empty() && uniform() < kTiedShare) {
      proposeTied(kind);
    } else if (present_.empty() || kind < kInsertShare) {
      proposeInsert();
    } else if (kind < kInsertShare + kRemoveShare) {
      proposeRemove();
    } else if (uniform() < kExchangeShare) {
      proposeExchange();
    } else {
      proposeShift();
    }
    state_.settle();
    const double next = energy();
    if (next <= energy_ || uniform() < std::exp((energy_ - next) / temperature_)) {
      state_.keep();
      energy_ = next;
      present_.insert(present_.end(), added_.begin(), added_.end());
      remember();
    } else {
      state_.undo();
    }
  }

  bool isPresent(const Place& place) const {
    const auto& stage = state_.replaysAt(place.stage);
    return std::find(stage.begin(), stage.end(), place.what) != stage.end();
  }

  // A random replay of the plan; the list is cleaned of what has gone as it is met.
  bool pickPresent(Place& place) {
    while (!present_.empty()) {
      const size_t i = below(present_.size());
      place = present_[i];
      if (isPresent(place)) return true;
      present_[i] = present_.back();
      present_.pop_back();
    }
    return false;
  }

  void proposeInsert() {
    const Place touch = touches_[below(touches_.size())];
    addWithInputs(touch.stage, touch.what);
  }

  // Replays r in stage t, and what its inputs need that are not in memory then.
  void addWithInputs(int t, int r) {
    todo_.assign(1, r);
    for (int count = 0; !todo_.empty() && count < kMostChain; ++count) {
      const int next = todo_.back();
      todo_.pop_back();
      if (isPresent({t, next})) continue;
      for (const int u : problem_.replays[static_cast<size_t>(next)].inputs) {
        if (state_.residentAt(t, next, u)) continue;
        const int source = wayBack(u, t);
        if (source >= 0 && uniform() < kReplayAbsentInput) todo_.push_back(source);
      }
      state_.insert(t, next);
      added_.push_back({t, next});
    }
  }

  // How a value may come back in stage t: by its recipe or from the store, at random where both
  // may; -1: not at all.
  int wayBack(int v, int t) {
    const Evictable& value = problem_.values[static_cast<size_t>(v)];
    const bool recipe = mayInsert(value.recipe, t);
    const bool page = mayInsert(value.page, t);
    if (recipe && page) return uniform() < 0.5 ? value.recipe : value.page;
    return recipe ? value.recipe : page ? value.page : -1;
  }

  void proposeRemove() {
    Place place{};
    if (pickPresent(place)) state_.remove(place.stage, place.what);
  }

  // Another replay in place of one of the plan, mostly one that serves about the same stage.
  void proposeExchange() {
    Place place{};
    if (!pickPresent(place)) return;
    state_.remove(place.stage, place.what);
    const auto at =
        std::lower_bound(touches_.begin(), touches_.end(), place.stage,
                         [](const Place& touch, int stage) { return touch.stage < stage; });
    const auto near = static_cast<int64_t>(at - touches_.begin()) + anyDistance();
    const auto last = static_cast<int64_t>(touches_.size()) - 1;
    const Place touch = touches_[static_cast<size_t>(std::clamp<int64_t>(near, 0, last))];
    if (touch.what != place.what) addWithInputs(touch.stage, touch.what);
  }

  void proposeShift() {
    Place place{};
    if (pickPresent(place)) shift(place, anyDistance());
  }

  int anyDistance() {
    const int reach = 1 << below(7);
    return static_cast<int>(below(static_cast<size_t>(2 * reach + 1))) - reach;
  }

  void shift(const Place& place, int by) {
    const Replay& replay = problem_.replays[static_cast<size_t>(place.what)];
    const int to =
        state_.blockStage(std::clamp(place.stage + by, replay.last_stage + 1, replay.until_stage));
    if (to == place.stage) return;
    state_.remove(place.stage, place.what);
    addWithInputs(to, place.what);
  }

  // ---- twins (Note [Repeated blocks])
  // ------------------------------------------------------------------------------------------------------

  // Touches of the same colour, served by replays of the same colour: runs of two or more.
  void findTwins() {
    struct Coloured {
      uint64_t touched, served;
      bool page;
      int touch;
      auto colours() const { return std::tuple(touched, served, page); }
    };
    std::vector<Coloured> all;
    for (size_t i = 0; i < touches_.size(); ++i) {
      const Replay& replay = problem_.replays[static_cast<size_t>(touches_[i].what)];
      const int made = problem_.values[static_cast<size_t>(replay.outputs.front())].first_stage;
      all.push_back({problem_.stages[static_cast<size_t>(touches_[i].stage)].colour,
                     made < 0 ? 0 : problem_.stages[static_cast<size_t>(made)].colour,
                     replay.is_page, static_cast<int>(i)});
    }
    std::stable_sort(all.begin(), all.end(), [](const Coloured& a, const Coloured& b) {
      return a.colours() < b.colours();
    });
    for (size_t begin = 0; begin < all.size();) {
      size_t end = begin + 1;
      while (end < all.size() && all[end].colours() == all[begin].colours()) ++end;
      if (end - begin > 1) {
        for (size_t i = begin; i < end; ++i) {
          twins_.push_back({.touch = all[i].touch,
                            .first = static_cast<int>(twins_.size() - (i - begin)),
                            .count = static_cast<int>(end - begin)});
        }
      }
      begin = end;
    }
  }

  // The same at some twins in a row.
  void proposeTied(double kind) {
    const size_t picked = below(twins_.size());
    const Twin group = twins_[picked];
    const int most = std::min(group.count, 1 << below(kMostTiedBits));
    const int at = static_cast<int>(picked) - group.first;
    const int begin = std::max(0, at - static_cast<int>(below(static_cast<size_t>(most))));
    const int end = std::min(group.count, begin + most);
    const int by = anyDistance();
    for (int i = begin; i < end; ++i) {
      const Place& touch =
          touches_[static_cast<size_t>(twins_[static_cast<size_t>(group.first + i)].touch)];
      if (kind < kInsertShare) {
        addWithInputs(touch.stage, touch.what);
      } else if (kind < kInsertShare + kRemoveShare) {
        state_.remove(touch.stage, touch.what);
      } else if (isPresent(touch)) {
        shift(touch, by);
      }
    }
  }

  const Problem& problem_;
  const AnnealingOptions& options_;
  const Deadline deadline_;
  std::mt19937_64 random_;
  const double unit_;
  Liveness state_;
  AnnealingResult result_;
  std::vector<Place> touches_;  // (stage, replay): where one may serve plain training
  std::vector<Place> present_;  // (stage, replay), with leftovers
  std::vector<Place> added_;
  std::vector<int> todo_;
  struct Twin {
    int touch;         // index into touches_
    int first, count;  // of its run in twins_
  };
  std::vector<Twin> twins_;
  double temperature_ = 1;
  double price_ = 1;
  double energy_ = 0;
};

}  // namespace

AnnealingResult anneal(const Problem& problem, const ReplayPlan& start,
                       const AnnealingOptions& options) {
  return Annealing(problem, start, options).run();
}

}  // namespace poet::planner
