#include "planner/exhaustive.h"

#include <algorithm>
#include <map>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "graph/recipes.h"
#include "schedule/simulator.h"

namespace poet::testing {
namespace {

using Mask = uint32_t;

class Search {
 public:
  Search(const Graph& graph, const DeviceProfile& profile, int64_t budget, const Allowed& allowed)
      : graph_(graph), profile_(profile), budget_(budget), allowed_(allowed), table_(graph) {
    for (int64_t i = 0; i < graph.numValues(); ++i) {
      const ValueId v(i);
      const bool may_leave =
          (allowed.recompute && table_.recipeOf(v) >= 0) ||
          (allowed.paging && graph.value(v).evictable && graph.value(v).death.valid());
      bit_.push_back(may_leave ? static_cast<int>(values_.size()) : -1);
      if (bit_.back() >= 0) values_.push_back(ValueId(i));
    }
    if (values_.size() > 20)
      throw std::invalid_argument("too many values for an exhaustive search");
    generator_.assign(static_cast<size_t>(graph.numOps()), -1);
    int generators = 0;
    for (const Recipe& recipe : table_.recipes()) {
      for (const OpId op : recipe.ops) {
        if (graph.op(op).random) generator_[static_cast<size_t>(op.index)] = generators++;
      }
    }
    for (int64_t k = 0; k <= graph.numOps(); ++k) fixed_.push_back(fixedBefore(OpId(k)));
  }

  std::optional<double> run() {
    State start{0, 0, 0, 0};
    for (const ValueId v : values_) {
      if (graph_.value(v).producer == kNoOp) start.resident |= bitOf(v);
    }
    if (bytesOf(start) > budget_) return std::nullopt;
    push({}, start);
    while (!queue_.empty()) {
      const auto [spent, state] = queue_.top();
      queue_.pop();
      const std::vector<Spent>& best = best_.at(state);
      if (std::find(best.begin(), best.end(), spent) == best.end()) continue;  // there is a better
      if (state.next == graph_.numOps() && atEnd(state)) return spent.cost;
      freeOne(spent, state);
      if (allowed_.recompute) replayOne(spent, state);
      if (allowed_.paging) pageOne(spent, state);
      if (state.next < graph_.numOps()) runNext(spent, state);
    }
    return std::nullopt;
  }

 private:
  struct State {
    int64_t next;
    Mask resident;
    Mask generators;
    Mask stored;  // good copies
    auto operator<=>(const State&) const = default;
  };
  struct Spent {
    double cost = 0;     // joules or seconds
    double seconds = 0;  // 0 where nothing limits them
    Spent with(double more_cost, double more_seconds) const {
      return {cost + more_cost, seconds + more_seconds};
    }
    bool isAsGoodAs(const Spent& other) const {
      return cost <= other.cost && seconds <= other.seconds;
    }
    auto operator<=>(const Spent&) const = default;
  };
  using Entry = std::pair<Spent, State>;

  Mask bitOf(ValueId v) const {
    const int bit = bit_[static_cast<size_t>(v.index)];
    return bit < 0 ? 0 : Mask{1} << bit;
  }

  void push(Spent spent, const State& state) {
    if (!allowed_.seconds_limit) {
      spent.seconds = 0;
    } else if (spent.seconds > *allowed_.seconds_limit) {
      return;
    }
    std::vector<Spent>& best = best_[state];
    for (const Spent& known : best) {
      if (known.isAsGoodAs(spent)) return;
    }
    std::erase_if(best, [&](const Spent& known) { return spent.isAsGoodAs(known); });
    best.push_back(spent);
    queue_.emplace(spent, state);
  }

  // Values without a recipe live as in plain training.
  int64_t fixedBefore(OpId position) const {
    int64_t bytes = graph_.baseBytes();
    for (int64_t i = 0; i < graph_.numValues(); ++i) {
      if (bit_[static_cast<size_t>(i)] < 0 && alive(ValueId(i), position))
        bytes += graph_.value(ValueId(i)).bytes;
    }
    return bytes;
  }
  bool alive(ValueId v, OpId position) const {
    return graph_.value(v).producer < position && graph_.value(v).death >= position;
  }
  int64_t bytesOf(const State& state) const {
    int64_t bytes = fixed_[static_cast<size_t>(state.next)];
    for (size_t i = 0; i < values_.size(); ++i) {
      if (state.resident >> i & 1) bytes += graph_.value(values_[i]).bytes;
    }
    return bytes + profile_.generator_state_bytes * __builtin_popcount(state.generators);
  }
  int64_t madeBytes(OpId op) const {
    int64_t bytes = 0;
    for (const ValueId v : graph_.madeBy(op)) bytes += graph_.value(v).bytes;
    return bytes;
  }
  int versionBefore(ValueId v, OpId position) const {
    const auto& writers = graph_.writersOf(v);
    return static_cast<int>(std::lower_bound(writers.begin(), writers.end(), position) -
                            writers.begin());
  }

  bool atEnd(const State& state) const {
    return std::all_of(values_.begin(), values_.end(), [&](ValueId v) {
      return graph_.value(v).death < graph_.endOfStep() || (state.resident & bitOf(v));
    });
  }

  void freeOne(const Spent& spent, const State& state) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const auto& writers = graph_.writersOf(values_[i]);
      const bool written_later = !writers.empty() && writers.back().index >= state.next;
      // What can come back from the store only must be there, while the program has it.
      const bool stored = state.stored >> i & 1;
      const bool recipe = allowed_.recompute && table_.recipeOf(values_[i]) >= 0;
      const bool dead = graph_.value(values_[i]).death.index < state.next;
      if (!(state.resident >> i & 1)) continue;
      if (stored || dead || (recipe && !written_later)) {
        push(spent, {state.next, state.resident & ~(Mask{1} << i), state.generators, state.stored});
      }
    }
  }

