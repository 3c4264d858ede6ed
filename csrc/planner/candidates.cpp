#include "planner/candidates.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

namespace poet::planner {
namespace {

bool mayServe(const Replay& replay, double most_cost) {
  return !replay.dominated && replay.cost + replay.once_cost <= most_cost;
}

bool farFromTouch(const Problem& problem, int value, int t, int near) {
  const int touched = problem.plainTouchBefore(value, t);
  const bool exists = touched >= 0 || problem.values[static_cast<size_t>(value)].first_stage < 0;
  return exists && t - touched >= near;
}

// Of the value's recipe and its page-in, what may serve stage t; -1 for what may not.
struct WaysBack {
  int recipe = -1;
  int page = -1;
};
WaysBack waysBack(const Problem& problem, int value, int t, int near, double most_cost) {
  const Evictable& v = problem.values[static_cast<size_t>(value)];
  WaysBack ways;
  if (!farFromTouch(problem, value, t, near)) return ways;
  const auto serves = [&](int r) {
    return r >= 0 && problem.runnable(r, t) &&
           mayServe(problem.replays[static_cast<size_t>(r)], most_cost);
  };
  if (serves(v.recipe)) ways.recipe = v.recipe;
  if (serves(v.page)) ways.page = v.page;
  return ways;
}

// Walks the ancestors of one stage's inputs, latest first.
std::vector<int> latestAncestors(const Problem& problem, int t, int count, int near,
                                 double most_cost) {
  std::vector<char> seen(problem.values.size(), 0);
  std::priority_queue<std::pair<int, int>> queue;  // (order of the replay, value)
  std::vector<int> pages;
  const auto offer = [&](int v) {
    if (seen[static_cast<size_t>(v)]) return;
    seen[static_cast<size_t>(v)] = 1;
    const WaysBack ways = waysBack(problem, v, t, near, most_cost);
    if (ways.recipe >= 0) queue.emplace(ways.recipe, v);
    if (ways.page >= 0) pages.push_back(ways.page);
  };
  for (const int v : problem.stages[static_cast<size_t>(t)].needs) offer(v);
  std::vector<int> found;
  while (!queue.empty() && static_cast<int>(found.size()) < count) {
    const int r = queue.top().first;
    queue.pop();
    if (!found.empty() && found.back() == r) continue;
    found.push_back(r);
    for (const int u : problem.replays[static_cast<size_t>(r)].inputs) offer(u);
  }
  // The last ones that were offered are inputs of recipes that did not make it into `found`: their
  // page-ins do no harm.
  found.insert(found.end(), pages.begin(), pages.end());
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace

Candidates ancestorCandidates(const Problem& problem, int count, int near, double most_cost) {
  Candidates candidates(problem.stages.size());
  for (int t = 0; t < problem.numStages(); ++t) {
    candidates[static_cast<size_t>(t)] = latestAncestors(problem, t, count, near, most_cost);
  }
  include(problem, problem.leastPlan(), candidates);
  return candidates;
}

namespace {

// The replays of one stage after the other, for allCandidates().
class EveryReplay {
 public:
  EveryReplay(const Problem& problem, const CandidateOptions& options)
      : problem_(problem),
        options_(options),
        step_(options.ahead + 1),
        may_move_(problem.costOfWakeUp() <= 0),
        is_touched_(problem.values.size()),
        is_near_(problem.values.size()),
        makers_done_(problem.values.size()),
        readers_done_(problem.values.size()),
        path_cost_(problem.replays.size()),
        makers_(problem.values.size()),
        readers_(problem.values.size()) {
    findLastTouches();
    for (size_t r = 0; r < problem.replays.size(); ++r) {
      const Replay& replay = problem.replays[r];
      waits_.push_back(waits(replay) ? 1 : 0);
      for (const int v : replay.outputs) makers_[at(v)].push_back(static_cast<int>(r));
      for (const int u : replay.inputs) readers_[at(u)].push_back(static_cast<int>(r));
    }
  }

  // In the order of the micro-steps.
  std::vector<int> of(int t) {
    markTouched(t);
    if (anchorsDecide()) {
      markNear(t);
      walkFromAnchors(t);
    }
    std::vector<int> found;
    for (size_t r = problem_.replays.size(); r-- > 0;) {  // readers before what they read
      if (!isWanted(r, t)) continue;
      found.push_back(static_cast<int>(r));
      for (const int u : problem_.replays[r].inputs) is_touched_[at(u)] = 1;
    }
    std::reverse(found.begin(), found.end());
    return found;
  }

 private:
  static size_t at(int v) { return static_cast<size_t>(v); }
  const Stage& stage(int t) const { return problem_.stages[static_cast<size_t>(t)]; }
  const Replay& replay(int r) const { return problem_.replays[static_cast<size_t>(r)]; }
  bool anchorsDecide() const { return may_move_ && !options_.rows_at_replays; }

  // Last stage in which a value is touched, by plain training or by a replay that may still run.
  void findLastTouches() {
    for (const Evictable& value : problem_.values)
      last_touch_.push_back(value.use_stages.empty() ? -1 : value.use_stages.back());
    for (size_t r = problem_.replays.size(); r-- > 0;) {
      const Replay& replay = problem_.replays[r];
      if (!mayServe(replay, options_.most_cost)) continue;
      int last = -1;
      for (const int v : replay.outputs) last = std::max(last, last_touch_[at(v)]);
      last = std::min(last, replay.until_stage);
      for (const int u : replay.inputs) last_touch_[at(u)] = std::max(last_touch_[at(u)], last);
    }
  }

  // Whether it may be put off until right before the touch that it is for, and no memory row sees
  // more. Only wake-ups may be saved by an earlier page-in.
  bool waits(const Replay& replay) const {
    if (!may_move_) return false;
    if (replay.is_page) return true;
    if (options_.rows_at_replays) return false;
    int64_t in = 0;
    for (const int u : replay.inputs) in += problem_.values[at(u)].bytes;
    return std::all_of(replay.outputs.begin(), replay.outputs.end(),
                       [&](int v) { return in <= problem_.values[at(v)].bytes; });
  }

  bool mayRun(size_t r, int t) const {
    const Replay& replay = problem_.replays[r];
    return mayServe(replay, options_.most_cost) && problem_.runnable(static_cast<int>(r), t) &&
           std::any_of(replay.outputs.begin(), replay.outputs.end(),
                       [&](int v) { return last_touch_[at(v)] >= t; });
  }

  bool isTouched(const Replay& replay) const {
    return std::any_of(replay.outputs.begin(), replay.outputs.end(),
                       [&](int v) { return is_touched_[at(v)] != 0; });
  }

  void markTouched(int t) {
    std::fill(is_touched_.begin(), is_touched_.end(), 0);
    for (int served = t; served <= std::min(t + options_.ahead, problem_.endStage()); ++served) {
      for (const int v : stage(served).needs) is_touched_[at(v)] = 1;
    }
  }

  // What the op before the stage touches or bears; and, where nobody looks at memory during the
  // stage's own ops, what they do.
  void markNear(int t) {
    std::fill(is_near_.begin(), is_near_.end(), 0);
    for (int s = std::max(0, t - 1); s < t + options_.ahead; ++s) {
      for (const int v : stage(s).needs) is_near_[at(v)] = 1;
      for (const int v : stage(s).born) is_near_[at(v)] = 1;
    }
  }

  bool isAnchor(size_t r, int t) const {
    const Replay& replay = problem_.replays[r];
    return isTouched(replay) || cannotWait(replay, t) || replay.last_stage >= t - step_ ||
           std::any_of(replay.inputs.begin(), replay.inputs.end(),
                       [&](int u) { return is_near_[at(u)] != 0; });
  }

  bool cannotWait(const Replay& replay, int t) const { return replay.until_stage < t + step_; }

  // The cheapest way from an anchor to each replay over such as share a value: all that is on a way
  // is paid for in this stage. Shortest paths (Dijkstra).
  void walkFromAnchors(int t) {
    std::fill(path_cost_.begin(), path_cost_.end(), kAnyCost);
    std::fill(makers_done_.begin(), makers_done_.end(), 0);
    std::fill(readers_done_.begin(), readers_done_.end(), 0);
    using Entry = std::pair<double, int>;
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
    const auto reach = [&](int r, double before) {
      const double cost = before + replay(r).cost + replay(r).once_cost;
      double& known = path_cost_[static_cast<size_t>(r)];
      if (cost >= known || cost > options_.most_cost || !mayRun(static_cast<size_t>(r), t)) return;
      known = cost;
      queue.emplace(cost, r);
    };
    for (size_t r = 0; r < path_cost_.size(); ++r) {
      if (isAnchor(r, t)) reach(static_cast<int>(r), 0);
    }
    while (!queue.empty()) {
      const auto [cost, r] = queue.top();
      queue.pop();
      if (cost > path_cost_[static_cast<size_t>(r)]) continue;
      // The first that reaches the others by a value is the cheapest.
      const auto reach_all = [&, before = cost](const std::vector<int>& others, char& done) {
        if (std::exchange(done, 1) != 0) return;
        for (const int other : others) reach(other, before);
      };
      for (const int v : replay(r).outputs) reach_all(readers_[at(v)], readers_done_[at(v)]);
      for (const int u : replay(r).inputs) {
        reach_all(makers_[at(u)], makers_done_[at(u)]);
        reach_all(readers_[at(u)], readers_done_[at(u)]);
      }
    }
  }

  // Once what reads its outputs is known.
  bool isWanted(size_t r, int t) const {
    if (!mayRun(r, t)) return false;
    if (anchorsDecide() && path_cost_[r] == kAnyCost) return false;
    const Replay& replay = problem_.replays[r];
    return waits_[r] == 0 || isTouched(replay) || cannotWait(replay, t);
  }

  const Problem& problem_;
  const CandidateOptions options_;
  const int step_;               // to the next stage that has replays
  const bool may_move_;          // waking the store costs nothing
  std::vector<int> last_touch_;  // by value
  std::vector<char> waits_;      // by replay
  // Of one stage. Touched: by an op that it serves, or a replay of it.
  std::vector<char> is_touched_, is_near_;
  std::vector<char> makers_done_, readers_done_;  // by value: reached over it
  std::vector<double> path_cost_;
  std::vector<std::vector<int>> makers_, readers_;  // replays by value
};

}  // namespace

Candidates allCandidates(const Problem& problem, const CandidateOptions& options) {
  EveryReplay every(problem, options);
  Candidates candidates(problem.stages.size());
  size_t count = 0;
  for (int t = 0; t < problem.numStages() && count <= options.enough; t += options.ahead + 1) {
    const std::vector<int> once = every.of(t);
    auto& stage = candidates[static_cast<size_t>(t)];
    for (int round = 0; round < options.rounds; ++round)
      stage.insert(stage.end(), once.begin(), once.end());
    count += stage.size();
  }
  return candidates;
}

void include(const Problem& problem, const ReplayPlan& plan, Candidates& candidates) {
  for (int t = 0; t < problem.numStages(); ++t) {
    auto& stage = candidates[static_cast<size_t>(t)];
    // Each replay of the plan takes the first place after the one before it; what has none is
    // merged in.
    std::vector<int> missing;
    const auto& replays = plan.by_stage[static_cast<size_t>(t)];
    for (const int r : replays) {
      if (std::find(stage.begin(), stage.end(), r) == stage.end()) missing.push_back(r);
    }
    std::sort(missing.begin(), missing.end());
    missing.erase(std::unique(missing.begin(), missing.end()), missing.end());
    std::vector<int> merged;
    std::merge(stage.begin(), stage.end(), missing.begin(), missing.end(),
               std::back_inserter(merged));
    if (std::is_sorted(stage.begin(), stage.end()))
      stage = std::move(merged);
    else
      stage.insert(stage.end(), missing.begin(), missing.end());
    // A second ascending run, where the plan goes back.
    size_t at = 0;
    for (const int r : replays) {
      while (at < stage.size() && stage[at] != r) ++at;
      if (at == stage.size()) {
        stage.push_back(r);
      }
      ++at;
    }
  }
}

size_t countCandidates(const Candidates& candidates) {
  size_t count = 0;
  for (const auto& stage : candidates) count += stage.size();
  return count;
}

}  // namespace poet::planner
