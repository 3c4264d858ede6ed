// page_all: every activation that backward reads goes to the store after forward's last use of it,
// and comes back when backward wants it.
//
// Paper: the ablation "page all" of POET (Patil et al., ICML 2022, Figure 3).
//
// Chosen: an activation is a value that forward makes and something behind forward reads; it comes
// back right before that. Bound: none. Weakness: it knows no budget and no price; where a store is
// slow it is slow, and what dies within forward or is not an activation stays.
#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"

namespace poet::methods {

Schedule planPageAll(const Graph& graph, const DeviceProfile& profile,
                     const SolveOptions& options) {
  const RecipeTable table(graph);
  const planner::Problem problem(
      graph, table, profile,
      {.objective = options.minimize, .recompute = false, .paging = options.paging});
  PlanChoice choice(problem, options, "page_all");
  const auto isForward = [&](int t) {
    return t >= 0 && t < problem.endStage() && graph.op(OpId(t)).phase == Phase::kForward;
  };
  PlanWalk walk(problem);
  for (int t = 0; t < problem.numStages(); ++t) {
    if (!isForward(t)) {
      for (const int v : problem.stages[static_cast<size_t>(t)].needs) {
        const planner::Evictable& value = problem.values[static_cast<size_t>(v)];
        if (value.page < 0 || !problem.runnable(value.page, t)) continue;
        const bool last_in_forward = isForward(problem.plainTouchBefore(v, t));
        if (!isForward(value.first_stage) || !last_in_forward) continue;
        walk.leaveForStore(v);
        walk.pageIn(v);
      }
    }
    walk.advance();
  }
  choice.offer(walk.take());
  return choice.finish("its one plan");
}

}  // namespace poet::methods