  double priceOf(double transfer_seconds) const {
    if (!allowed_.joules) return transfer_seconds;
    return transfer_seconds * (profile_.alwaysWatts() + profile_.store_watts);
  }
  double priceOfReplay(double seconds) const {
    return allowed_.joules ? seconds * (profile_.busyWatts() + profile_.alwaysWatts()) : seconds;
  }

  void pushTransfer(const Spent& spent, double seconds, const State& after) {
    push(spent.with(priceOf(seconds), seconds), after);
  }

  void pageOne(const Spent& spent, const State& state) {
    for (size_t i = 0; i < values_.size(); ++i) {
      const Mask bit = Mask{1} << i;
      const int64_t bytes = graph_.value(values_[i]).bytes;
      const bool made = graph_.value(values_[i]).producer.index < state.next;
      const bool gone =
          table_.recipeOf(values_[i]) < 0 && graph_.value(values_[i]).death.index < state.next;
      if (!graph_.value(values_[i]).evictable || !made || gone) continue;
      State after = state;
      if (!(state.stored & bit)) {
        if (!(state.resident & bit)) continue;
        after.stored |= bit;
        pushTransfer(spent, profile_.pageOutSeconds(bytes), after);
      } else if (!(state.resident & bit)) {
        after.resident |= bit;
        if (bytesOf(after) > budget_) continue;
        pushTransfer(spent, profile_.pageInSeconds(bytes), after);
      }
    }
  }

  bool mayReplay(const Recipe& recipe, const State& state) const {
    if (recipe.lastOp().index >= state.next || !recipe.mayRun()) return false;
    for (const OpId op : recipe.ops) {
      const int generator = generator_[static_cast<size_t>(op.index)];
      if (generator >= 0 && !(state.generators >> generator & 1)) return false;
      for (const ValueId u : graph_.dataInputs(op)) {
        if (graph_.value(u).producer == recipe.producer()) continue;
        const auto& statistics = graph_.op(op).statistics;
        if (std::binary_search(statistics.begin(), statistics.end(), u)) continue;
        const OpId here(state.next);
        const bool there = bit_[static_cast<size_t>(u.index)] >= 0
                               ? (state.resident & bitOf(u)) != 0
                               : alive(u, here);
        if (!there || versionBefore(u, op) != versionBefore(u, here)) return false;
      }
    }
    return true;
  }

  void replayOne(const Spent& spent, const State& state) {
    for (const Recipe& recipe : table_.recipes()) {
      if (!mayReplay(recipe, state)) continue;
      if (bytesOf(state) + recipe.output_bytes + recipe.workspace_bytes > budget_) continue;
      State after = state;
      double seconds = 0;
      for (const ValueId v : recipe.outputs) after.resident |= bitOf(v);
      for (const OpId op : recipe.ops) seconds += profile_.replaySeconds(graph_.op(op));
      push(spent.with(priceOfReplay(seconds), seconds), after);
    }
  }

  void runNext(const Spent& spent, const State& state) {
    const OpId op(state.next);
    for (const ValueId v : graph_.dataInputs(op)) {
      if (bit_[static_cast<size_t>(v.index)] >= 0 && !(state.resident & bitOf(v))) return;
    }
    for (const ValueId v : values_) {
      const bool ends_here = graph_.value(v).death == op && graph_.value(v).producer < op;
      if (ends_here && table_.mustEndResident(v) && !(state.resident & bitOf(v))) return;
    }
    const int generator = generator_[static_cast<size_t>(op.index)];
    for (int keep = 0; keep <= (generator >= 0 ? 1 : 0); ++keep) {
      State during = state;
      if (keep) during.generators |= Mask{1} << generator;
      if (bytesOf(during) + madeBytes(op) + graph_.op(op).workspace_bytes > budget_) continue;
      during.next += 1;
      for (const ValueId v : graph_.madeBy(op)) during.resident |= bitOf(v);
      for (const ValueId v : graph_.op(op).mutates) during.stored &= ~bitOf(v);
      for (const ValueId v : values_) {  // natural deaths; a replay may have kept what has a recipe
        if (graph_.value(v).death == op && table_.recipeOf(v) < 0) during.resident &= ~bitOf(v);
      }
      push(spent, during);
    }
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const int64_t budget_;
  const Allowed allowed_;
  const RecipeTable table_;
  std::vector<int> bit_;         // by value
  std::vector<ValueId> values_;  // with a recipe
  std::vector<int> generator_;   // by op
  std::vector<int64_t> fixed_;   // by position
  std::map<State, std::vector<Spent>> best_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

std::optional<double> exhaustiveReplaySeconds(const Graph& graph, const DeviceProfile& profile,
                                              int64_t budget_bytes) {
  return exhaustiveExtra(graph, profile, budget_bytes, {});
}

std::optional<double> exhaustiveExtra(const Graph& graph, const DeviceProfile& profile,
                                      int64_t budget_bytes, const Allowed& allowed) {
  return Search(graph, profile, budget_bytes, allowed).run();
}

std::optional<int64_t> exhaustivePeak(const Graph& graph, const DeviceProfile& profile,
                                      std::optional<double> limit) {
  int64_t low = 0,
          high = simulatePlain(graph, profile).peak_bytes;  // high has a plan, low has none
  const auto possible = [&](int64_t budget) {
    const auto seconds = exhaustiveReplaySeconds(graph, profile, budget);
    return seconds && (!limit || *seconds <= *limit + 1e-9);
  };
  if (limit && *limit < 0) return std::nullopt;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (possible(middle) ? high : low) = middle;
  }
  return high;
}

}  // namespace poet::testing
