// The outline of a solve with a fixed choice of what is away between steps: plain training, the
// floor, then a proof for small graphs or a search for large ones.
#pragma once

#include <vector>

#include "graph/coarsening.h"
#include "graph/recipes.h"
#include "planner/planner.h"
#include "planner/problem.h"

namespace poet {
namespace planner {

struct SolveInput {
  const Coarsening& coarsening;
  const RecipeTable& fine_table;  // of the fine graph
  const DeviceProfile& profile;
  const SolveOptions& options;
  const IncumbentCallback& on_incumbent;
  const ProgressCallback& on_progress;
  const std::vector<ValueId>& away;  // between steps
  double time_limit_seconds;
  bool more_may_be_away;      // another solve follows where this one finds no plan
  bool one_class_of_several;  // other schedules exist than those that bounds here speak of
};

Schedule solveWithAway(const SolveInput& input);

ProblemOptions problemOptions(int64_t small_bytes, const SolveOptions& options,
                              const std::vector<ValueId>& away,
                              const Coarsening* coarsening = nullptr);

}  // namespace planner
}  // namespace poet
