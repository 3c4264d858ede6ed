// The plan of a step for another one that differs from it in sizes alone.
#pragma once

#include <optional>

#include "device/profile.h"
#include "graph/export.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet {

// Note [Steps of other sizes]
// A longer sequence, or a shorter last batch, mostly is the same stream of ops on the same values
// with other bytes. A plan says what to do with which value at which op, so it can be carried out
// there too, and what it frees at the larger size is enough at the smaller one: an upper bound of a
// plan, until the step has one of its own. How much memory it needs there, and whether it can be
// carried out at all, the simulator says.

// Whether ops and values are the same but for bytes, workspaces, seconds and flops.
POET_API bool differInSizesOnly(const Graph& a, const Graph& b);

// The plan of `schedule`, which is one of `from`, for `to`, with the simulator's figures:
// kFeasible, and bounded by the plain step alone. It may exceed any budget: that is for the caller
// to look at. Nullopt where there is no plan, the steps differ in more than sizes, or it cannot be
// carried out.
POET_API std::optional<Schedule> withOtherSizes(const Schedule& schedule, const Graph& from,
                                                const Graph& to, const DeviceProfile& profile);

}  // namespace poet
