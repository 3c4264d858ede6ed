// capuchin: swap what the step has time for, then swap or recompute what costs least.
//
// Paper: Peng, Shi, Dai, Jin, Ma, Xiong, Yang, Qian, "Capuchin: Tensor-based GPU Memory Management
// for Deep Learning", ASPLOS 2020: one measured pass notes when each tensor is touched; then
// evictions are chosen from pairs of touches that lie around the memory peak. A pair's free time
// is FT = SwapInStart - SwapOutEnd, the time between the end of its swap-out and the latest moment
// at which its swap-in may begin (section 4.3). Pairs with FT >= 0 are swapped, the largest FT
// first; where they do not do, each further pair is swapped or recomputed, whichever costs less,
// the most bytes saved for a second (MSPS) first. A swap-in is triggered by an earlier touch; where
// it came late, feedback moves that touch forward by 5 % of the swap's time (section 4.4).
//
// Chosen: the measured pass is the recorded step, with every span between two touches of a value
// as a pair. Seconds of a recompute count what is missing of its inputs under the decisions so far.
// While planning, feedback asks a model of the store's one channel, in the order of the triggers;
// in training the steps themselves tell (methods/swap_feedback.h). Where transfers block, nothing
// is free and a swap costs all of its time.
// Where replays and triggers bring the plan above the budget, the policy runs again with that much
// less.
//
// Bound: none. Weakness: greedy, one pair at a time, by prices of the plain step; it looks at the
// stage that is most above the budget and not at what its replays need themselves.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"
#include "methods/swap_feedback.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::Problem;
using planner::Replay;

constexpr int kRounds = 20;  // of feedback
constexpr int kCorrections = 12;
constexpr int kBudgetsTried = 24;
constexpr double kNever = std::numeric_limits<double>::infinity();

enum class Way { kKept, kSwapped, kRecomputed };

// Two touches of a value with stages in between.
struct Pair {
  int value = 0;
  int from = 0;     // stage of the first touch; -1: the start of the step
  int to = 0;       // stage of the second
  int trigger = 0;  // a swap-in runs before the op of this stage
  double free_seconds = 0;
  Way way = Way::kKept;
};

class Capuchin {
 public:
  Capuchin(const Problem& problem, const std::vector<char>& may_leave, int64_t budget_bytes)
      : problem_(problem),
        may_leave_(may_leave),
        budget_(budget_bytes),
        blocks_(problem.profile().dma_channels == 0),
        hopeless_(problem.stages.size(), 0),
        gone_(problem.values.size(), -1) {
    measure();
    findPairs();
  }

  // Decides for as long as a stage is above the budget and something can be done about it.
  void decide(const planner::Deadline& deadline) {
    swapWhatIsFree();
    for (int round = 0; round < kRounds; ++round) {
      while (!deadline.over() && evictOneMore()) {
      }
      if (blocks_ || !feedback()) return;
    }
  }

