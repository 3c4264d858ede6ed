#include "planner/state_search.h"

#include <algorithm>
#include <bit>
#include <queue>
#include <unordered_map>
#include <vector>

namespace poet::planner {
namespace {

constexpr int kMostValues = 24;
constexpr int kMostGenerators = 16;
constexpr size_t kMostStates = 400'000;
constexpr size_t kStatesPerLook = 4096;    // at the clock
constexpr double kSecondsPerState = 2e-6;  // of work

class StateSearch {
 public:
  StateSearch(const Problem& problem, int64_t budget_bytes, double most_cost,
              const Deadline& deadline)
      : problem_(problem), budget_(budget_bytes), most_cost_(most_cost), deadline_(deadline) {
    generator_of_.resize(problem.replays.size(), 0);
    finished_.resize(problem.stages.size(), 0);
    for (int v = 0; v < std::min(problem.numValues(), kMostValues); ++v) {
      const Evictable& value = problem.values[static_cast<size_t>(v)];
      if (value.goes_on) finished_[static_cast<size_t>(value.use_stages.back())] |= Mask{1} << v;
    }
    for (size_t r = 0; r < problem.replays.size(); ++r) {
      for (const int t : problem.replays[r].random_stages) {
        generator_of_[r] |= Mask{1} << generator_stages_.size();
        generator_stages_.push_back(t);
      }
    }
  }

  StateSearchResult run() {
    StateSearchResult result;
    if (problem_.numValues() > kMostValues || generator_stages_.size() > kMostGenerators) {
      return result;
    }
    result.complete = problem_.start_bytes > budget_;
    if (result.complete) return result;
    State start;
    for (int v = 0; v < problem_.numValues(); ++v) {
      const Evictable& value = problem_.values[static_cast<size_t>(v)];
      if (value.first_stage < 0 && !value.starts_away) start.resident |= Mask{1} << v;
    }
    push(start, problem_.constant_cost, -1, -1);
    while (!queue_.empty()) {
      const Entry entry = queue_.top();
      queue_.pop();
      const Node node = nodes_[static_cast<size_t>(entry.node)];
      if (node.cost < entry.cost) continue;
      if (nodes_.size() > kMostStates) return result;
      chargeWork(kSecondsPerState);
      if (entry.node % kStatesPerLook == 0 && deadline_.over()) return result;
      if (node.state.stage == problem_.numStages()) {
        result.complete = true;
        result.plan = planTo(entry.node);
        return result;
      }
      expand(entry.node);
    }
    result.complete = true;
    return result;
  }

 private:
  using Mask = uint32_t;
  struct State {
    int stage = 0;  // whose op runs next
    Mask resident = 0;
    Mask generators = 0;
    Mask stored = 0;  // values whose page_out has been paid for
    bool operator==(const State&) const = default;
  };
  struct StateHash {
    size_t operator()(const State& s) const {
      uint64_t h = (uint64_t{s.resident} << 32 | s.generators) ^
                   (static_cast<uint64_t>(s.stage) * 0x9e3779b97f4a7c15ULL) ^
                   (s.stored * 0xd6e8feb86659fd93ULL);
      h = (h ^ (h >> 30)) * 0xbf58476d1ce4e5b9ULL;
      return static_cast<size_t>(h ^ (h >> 27));
    }
  };
  struct Node {
    State state;
    double cost = 0;
    int parent = -1;
    int replay = -1;  // that led here; -1: a free or a first execution
  };
  struct Entry {
    double cost;
    int node;
    bool operator<(const Entry& other) const {
      return cost != other.cost ? cost > other.cost : node > other.node;
    }
  };

  void push(const State& state, double cost, int parent, int replay) {
    if (cost > most_cost_) return;
    const auto [place, fresh] = index_.try_emplace(state, static_cast<int>(nodes_.size()));
    if (fresh) {
      nodes_.push_back({state, cost, parent, replay});
    } else {
      Node& known = nodes_[static_cast<size_t>(place->second)];
      if (known.cost <= cost) return;
      known = {state, cost, parent, replay};
    }
    queue_.push({cost, place->second});
  }

