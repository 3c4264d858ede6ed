#include "planner/replay_plan.h"

#include <map>
#include <utility>

#include "planner/problem.h"

namespace poet::planner {
namespace {

// What it makes, and whether by paging it in.
using ReplayKey = std::pair<bool, std::vector<std::pair<ValueId, int>>>;

ReplayKey replayKeyOf(const Problem& problem, const Replay& replay) {
  ReplayKey key{replay.is_page, {}};
  if (!replay.is_page) {
    for (const OpId op : replay.ops) key.second.emplace_back(ValueId{}, op.index);
    return key;
  }
  for (const int v : replay.outputs) {
    const Evictable& value = problem.values[static_cast<size_t>(v)];
    key.second.emplace_back(value.id, value.first_stage);
  }
  return key;
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
