#include "planner/depth_first.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "planner/asked.h"
#include "planner/clock.h"
#include "planner/timeline.h"
#include "planner/way_back.h"

namespace poet::planner {
namespace {

// More replays than that, for each that the step has, are no plan to be had.
constexpr int64_t kMostReplays = 100;
constexpr double kSecondsPerAsk = 15e-9;  // of work: each value and replay that is looked at
constexpr double kLeastCostSeconds = 1e-9;
// What nobody needs yet, but what it has made could not leave without it: goes after all others.
constexpr double kLastResort = 1e30;
constexpr double kDistanceExponents[] = {1, 0.5, 0.2, 2};
constexpr double kNearBudgets = 0.002;  // of a budget: no nearer ones are told apart

class DepthFirst {
 public:
  DepthFirst(const Problem& problem, const DepthFirstOptions& options)
      : problem_(problem),
        options_(options),
        deadline_(options.time_limit_seconds),
        asked_(findAsked(problem)),
        there_(problem.values.size(), 0),
        locks_(problem.values.size(), 0),
        ask_(problem.values.size(), kNobody),
        ways_(problem, there_),
        replays_left_(kMostReplays * static_cast<int64_t>(problem.replays.size())) {
    plan_.by_stage.resize(problem.stages.size());
    for (int v = 0; v < problem.numValues(); ++v) {
      if (value(v).first_stage < 0 && !value(v).starts_away && !value(v).use_stages.empty()) put(v);
    }
  }

  std::optional<ReplayPlan> run() {
    for (stage_ = 0; stage_ < problem_.numStages(); ++stage_) {
      if (deadline_.over() || !runStage()) return std::nullopt;
    }
    dropUselessReplays(problem_, plan_);
    return std::move(plan_);
  }

 private:
  static constexpr int kNobody = std::numeric_limits<int>::max();
  static constexpr int kTheStage = -1;
  // A replay, or the stage, and what it reads: up to `next` all of that is there.
  struct Waiting {
    int replay;
    std::vector<int> wanted;
    size_t next;
  };
  static size_t at(int i) { return static_cast<size_t>(i); }
  const Evictable& value(int v) const { return problem_.values[at(v)]; }
  const Replay& replay(int r) const { return problem_.replays[at(r)]; }
  const Stage& stage() const { return problem_.stages[at(stage_)]; }

  void put(int v) {
    if (there_[at(v)]) return;
    there_[at(v)] = 1;
    used_ += value(v).bytes;
  }
  void drop(int v) {
    there_[at(v)] = 0;
    used_ -= value(v).bytes;
  }

  bool runStage() {
    if (!bring(stage().needs) || !makeRoom(stage().fixed_during_bytes)) return false;
    for (const int u : stage().needs) --locks_[at(u)];
    for (const int v : stage().born) put(v);
    dropUnasked();
    return true;
  }

  // All of them in memory, and locked. What is missing comes back with all that it needs in turn,
  // by a stack of our own: chains are longer than a thread's is deep.
  bool bring(const std::vector<int>& needs) {
    waiting_.clear();
    wait(kTheStage, needs);
    while (!waiting_.empty()) {
      if (const auto missing = lockUntilMissing(waiting_.back())) {
        const int r = ways_.replayFor(*missing, stage_);
        if (r < 0 || --replays_left_ < 0 || deadline_.over()) return false;
        wait(r, replay(r).inputs);
      } else {
        const int r = waiting_.back().replay;
        waiting_.pop_back();
        if (r != kTheStage && !runReplay(r)) return false;
      }
    }
    return true;
  }

  // Where those that are there are not locked first, they come last: they may have left for the
  // others.
  void wait(int r, std::vector<int> wanted) {
    if (options_.locks_first) {
      for (const int u : wanted) ++locks_[at(u)];
    } else {
      std::stable_partition(wanted.begin(), wanted.end(), [this](int u) { return !there_[at(u)]; });
    }
    waiting_.push_back({r, std::move(wanted), 0});
  }

  std::optional<int> lockUntilMissing(Waiting& each) {
    for (; each.next < each.wanted.size(); ++each.next) {
      const int u = each.wanted[each.next];
      if (!there_[at(u)]) return u;
      if (!options_.locks_first) ++locks_[at(u)];
    }
    return std::nullopt;
  }

  bool runReplay(int r) {
    generators_ += ways_.noteReplay(r);  // room in the past is not checked
    if (!makeRoom(stage().fixed_before_bytes + replay(r).replay_bytes)) return false;
    for (const int u : replay(r).inputs) --locks_[at(u)];
    for (const int w : replay(r).outputs) put(w);
    plan_.by_stage[at(stage_)].push_back(r);
    return true;
  }

  // The stage in which each value will next be asked for, by plain training or
  // for what is missing and asked for; kNobody: in none.
  void findAsks(int from) {
    chargeWork(kSecondsPerAsk *
               static_cast<double>(problem_.values.size() + problem_.replays.size()));
    for (int v = 0; v < problem_.numValues(); ++v) {
      const int touch = problem_.plainTouchFrom(v, from);
      ask_[at(v)] = touch < 0 ? kNobody : touch;
    }
    // Readers stand behind what they read.
    for (size_t r = problem_.replays.size(); r-- > 0;) {
      const Replay& each = problem_.replays[r];
      if (each.is_page) continue;
      int first = kNobody;
      for (const int w : each.outputs) {
        if (!there_[at(w)] && value(w).first_stage < from) first = std::min(first, ask_[at(w)]);
      }
      if (first == kNobody) continue;
      for (const int u : each.inputs) ask_[at(u)] = std::min(ask_[at(u)], first);
    }
  }

