#include "planner/candidates.h"

#include <algorithm>
#include <queue>

namespace poet::planner {
namespace {

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
WaysBack waysBack(const Problem& problem, int value, int t, int near) {
  const Evictable& v = problem.values[static_cast<size_t>(value)];
  WaysBack ways;
  if (!farFromTouch(problem, value, t, near)) return ways;
  if (v.recipe >= 0 && problem.runnable(v.recipe, t) &&
      !problem.replays[static_cast<size_t>(v.recipe)].dominated)
    ways.recipe = v.recipe;
  if (v.page >= 0 && problem.runnable(v.page, t)) ways.page = v.page;
  return ways;
}

// Walks the ancestors of one stage's inputs, latest first.
std::vector<int> latestAncestors(const Problem& problem, int t, int count, int near) {
  std::vector<char> seen(problem.values.size(), 0);
  std::priority_queue<std::pair<int, int>> queue;  // (order of the replay, value)
  std::vector<int> pages;
  const auto offer = [&](int v) {
    if (seen[static_cast<size_t>(v)]) return;
    seen[static_cast<size_t>(v)] = 1;
    const WaysBack ways = waysBack(problem, v, t, near);
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

Candidates ancestorCandidates(const Problem& problem, int count, int near) {
  Candidates candidates(problem.stages.size());
  for (int t = 0; t < problem.numStages(); ++t) {
    candidates[static_cast<size_t>(t)] = latestAncestors(problem, t, count, near);
  }
  include(problem, problem.leastPlan(), candidates);
  return candidates;
}

Candidates allCandidates(const Problem& problem, int rounds, int ahead) {
  // Last stage in which a value is touched, by plain training or by a replay that may still run.
  std::vector<int> last_touch(problem.values.size(), -1);
  for (size_t v = 0; v < problem.values.size(); ++v) {
    if (!problem.values[v].use_stages.empty()) last_touch[v] = problem.values[v].use_stages.back();
  }
  for (size_t r = problem.replays.size(); r-- > 0;) {
    const Replay& replay = problem.replays[r];
    if (replay.dominated) continue;
    int last = -1;
    for (const int v : replay.outputs) last = std::max(last, last_touch[static_cast<size_t>(v)]);
    last = std::min(last, replay.until_stage);
    for (const int u : replay.inputs)
      last_touch[static_cast<size_t>(u)] = std::max(last_touch[static_cast<size_t>(u)], last);
  }
  // A page-in reads nothing: put off until right before the touch that it is for it costs the same
  // and takes less memory. Only wake-ups may be saved by an earlier one.
  const bool pages_wait = problem.costOfWakeUp() <= 0;
  Candidates candidates(problem.stages.size());
  for (int t = 0; t < problem.numStages(); ++t) {
    std::vector<char> is_read(problem.values.size(), 0);
    for (int served = t; served <= std::min(t + ahead, problem.endStage()); ++served) {
      for (const int v : problem.stages[static_cast<size_t>(served)].needs)
        is_read[static_cast<size_t>(v)] = 1;
    }
    std::vector<int> once;
    for (size_t r = problem.replays.size(); r-- > 0;) {  // readers before what they read
      const Replay& replay = problem.replays[r];
      if (replay.dominated || !problem.runnable(static_cast<int>(r), t)) continue;
      const bool asked = std::any_of(replay.outputs.begin(), replay.outputs.end(), [&](int v) {
        const auto i = static_cast<size_t>(v);
        return replay.is_page && pages_wait ? is_read[i] != 0 : last_touch[i] >= t;
      });
      if (!asked) continue;
      once.push_back(static_cast<int>(r));
      for (const int u : replay.inputs) is_read[static_cast<size_t>(u)] = 1;
    }
    std::reverse(once.begin(), once.end());
    auto& stage = candidates[static_cast<size_t>(t)];
    for (int round = 0; round < rounds; ++round)
      stage.insert(stage.end(), once.begin(), once.end());
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
