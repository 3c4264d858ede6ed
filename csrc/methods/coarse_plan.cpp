#include "methods/coarse_plan.h"

#include <optional>
#include <utility>

#include "graph/coarsening.h"
#include "graph/error.h"
#include "planner/extract.h"
#include "planner/problem.h"
#include "planner/refinement.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Problem;

// Without a plan.
Schedule asOfTheStep(Schedule found, const Graph& graph, const Coarsening& coarsening) {
  found.graph_signature = graph.signature();
  found.num_ops = graph.numOps();
  const OpId op = found.least_ram_op;
  if (op.valid() && op < coarsening.graph().endOfStep())
    found.least_ram_op = coarsening.firstOf(op);
  if (op == coarsening.graph().endOfStep()) found.least_ram_op = graph.endOfStep();
  return found;
}

Schedule withoutItsPlan(const Schedule& found) {
  Schedule bare = found;
  bare.before.clear();
  bare.after.clear();
  bare.recipes.clear();
  bare.away_between_steps.clear();
  return bare;
}

}  // namespace

Schedule planCoarse(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                    PlanFunction plan) {
  const RecipeTable fine_table(graph);
  const Coarsening coarsening(graph, fine_table);
  if (coarsening.graph().numOps() == graph.numOps()) return plan(graph, profile, options);
  const Schedule found = plan(coarsening.graph(), profile, options);
  if (!found.hasPlan()) return asOfTheStep(found, graph, coarsening);
  const RecipeTable coarse_table(coarsening.graph());
  const planner::ProblemOptions every{
      .objective = options.minimize, .paging = profile.hasStore(), .coarsening = &coarsening};
  const Problem coarse(coarsening.graph(), coarse_table, profile, every);
  const planner::Refinement refinement(coarse, coarsening, fine_table, every);
  const std::optional<planner::ReplayPlan> replays = planner::readActions(coarse, found);
  POET_INTERNAL_ASSERT(replays, "a method's plan has actions that no replay stands for");
  Schedule schedule = asOfTheStep(withoutItsPlan(found), graph, coarsening);
  planner::writeActions(refinement.fine(), refinement.refined(*replays), schedule);
  finalize(graph, profile, schedule);
  const double value = schedule.objectiveValue();
  if (schedule.bound && *schedule.bound > value) schedule.bound = value;
  if (schedule.bound_all && *schedule.bound_all > value) schedule.bound_all = value;
  if (schedule.bound) schedule.gap = value > 0 ? (value - *schedule.bound) / value : 0;
  return schedule;
}

}  // namespace poet::methods
