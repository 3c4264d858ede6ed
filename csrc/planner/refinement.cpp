#include "planner/refinement.h"

#include <map>
#include <tuple>
#include <utility>

#include "graph/error.h"

namespace poet::planner {
namespace {

// Names a replay in both problems: by an output, whether it is a page-in, and of which segment.
using Key = std::tuple<ValueId, bool, int>;

std::map<Key, int> replaysByKey(const Problem& problem) {
  std::map<Key, int> replays;
  std::map<ValueId, int> segments;
  for (int v = 0; v < problem.numValues(); ++v) {
    const Evictable& value = problem.values[static_cast<size_t>(v)];
    const int segment = segments[value.id]++;
    if (value.recipe >= 0) replays[{value.id, false, segment}] = value.recipe;
    if (value.page >= 0) replays[{value.id, true, segment}] = value.page;
  }
  return replays;
}

ProblemOptions withoutCoarsening(ProblemOptions options) {
  options.coarsening = nullptr;
  return options;
}

}  // namespace

Refinement::Refinement(const Problem& coarse, const Coarsening& coarsening,
                       const RecipeTable& fine_table, ProblemOptions options)
    : coarse_(coarse),
      coarsening_(coarsening),
      fine_(coarsening.fine(), fine_table, coarse.profile(), withoutCoarsening(std::move(options))),
      fine_of_(coarse.replays.size(), -1),
      coarse_of_(fine_.replays.size(), -1) {
  const std::map<Key, int> fine = replaysByKey(fine_);
  for (const auto& [key, replay] : replaysByKey(coarse)) {
    const auto found = fine.find(key);
    POET_INTERNAL_ASSERT(found != fine.end(), "a replay of value ", std::get<ValueId>(key).index,
                         " exists in the coarse graph only");
    fine_of_[static_cast<size_t>(replay)] = found->second;
    coarse_of_[static_cast<size_t>(found->second)] = replay;
  }
}

ReplayPlan Refinement::refined(const ReplayPlan& coarse) const {
  ReplayPlan plan;
  plan.by_stage.resize(fine_.stages.size());
  for (size_t t = 0; t < coarse.by_stage.size(); ++t) {
    const OpId first = coarsening_.firstOf(OpId(static_cast<int64_t>(t)));
    for (const int r : coarse.by_stage[t]) {
      const int fine = fine_of_[static_cast<size_t>(r)];
      POET_INTERNAL_ASSERT(fine_.runnable(fine, first.index), "a replay cannot run before op ",
                           first.index);
      plan.by_stage[static_cast<size_t>(first.index)].push_back(fine);
    }
  }
  return plan;
}

std::optional<ReplayPlan> Refinement::coarsened(const ReplayPlan& fine) const {
  ReplayPlan plan;
  plan.by_stage.resize(coarse_.stages.size());
  for (size_t k = 0; k < fine.by_stage.size(); ++k) {
    const auto t = coarsening_.coarseOf(OpId(static_cast<int64_t>(k)));
    for (const int r : fine.by_stage[k]) {
      const int replay = coarse_of_[static_cast<size_t>(r)];
      if (replay < 0 || !coarse_.runnable(replay, t.index)) return std::nullopt;
      plan.by_stage[static_cast<size_t>(t.index)].push_back(replay);
    }
  }
  return plan;
}

}  // namespace poet::planner