  planner::ReplayPlan plan() const {
    PlanWalk walk(problem_);
    std::vector<std::vector<int>> triggered(problem_.stages.size());
    std::vector<std::vector<int>> leaving(problem_.stages.size() + 1);
    std::vector<char> in_store(problem_.values.size(), 0);
    for (size_t p = 0; p < pairs_.size(); ++p) {
      if (pairs_[p].way == Way::kKept) continue;
      leaving[at(pairs_[p].from + 1)].push_back(static_cast<int>(p));
      if (pairs_[p].way == Way::kSwapped)
        triggered[at(pairs_[p].trigger)].push_back(pairs_[p].value);
    }
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (lastUse(v) >= 0 && may_leave_[at(v)]) leaving[at(lastUse(v) + 1)].push_back(-1 - v);
    }
    for (int t = 0; t < problem_.numStages(); ++t) {
      for (const int p : leaving[at(t)]) {
        const int v = p >= 0 ? pairs_[at(p)].value : -1 - p;
        if (p >= 0 && pairs_[at(p)].way == Way::kSwapped) {
          in_store[at(v)] = 1;
          walk.leaveForStore(v);
        } else {
          walk.leave(v);
        }
      }
      for (const int v : triggered[at(t)]) walk.pageIn(v);
      std::vector<char> seen(problem_.values.size(), 0);
      for (const int v : problem_.stages[at(t)].needs) fetch(walk, v, in_store, seen);
      walk.advance();
    }
    return walk.take();
  }

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  const Evictable& value(int v) const { return problem_.values[at(v)]; }
  const Replay& replay(int r) const { return problem_.replays[at(r)]; }
  double start(int t) const { return t <= 0 ? 0 : end_[at(t - 1)]; }
  double end(int t) const { return t < 0 ? 0 : end_[at(t)]; }
  double inSeconds(int v) const { return replay(value(v).page).seconds; }
  double outSeconds(int v) const { return replay(value(v).page).once_seconds; }
  int lastUse(int v) const { return value(v).use_stages.empty() ? -1 : value(v).use_stages.back(); }

  // When stages end, and how much memory they take, with nothing evicted.
  void measure() {
    double now = 0;
    used_.resize(problem_.stages.size());
    for (size_t t = 0; t < problem_.stages.size(); ++t) {
      const planner::Stage& stage = problem_.stages[t];
      if (stage.op < problem_.graph().endOfStep())
        now += problem_.profile().firstSeconds(problem_.graph().op(stage.op));
      end_.push_back(now);
      used_[t] = stage.fixed_during_bytes;
    }
    for (int v = 0; v < problem_.numValues(); ++v) {
      for (int t = value(v).first_stage + 1; t <= lastUse(v); ++t) used_[at(t)] += value(v).bytes;
    }
  }

  void findPairs() {
    for (int v = 0; v < problem_.numValues(); ++v) {
      first_pair_.push_back(pairs_.size());
      int from = value(v).first_stage;
      for (const int to : value(v).use_stages) {
        if (to > from + 1 && from >= value(v).pin_stage && value(v).bytes > 0)
          pairs_.push_back({.value = v, .from = from, .to = to});
        from = to;
      }
    }
    first_pair_.push_back(pairs_.size());
    for (Pair& pair : pairs_) {
      pair.free_seconds = freeSeconds(pair);
      pair.trigger = pair.to;
      if (!blocks_ && canSwap(pair))
        pair.trigger = lastStageBy(pair, std::max(latestStart(pair), outEnd(pair)));
    }
  }

  bool canSwap(const Pair& pair) const {
    const int page = value(pair.value).page;
    return page >= 0 && problem_.runnable(page, pair.to);
  }
  double latestStart(const Pair& pair) const { return start(pair.to) - inSeconds(pair.value); }
  double freeSeconds(const Pair& pair) const {
    if (!canSwap(pair)) return -kNever;
    if (blocks_) return -inSeconds(pair.value) - outSeconds(pair.value);
    return latestStart(pair) - outEnd(pair);
  }
  // The copy is made when the value has been written, the memory given back behind the first touch.
  double outEnd(const Pair& pair) const {
    const Evictable& v = value(pair.value);
    return std::max(end(pair.from),
                    end(std::max(v.pin_stage, v.first_stage)) + outSeconds(pair.value));
  }
  // The last stage of the pair that begins by then; the first one behind `from` where none does.
  int lastStageBy(const Pair& pair, double seconds) const {
    const auto found = std::upper_bound(end_.begin(), end_.end(), seconds);
    const int stage = static_cast<int>(found - end_.begin());  // begins at or before `seconds`
    const int least = std::max(pair.from + 1, replay(value(pair.value).page).last_stage + 1);
    return std::clamp(stage, std::min(least, pair.to), pair.to);
  }

  // Stages in which an evicted value is away: behind `from`, before this one.
  int backStage(const Pair& pair, Way way) const {
    return way == Way::kSwapped ? pair.trigger : pair.to;
  }
  bool frees(const Pair& pair, Way way, int t) const {
    return pair.from < t && t < backStage(pair, way);
  }

  void evict(int p, Way way) {
    Pair& pair = pairs_[at(p)];
    pair.way = way;
    for (int t = pair.from + 1; t < backStage(pair, way); ++t)
      used_[at(t)] -= value(pair.value).bytes;
  }

  void swapWhatIsFree() {
    std::vector<int> order(pairs_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return pairs_[at(a)].free_seconds > pairs_[at(b)].free_seconds;
    });
    for (const int p : order) {
      if (pairs_[at(p)].free_seconds < 0) return;
      bool helps = false;
      for (int s = pairs_[at(p)].from + 1; s < pairs_[at(p)].trigger; ++s)
        helps |= used_[at(s)] > budget_;
      if (helps) evict(p, Way::kSwapped);
    }
  }

  // False where nothing is above the budget, or nothing more can be done about it.
  bool evictOneMore() {
    const int t = fullestStage();
    if (t < 0) return false;
    int best = -1;
    Way best_way = Way::kKept;
    double best_rate = -1;
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const Pair& pair = pairs_[p];
      if (pair.way != Way::kKept) continue;
      for (const Way way : {Way::kSwapped, Way::kRecomputed}) {
        if (!frees(pair, way, t)) continue;
        const double seconds = overhead(pair, way);
        if (seconds == kNever) continue;
        const double bytes = static_cast<double>(value(pair.value).bytes);
        const double rate = seconds > 0 ? bytes / seconds : kNever;
        if (rate <= best_rate) continue;
        best = static_cast<int>(p);
        best_way = way;
        best_rate = rate;
      }
    }
    if (best >= 0) {
      evict(best, best_way);
    } else {
      hopeless_[at(t)] = 1;
    }
    return true;
  }

  // The one that is most above the budget and can be helped; -1 where none is.
  int fullestStage() const {
    int fullest = -1;
    for (int t = 0; t < problem_.numStages(); ++t) {
      if (used_[at(t)] <= budget_ || hopeless_[at(t)]) continue;
      if (fullest < 0 || used_[at(t)] > used_[at(fullest)]) fullest = t;
    }
    return fullest;
  }

  double overhead(const Pair& pair, Way way) {
    if (way == Way::kSwapped) return canSwap(pair) ? std::max(0.0, -pair.free_seconds) : kNever;
    ++look_;
    return may_leave_[at(pair.value)] ? secondsToMake(pair.value, pair.to, true) : kNever;
  }

  // Of the recipe, and of those of its inputs that are away in that stage. Each is counted once for
  // each value of look_.
  double secondsToMake(int v, int t, bool is_asked_for) {
    if (gone_[at(v)] == look_ || (!is_asked_for && isThere(v, t))) return 0;
    gone_[at(v)] = look_;
    const int r = value(v).recipe;
    if (r < 0 || !may_leave_[at(v)] || !problem_.runnable(r, t)) return kNever;
    double seconds = replay(r).seconds;
    for (const int u : replay(r).inputs) seconds += secondsToMake(u, t, false);
    return seconds;
  }

  bool isThere(int v, int t) const {
    if (value(v).first_stage >= t) return false;
    if (t > lastUse(v)) return !may_leave_[at(v)];
    for (size_t p = first_pair_[at(v)]; p < first_pair_[at(v + 1)]; ++p) {
      if (pairs_[p].way != Way::kKept && frees(pairs_[p], pairs_[p].way, t)) return false;
    }
    return true;
  }

  // Moves the triggers of swap-ins that come late; false where none does, or none can be moved.
  bool feedback() {
    bool moved = false;
    for (const int p : lateSwaps()) {
      Pair& pair = pairs_[at(p)];
      const double earlier = start(pair.trigger) - kSwapFeedback * inSeconds(pair.value);
      const int trigger = std::min(pair.trigger - 1, lastStageBy(pair, earlier));
      if (trigger <= pair.from || !problem_.runnable(value(pair.value).page, trigger)) continue;
      for (int t = trigger; t < pair.trigger; ++t) used_[at(t)] += value(pair.value).bytes;
      pair.trigger = trigger;
      moved = true;
    }
    return moved;
  }

  // By a channel that carries transfers in the order in which they are asked for.
  std::vector<int> lateSwaps() const {
    struct Transfer {
      double asked = 0;
      int pair = 0;
      bool is_in = false;
    };
    std::vector<Transfer> transfers;
    std::vector<char> has_copy(problem_.values.size(), 0);
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const Pair& pair = pairs_[p];
      if (pair.way != Way::kSwapped) continue;
      transfers.push_back({start(pair.trigger), static_cast<int>(p), true});
      if (std::exchange(has_copy[at(pair.value)], char{1})) continue;
      const int written = std::max(value(pair.value).pin_stage, value(pair.value).first_stage);
      transfers.push_back({end(written), static_cast<int>(p), false});
    }
    std::stable_sort(transfers.begin(), transfers.end(),
                     [](const Transfer& a, const Transfer& b) { return a.asked < b.asked; });
    std::vector<int> late;
    double channel = 0;
    for (const Transfer& transfer : transfers) {
      const Pair& pair = pairs_[at(transfer.pair)];
      channel = std::max(channel, transfer.asked) +
                (transfer.is_in ? inSeconds(pair.value) : outSeconds(pair.value));
      if (transfer.is_in && channel > start(pair.to)) late.push_back(transfer.pair);
    }
    return late;
  }

  // What the stage to come misses and the store has comes from there.
  void fetch(PlanWalk& walk, int v, const std::vector<char>& in_store,
             std::vector<char>& seen) const {
    if (walk.there(v) || std::exchange(seen[at(v)], char{1})) return;
    const int page = value(v).page;
    if (in_store[at(v)] && page >= 0 && problem_.runnable(page, walk.stage())) {
      walk.pageIn(v);
      return;
    }
    if (value(v).recipe < 0) return;
    for (const int u : replay(value(v).recipe).inputs) fetch(walk, u, in_store, seen);
  }

  const Problem& problem_;
  const std::vector<char>& may_leave_;
  const int64_t budget_;
  const bool blocks_;
  std::vector<double> end_;         // by stage: seconds since the start of the step
  std::vector<int64_t> used_;       // by stage, under the decisions so far
  std::vector<Pair> pairs_;         // those of a value stand together
  std::vector<size_t> first_pair_;  // by value, and one more
  std::vector<char> hopeless_;      // by stage: nothing more can be done about it
  std::vector<int> gone_;           // by value: the look in which it was counted last
  int look_ = 0;
};

}  // namespace

