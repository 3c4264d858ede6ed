// Which replays of a plan to try to do without.
#pragma once

#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// Note [Without the dearest]
// One replay may be a large part of what a plan costs (the gradient of a last layer's weights, made
// again at the end of the step), and what takes its place may be a dozen others: neither a walk nor
// a window gets across. So the search walks from the best plan with it left out, and forbidden for
// as long as the walk lasts. Two of them may stand for two others that are only worth it together,
// so pairs are left out as well.

// Sets of one or two replays (indices into Problem::replays), the dearest first: those that cost no
// less than 3 % of what the plan costs beside Problem::constant_cost, all runs together. At most 12
// singles, and the pairs of the first 5. Page-ins of what starts away are in every plan, and not
// among them.
std::vector<std::vector<int>> dearestReplays(const Problem& problem, const ReplayPlan& plan);

}  // namespace poet::planner
