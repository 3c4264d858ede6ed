// chen_sqrt: segments of sqrt(n) links.
//
// Paper: Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" (arXiv
// 1604.06174, section 4.1): n links in k = sqrt(n) segments, whose boundaries stay; each segment is
// computed again as a whole when its backward begins. O(sqrt(n)) memory on uniform chains for one
// more forward.
//
// Chosen: links lie between the step's cut vertices (Note [Cut vertices]; the paper's articulation
// points). ceil(sqrt(n)) segments of as equal a number of links as can be, the longer ones last.
// The last segment is not computed again, as in torch.utils.checkpoint.checkpoint_sequential. What
// a segment computes again is what its backward reads, and not its own end.
//
// Bound: none. Weakness: it knows neither bytes nor seconds nor a budget: one plan a step.
#include <cmath>

#include "methods/chain_schedule.h"
#include "methods/every_method.h"
#include "methods/plan_choice.h"

namespace poet::methods {
namespace {

std::vector<int> equalSegments(size_t num_links) {
  const auto segments = static_cast<size_t>(std::ceil(std::sqrt(static_cast<double>(num_links))));
  std::vector<int> ends;
  for (size_t s = 1; s <= segments; ++s)
    ends.push_back(static_cast<int>(s * num_links / segments) - 1);
  return ends;
}

}  // namespace

Schedule planChenSqrt(const Graph& graph, const DeviceProfile& profile,
                      const SolveOptions& options) {
  const RecipeTable table(graph);
  const planner::Problem problem(graph, table, profile, {.objective = options.minimize});
  PlanChoice choice(problem, options, "chen_sqrt");
  const std::vector<Chain> chains = findChains(problem, findMayLeave(problem));
  std::vector<std::vector<Step>> steps;
  for (const Chain& chain : chains) steps.push_back(stepsOfSegments(equalSegments(chain.size())));
  choice.offer(planOfChains(problem, chains, steps));
  return choice.finish("its one plan, segments between the step's cut vertices,");
}

}  // namespace poet::methods
