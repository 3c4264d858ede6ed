#include "planner/replay_plan.h"

#include <map>
#include <tuple>

#include "planner/problem.h"

namespace poet::planner {
namespace {

// Of a recipe its place in the table, of a page-in the value and where it begins.
using ReplayKey = std::tuple<int, ValueId, int>;

ReplayKey replayKeyOf(const Problem& problem, const Replay& replay) {
  if (!replay.is_page) return {replay.table_index, ValueId{}, -1};
  const Evictable& value = problem.values[static_cast<size_t>(replay.outputs.front())];
  return {-1, value.id, value.first_stage};
}

}  // namespace

ReplayPlan translated(const ReplayPlan& plan, const Problem& from, const Problem& to) {
  std::map<ReplayKey, int> known;
  for (size_t r = 0; r < to.replays.size(); ++r)
    known.emplace(replayKeyOf(to, to.replays[r]), static_cast<int>(r));
  ReplayPlan result;
  for (const std::vector<int>& stage : plan.by_stage) {
    auto& replays = result.by_stage.emplace_back();
    for (const int r : stage) {
      const auto found = known.find(replayKeyOf(from, from.replays[static_cast<size_t>(r)]));
      if (found != known.end()) replays.push_back(found->second);
    }
  }
  return result;
}

}  // namespace poet::planner