  bool isNeededByMissing(int v) const {
    for (const int r : asked_.readers[at(v)]) {
      for (const int w : replay(r).outputs) {
        if (!there_[at(w)] && ask_[at(w)] != kNobody && value(w).first_stage < stage_) return true;
      }
    }
    return false;
  }

  // What can come back if it must goes as soon as nobody asks for it; what cannot stays as long as
  // something made from it might.
  void dropUnasked() {
    const int next = stage_ + 1;
    findAsks(next);
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (!there_[at(v)] || ask_[at(v)] != kNobody) continue;
      if (asked_.may_leave[at(v)] || asked_.until_stage[at(v)] < next) drop(v);
    }
  }

  bool makeRoom(int64_t bytes) {
    const int64_t limit = options_.budget_bytes - bytes - generators_;
    if (used_ <= limit) return true;
    std::vector<int> gone;
    while (used_ > limit) {
      findAsks(stage_);
      double least = WayBack::kNever;
      int cheapest = -1;
      for (int v = 0; v < problem_.numValues(); ++v) {
        if (!there_[at(v)] || locks_[at(v)] > 0 || value(v).pin_stage >= stage_) continue;
        const double score = evictionScore(v);
        if (score >= least) continue;
        least = score;
        cheapest = v;
      }
      if (cheapest < 0) return false;
      drop(cheapest);
      gone.push_back(cheapest);
    }
    for (size_t i = gone.size(); i-- > 0;) {
      if (used_ + value(gone[i]).bytes <= limit) put(gone[i]);
    }
    return true;
  }

  double evictionScore(int v) {
    const double bytes = static_cast<double>(value(v).bytes);
    const int next = ask_[at(v)];
    const bool comes_back = asked_.may_leave[at(v)];
    if (next == kNobody) return comes_back ? -bytes : kLastResort / bytes;
    if (!comes_back && (value(v).page < 0) && isNeededByMissing(v)) return WayBack::kNever;
    const double cost = ways_.cost(v, next);
    return (cost + kLeastCostSeconds) /
           (bytes * std::pow(std::max(1, next - stage_), options_.distance_exponent));
  }

  const Problem& problem_;
  const DepthFirstOptions options_;
  const Deadline deadline_;
  const Asked asked_;
  ReplayPlan plan_;
  std::vector<char> there_;
  std::vector<int> locks_;
  std::vector<int> ask_;  // findAsks
  WayBack ways_;
  std::vector<Waiting> waiting_;  // each for the one after it
  int stage_ = 0;
  int64_t used_ = 0;
  int64_t generators_ = 0;
  int64_t replays_left_;
};

// Shown to `use` until it has what it wants.
void forEachWay(const std::function<bool(DepthFirstOptions)>& use) {
  for (const double exponent : kDistanceExponents) {
    for (const bool locks_first : {true, false}) {
      if (use({.distance_exponent = exponent, .locks_first = locks_first})) return;
    }
  }
}

}  // namespace

std::optional<ReplayPlan> depthFirstPlan(const Problem& problem, const DepthFirstOptions& options) {
  auto plan = DepthFirst(problem, options).run();
  // It hears of generator states too late.
  if (plan && makeTimeline(problem, *plan).peak_bytes > options.budget_bytes) return std::nullopt;
  return plan;
}

std::optional<ReplayPlan> anyDepthFirstPlan(const Problem& problem, int64_t budget_bytes,
                                            double time_limit_seconds) {
  const Deadline deadline(time_limit_seconds);
  std::optional<ReplayPlan> found;
  forEachWay([&](DepthFirstOptions way) {
    way.budget_bytes = budget_bytes;
    way.time_limit_seconds = deadline.left();
    found = depthFirstPlan(problem, way);
    return found || deadline.over();
  });
  return found;
}

std::optional<ReplayPlan> leastDepthFirstPlan(const Problem& problem, int64_t floor_bytes,
                                              int64_t most_bytes, double time_limit_seconds) {
  const Deadline deadline(time_limit_seconds);
  std::optional<ReplayPlan> least;
  forEachWay([&](DepthFirstOptions way) {
    int64_t none = floor_bytes - 1;
    const auto near =
        static_cast<int64_t>(kNearBudgets * static_cast<double>(problem.bytesForStep(most_bytes)));
    while (!deadline.over() && most_bytes - none > std::max<int64_t>(1, near)) {
      way.budget_bytes = none + (most_bytes - none) / 2;
      way.time_limit_seconds = deadline.left();
      if (auto plan = depthFirstPlan(problem, way)) {
        most_bytes = makeTimeline(problem, *plan).peak_bytes;
        least = std::move(plan);
      } else {
        none = way.budget_bytes;
      }
    }
    return deadline.over();
  });
  return least;
}

}  // namespace poet::planner
