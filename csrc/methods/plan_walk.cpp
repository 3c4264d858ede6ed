#include "methods/plan_walk.h"

#include <algorithm>

#include "graph/error.h"

namespace poet::methods {

using planner::Evictable;
using planner::Problem;
using planner::Replay;

PlanWalk::PlanWalk(const Problem& problem)
    : problem_(problem),
      asked_(planner::findAsked(problem)),
      there_(problem.values.size(), 0),
      chosen_(problem.replays.size(), 0) {
  plan_.by_stage.resize(problem.stages.size());
  for (size_t v = 0; v < there_.size(); ++v) {
    const Evictable& value = problem.values[v];
    there_[v] = value.first_stage < 0 && !value.starts_away;
  }
}

std::vector<int> PlanWalk::bring(std::span<const int> wanted) {
  std::vector<int> todo(wanted.begin(), wanted.end()), order;
  while (!todo.empty()) {
    const int v = todo.back();
    todo.pop_back();
    const int r = problem_.values[static_cast<size_t>(v)].recipe;
    if (there(v) || (r >= 0 && chosen_[static_cast<size_t>(r)])) continue;
    POET_INTERNAL_ASSERT(runsHere(r), "value ", v, " cannot come back in stage ", stage_);
    chosen_[static_cast<size_t>(r)] = 1;
    order.push_back(r);
    const Replay& replay = problem_.replays[static_cast<size_t>(r)];
    todo.insert(todo.end(), replay.inputs.begin(), replay.inputs.end());
  }
  std::sort(order.begin(), order.end());
  std::vector<int> made;
  for (const int r : order) {
    chosen_[static_cast<size_t>(r)] = 0;
    plan_.by_stage[static_cast<size_t>(stage_)].push_back(r);
    for (const int v : problem_.replays[static_cast<size_t>(r)].outputs) {
      if (!there(v)) made.push_back(v);
      there_[static_cast<size_t>(v)] = 1;
    }
  }
  std::sort(made.begin(), made.end());
  return made;
}

void PlanWalk::pageIn(int v) {
  if (there(v)) return;
  const int page = problem_.values[static_cast<size_t>(v)].page;
  POET_INTERNAL_ASSERT(runsHere(page), "value ", v, " cannot be paged in in stage ", stage_);
  plan_.by_stage[static_cast<size_t>(stage_)].push_back(page);
  there_[static_cast<size_t>(v)] = 1;
}

void PlanWalk::advance() {
  const planner::Stage& stage = problem_.stages[static_cast<size_t>(stage_)];
  bring(stage.needs);
  for (const int v : stage.born) there_[static_cast<size_t>(v)] = 1;
  ++stage_;
}

}  // namespace poet::methods
