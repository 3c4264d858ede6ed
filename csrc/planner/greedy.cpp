#include "planner/greedy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "planner/replay_forecast.h"
#include "planner/timeline.h"
#include "planner/way_back.h"

namespace poet::planner {
namespace {

// Chains longer than this are not followed further when a cost is estimated; their cost so far
// counts twice.
constexpr int kLongestChain = 40;
constexpr double kLeastCostSeconds = 1e-9;
// How much less gladly what a placement keeps is evicted: above every rise for its bytes.
constexpr double kPlaced = 1e6;
constexpr double kKept = 1e3;  // how much less gladly what is to be kept is evicted
// Above so many values in memory only the cheapest by their last known costs are looked at closely.
constexpr size_t kMostScored = 400;
constexpr size_t kShortList = 64;

class Greedy {
 public:
  Greedy(const Problem& problem, const GreedyOptions& options)
      : problem_(problem),
        options_(options),
        random_(options.seed),
        in_ram_(problem.values.size(), 0),
        keep_(problem.values.size(), 0),
        wanted_(problem.values.size(), 0),
        ways_(problem, in_ram_, kLongestChain),
        known_cost_(problem.values.size(), -1) {
    plan_.by_stage.resize(problem.stages.size());
    if (options.forecast) forecast_.emplace(problem);
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (value(v).first_stage < 0 && !value(v).starts_away && !value(v).use_stages.empty()) put(v);
    }
  }

  std::optional<ReplayPlan> run() {
    for (int t = 0; t < problem_.numStages(); ++t) {
      if (!runStage(t)) return std::nullopt;
    }
    dropUselessReplays(problem_, plan_);
    for (auto& stage : plan_.by_stage) std::sort(stage.begin(), stage.end());
    return std::move(plan_);
  }

 private:
  const Evictable& value(int v) const { return problem_.values[static_cast<size_t>(v)]; }
  const Replay& replay(int r) const { return problem_.replays[static_cast<size_t>(r)]; }
  bool inRam(int v) const { return in_ram_[static_cast<size_t>(v)]; }
  void put(int v) {
    if (inRam(v)) return;
    in_ram_[static_cast<size_t>(v)] = 1;
    ram_.push_back(v);
    used_ += value(v).bytes;
  }
  void drop(int v) {
    if (!inRam(v)) return;
    in_ram_[static_cast<size_t>(v)] = 0;
    ram_.erase(std::find(ram_.begin(), ram_.end(), v));
    used_ -= value(v).bytes;
  }

  bool runStage(int t) {
    const Stage& stage = problem_.stages[static_cast<size_t>(t)];
    std::vector<int> order;
    if (!missingReplays(t, order)) return false;
    if (!order.empty()) placed_.clear();  // a walk: what it passes may stay
    std::fill(keep_.begin(), keep_.end(), 0);
    std::fill(wanted_.begin(), wanted_.end(), 0);
    for (const int r : order) {
      for (const int u : replay(r).inputs) ++wanted_[static_cast<size_t>(u)];
    }
    for (const int u : stage.needs) ++wanted_[static_cast<size_t>(u)];
    for (size_t v = 0; v < wanted_.size(); ++v) keep_[v] = wanted_[v] > 0;
    for (const int r : order) {
      if (!runReplay(r, t)) return false;
    }
    if (!makeRoom(stage.fixed_during_bytes, t)) return false;
    dropFinished(t + 1);
    for (const int v : stage.born) {
      if (problem_.plainTouchFrom(v, t + 1) >= 0) put(v);
    }
    return true;
  }

  // What must be replayed so that every input of stage t is there, in an order in which it can run.
  bool missingReplays(int t, std::vector<int>& order) {
    std::vector<int> todo;
    for (const int u : problem_.stages[static_cast<size_t>(t)].needs) {
      if (!inRam(u)) todo.push_back(u);
    }
    while (!todo.empty()) {
      const int r = ways_.replayFor(todo.back(), t);
      todo.pop_back();
      if (r < 0) return false;
      if (std::find(order.begin(), order.end(), r) != order.end()) continue;
      order.push_back(r);
      for (const int u : replay(r).inputs) {
        if (!inRam(u)) todo.push_back(u);
      }
    }
    std::sort(order.begin(), order.end());
    return true;
  }

  bool runReplay(int r, int t) {
    const Replay& replayed = replay(r);
    generators_ += ways_.noteReplay(r);  // room in the past is not checked here
    if (!makeRoom(
            problem_.stages[static_cast<size_t>(t)].fixed_before_bytes + replayed.replay_bytes, t))
      return false;
    for (const int v : replayed.outputs) {
      if (wanted_[static_cast<size_t>(v)] > 0 || problem_.plainTouchFrom(v, t) >= 0) put(v);
    }
    plan_.by_stage[static_cast<size_t>(t)].push_back(r);
    for (const int u : replayed.inputs) {
      if (--wanted_[static_cast<size_t>(u)] > 0) continue;
      keep_[static_cast<size_t>(u)] = 0;
      if (problem_.plainTouchFrom(u, t) < 0) drop(u);
    }
    return true;
  }

  void dropFinished(int t) {
    for (size_t i = ram_.size(); i-- > 0;) {
      if (problem_.plainTouchFrom(ram_[i], t) < 0) drop(ram_[i]);
    }
  }

  struct Candidate {
    double score;
    int value;
  };