  bool has(Mask mask, int i) const { return (mask >> i) & 1; }
  Mask maskOf(const std::vector<int>& values) const {
    Mask mask = 0;
    for (const int v : values) mask |= Mask{1} << v;
    return mask;
  }
  int64_t bytesOf(const State& state) const {
    int64_t bytes = problem_.generator_bytes * std::popcount(state.generators);
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (has(state.resident, v)) bytes += problem_.values[static_cast<size_t>(v)].bytes;
    }
    return bytes;
  }

  void expand(int index) {
    const State state = nodes_[static_cast<size_t>(index)].state;
    const double cost = nodes_[static_cast<size_t>(index)].cost;
    const Stage& stage = problem_.stages[static_cast<size_t>(state.stage)];
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (!has(state.resident, v) ||
          problem_.values[static_cast<size_t>(v)].pin_stage >= state.stage)
        continue;
      push({state.stage, state.resident & ~(Mask{1} << v), state.generators, state.stored}, cost,
           index, -1);
    }
    const int64_t bytes = bytesOf(state);
    for (size_t r = 0; r < problem_.replays.size(); ++r) {
      const Replay& replay = problem_.replays[r];
      if (!problem_.runnable(static_cast<int>(r), state.stage)) continue;
      if ((state.generators & generator_of_[r]) != generator_of_[r]) continue;
      const Mask inputs = maskOf(replay.inputs);
      if ((state.resident & inputs) != inputs) continue;
      if (bytes + stage.fixed_before_bytes + replay.replay_bytes > budget_) continue;
      const Mask outputs = maskOf(replay.outputs);
      const bool pays_once = replay.once_cost > 0 && (state.stored & outputs) == 0;
      push({state.stage, state.resident | outputs, state.generators,
            state.stored | (replay.once_cost > 0 ? outputs : 0)},
           cost + replay.cost + (pays_once ? replay.once_cost : 0), index, static_cast<int>(r));
    }
    const Mask needs = maskOf(stage.needs);
    if ((state.resident & needs) == needs) execute(index, state, cost, bytes);
  }

  // Each generator that is first drawn from in this stage may be kept from now on, or not.
  void execute(int index, const State& state, double cost, int64_t bytes) {
    const Stage& stage = problem_.stages[static_cast<size_t>(state.stage)];
    std::vector<Mask> choices = {0};
    for (size_t g = 0; g < generator_stages_.size(); ++g) {
      if (generator_stages_[g] != state.stage) continue;
      for (size_t i = 0, n = choices.size(); i < n; ++i)
        choices.push_back(choices[i] | Mask{1} << g);
    }
    for (const Mask kept : choices) {
      if (bytes + stage.fixed_during_bytes + problem_.generator_bytes * std::popcount(kept) >
          budget_)
        continue;
      push({state.stage + 1,
            (state.resident & ~finished_[static_cast<size_t>(state.stage)]) | maskOf(stage.born),
            state.generators | kept, state.stored},
           cost, index, -1);
    }
  }

  ReplayPlan planTo(int index) const {
    ReplayPlan plan;
    plan.by_stage.resize(problem_.stages.size());
    for (; index >= 0; index = nodes_[static_cast<size_t>(index)].parent) {
      const Node& node = nodes_[static_cast<size_t>(index)];
      if (node.replay >= 0)
        plan.by_stage[static_cast<size_t>(node.state.stage)].push_back(node.replay);
    }
    for (auto& stage : plan.by_stage) std::reverse(stage.begin(), stage.end());
    return plan;
  }

  const Problem& problem_;
  const int64_t budget_;
  const double most_cost_;
  const Deadline& deadline_;
  std::vector<Mask> generator_of_;  // by replay: bits of generator_stages_
  std::vector<int> generator_stages_;
  std::vector<Mask> finished_;  // by stage: segments that the next ones take over from
  std::vector<Node> nodes_;
  std::unordered_map<State, int, StateHash> index_;
  std::priority_queue<Entry> queue_;
};

}  // namespace

StateSearchResult searchStates(const Problem& problem, int64_t budget_bytes, double most_cost,
                               const Deadline& deadline) {
  return StateSearch(problem, budget_bytes, most_cost, deadline).run();
}

}  // namespace poet::planner
