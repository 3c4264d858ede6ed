#include "planner/dear_replays.h"

#include <algorithm>
#include <map>
#include <utility>

namespace poet::planner {
namespace {

constexpr double kDearShare = 0.03;
constexpr size_t kMostDear = 12, kMostPaired = 5;

// The page-in of what starts away (Problem::leastPlan).
bool isInEveryPlan(const Problem& problem, const Replay& replay) {
  return replay.is_page && problem.values[static_cast<size_t>(replay.outputs.front())].starts_away;
}

}  // namespace

std::vector<std::vector<int>> dearestReplays(const Problem& problem, const ReplayPlan& plan) {
  std::map<int, double> cost_of;
  double total = 0;
  for (const std::vector<int>& stage : plan.by_stage) {
    for (const int r : stage) {
      const Replay& replay = problem.replays[static_cast<size_t>(r)];
      if (isInEveryPlan(problem, replay)) continue;
      const auto [known, is_first] = cost_of.try_emplace(r, replay.once_cost);
      known->second += replay.cost;
      total += replay.cost + (is_first ? replay.once_cost : 0);
    }
  }
  std::vector<std::pair<double, int>> dearest;
  for (const auto& [r, cost] : cost_of) {
    if (cost > 0 && cost >= kDearShare * total) dearest.emplace_back(-cost, r);
  }
  std::sort(dearest.begin(), dearest.end());
  if (dearest.size() > kMostDear) dearest.resize(kMostDear);
  std::vector<std::vector<int>> sets;
  for (size_t i = 0; i < dearest.size(); ++i) {
    sets.push_back({dearest[i].second});
    for (size_t j = 0; j < i && i < kMostPaired; ++j)
      sets.push_back({dearest[j].second, dearest[i].second});
  }
  return sets;
}

}  // namespace poet::planner