  // Evicts until `bytes` fit beside what is resident; gives back what turns out not to be needed,
  // dearest first.
  bool makeRoom(int64_t bytes, int t) {
    const int64_t limit = options_.budget_bytes - bytes - generators_;
    if (used_ <= limit) return true;
    std::vector<int> gone;
    if (forecast_ && !evictByForecast(limit, t, gone)) return false;
    for (bool all = ram_.size() <= kMostScored;; all = true) {
      for (const Candidate& candidate : candidatesToEvict(t, all)) {
        if (used_ <= limit) break;
        drop(candidate.value);
        gone.push_back(candidate.value);
      }
      if (used_ <= limit) break;
      if (all) return false;
    }
    for (size_t i = gone.size(); i-- > 0;) {
      if (used_ + value(gone[i]).bytes <= limit) put(gone[i]);
    }
    return true;
  }

  // One at a time: each that goes changes what the others are worth.
  bool evictByForecast(int64_t limit, int t, std::vector<int>& gone) {
    while (used_ > limit) {
      const ReplayForecast::Moment moment{.stage = t,
                                          .budget_bytes = options_.budget_bytes - generators_,
                                          .excess_bytes = used_ - limit,
                                          .resident = in_ram_,
                                          .locked = keep_};
      if (options_.placed && !mayGo(t)) placed_ = forecast_->placement(moment, coming(t));
      forecast_->lookAt(moment);
      double least = std::numeric_limits<double>::infinity();
      int cheapest = -1;
      for (const int v : ram_) {
        if (keep_[static_cast<size_t>(v)]) continue;
        const double score = forecastScore(v, t);
        if (score > least || (score == least && v > cheapest)) continue;
        if (score == std::numeric_limits<double>::infinity()) continue;
        least = score;
        cheapest = v;
      }
      if (cheapest < 0) return false;
      drop(cheapest);
      gone.push_back(cheapest);
    }
    return true;
  }

  bool isPlaced(int v) const { return !placed_.empty() && placed_[static_cast<size_t>(v)]; }

  // Is anything in memory that the placement does without?
  bool mayGo(int t) const {
    return !placed_.empty() && std::any_of(ram_.begin(), ram_.end(), [&](int v) {
      return !keep_[static_cast<size_t>(v)] && !isPlaced(v) && value(v).pin_stage < t;
    });
  }

  // What is on the way to what the stage lacks.
  std::vector<int> coming(int t) const {
    std::vector<int> values;
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (!inRam(v) && value(v).first_stage < t && wanted_[static_cast<size_t>(v)] > 0)
        values.push_back(v);
    }
    return values;
  }

  double forecastScore(int v, int t) {
    const int next = problem_.plainTouchFrom(v, t);
    if (next < 0) return -std::numeric_limits<double>::infinity();
    if (value(v).pin_stage >= t) return std::numeric_limits<double>::infinity();
    const double cost = ways_.cost(v, next);
    if (cost == std::numeric_limits<double>::infinity()) return cost;
    double rise = forecast_->isWantedLater(v) ? forecast_->riseWithout(v) : cost;
    if (rise > 0) rise /= static_cast<double>(value(v).bytes);
    if (isPlaced(v)) rise += kPlaced;
    return rise * jitter();
  }

  // Cheapest first; all of them, or those that were the cheapest when they were last scored.
  std::vector<Candidate> candidatesToEvict(int t, bool all) {
    std::vector<Candidate> candidates;
    for (const int v : ram_) {
      if (keep_[static_cast<size_t>(v)]) continue;
      const double score = evictionScore(v, t, /*closely=*/all);
      if (score < std::numeric_limits<double>::infinity()) candidates.push_back({score, v});
    }
    const auto cheaper = [](const Candidate& a, const Candidate& b) {
      return a.score != b.score ? a.score < b.score : a.value < b.value;
    };
    if (!all && candidates.size() > kShortList) {
      std::nth_element(candidates.begin(), candidates.begin() + kShortList, candidates.end(),
                       cheaper);
      candidates.resize(kShortList);
    }
    if (!all) {
      for (Candidate& candidate : candidates)
        candidate.score = evictionScore(candidate.value, t, /*closely=*/true);
    }
    std::sort(candidates.begin(), candidates.end(), cheaper);
    return candidates;
  }

  // `closely`: with the cost as it is now, not as it was when it was last looked at.
  double evictionScore(int v, int t, bool closely) {
    const int next = problem_.plainTouchFrom(v, t);
    if (next < 0) return -1;
    if (value(v).pin_stage >= t) return std::numeric_limits<double>::infinity();
    double& cost = known_cost_[static_cast<size_t>(v)];
    if (closely || cost < 0) cost = ways_.cost(v, next);
    const double bytes = static_cast<double>(value(v).bytes);
    double score =
        (cost + kLeastCostSeconds) / (std::pow(bytes, options_.size_exponent) *
                                      std::pow(std::max(1, next - t), options_.distance_exponent));
    if (!options_.kept.empty() && options_.kept[static_cast<size_t>(v)]) score *= kKept;
    return score * jitter();
  }

  double jitter() {
    if (options_.jitter <= 0) return 1;
    return std::uniform_real_distribution<double>(1 - options_.jitter,
                                                  1 + options_.jitter)(random_);
  }

  const Problem& problem_;
  const GreedyOptions options_;
  std::mt19937_64 random_;
  ReplayPlan plan_;
  std::optional<ReplayForecast> forecast_;
  std::vector<char> placed_;  // by value: ReplayForecast::placement
  std::vector<char> in_ram_;
  std::vector<int> ram_;
  std::vector<char> keep_;   // not to be evicted in this stage
  std::vector<int> wanted_;  // reads still to come in this stage
  WayBack ways_;
  std::vector<double> known_cost_;  // of bringing it back, when that was last looked at; -1: never
  int64_t used_ = 0;
  int64_t generators_ = 0;
};

}  // namespace

std::optional<ReplayPlan> greedyPlan(const Problem& problem, const GreedyOptions& options) {
  return Greedy(problem, options).run();
}

}  // namespace poet::planner