Schedule planCapuchin(const Graph& graph, const DeviceProfile& profile,
                      const SolveOptions& options) {
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile,
                        {.objective = options.minimize,
                         .recompute = options.recompute,
                         .paging = options.paging && profile.hasStore()});
  const std::vector<char> may_leave = findMayLeave(problem);
  PlanChoice choice(problem, options, "capuchin");
  const auto peakWithin = [&](int64_t budget) {
    Capuchin capuchin(problem, may_leave, budget);
    capuchin.decide(choice.deadline());
    return choice.offer(capuchin.plan());
  };
  int64_t budget = options.ram_budget_bytes;
  for (int i = 0; i < kCorrections && !choice.any() && !choice.deadline().over(); ++i)
    budget -= std::max<int64_t>(0, peakWithin(budget) - options.ram_budget_bytes);
  if (choice.any()) return choice.finish("");
  // The same budgets whatever was asked for: what is reported as the least does.
  const int64_t most = simulatePlain(graph, profile).peak_bytes;
  for (int i = 0; i <= kBudgetsTried && !choice.deadline().over(); ++i)
    peakWithin(problem.floor_bytes + (most - problem.floor_bytes) * i / kBudgetsTried);
  if (!choice.any() && choice.deadline().over())
    return choice.without(Status::kTimeLimit, "the policy did not come to its end in time");
  return choice.finish("the least that the policy comes to");
}

}  // namespace poet::methods
