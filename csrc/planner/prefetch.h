// Page-ins that begin early: only for devices whose transfers run beside computation.
#pragma once

#include "device/profile.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet::planner {

// Moves page-ins to earlier positions, each as far back as its transfer takes, where the simulator
// finds the schedule within `budget_bytes` and faster. Writes the simulator's figures. No effect
// without DMA or without a plan. O(page-ins x log(ops) simulations).
void prefetch(const Graph& graph, const DeviceProfile& profile, int64_t budget_bytes,
              Schedule& schedule);

}  // namespace poet::planner
