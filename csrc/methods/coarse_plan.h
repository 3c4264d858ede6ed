// Methods whose programs grow with the square of the ops plan the coarse step (graph/coarsening.h):
// views and what else no plan gains from are no stages of theirs.
#pragma once

#include "planner/planner.h"

namespace poet::methods {

using PlanFunction = Schedule (*)(const Graph&, const DeviceProfile&, const SolveOptions&);

// The plan that `plan` makes of the coarse step, as a plan of the step itself: what it does before
// a run of ops is done before the run's first. Costs and peaks are the same (Note [What may be
// merged]), but for the seconds of views, which nobody replays. Its status and bound are of the
// method's class over the coarse step.
Schedule planCoarse(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                    PlanFunction plan);

}  // namespace poet::methods
