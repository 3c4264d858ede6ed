// ReplayPlan <-> Schedule: the actions between the ops, and what is retained past its natural
// death.
#pragma once

#include <optional>

#include "planner/problem.h"
#include "planner/replay_plan.h"
#include "schedule/schedule.h"

namespace poet::planner {

// Fills in the plan (before, after, recipes) and what the planner's own arithmetic says of it
// (believed_*). The plan must be well formed (Timeline).
void writeActions(const Problem& problem, const ReplayPlan& plan, Schedule& schedule);

// The replays and page-ins of a schedule of the same graph; nullopt where one of them is none of
// the problem's (it runs what the problem takes for constant, or other values are away).
std::optional<ReplayPlan> readActions(const Problem& problem, const Schedule& schedule);

}  // namespace poet::planner
