// A plan where it was not made for: a step that differs in sizes alone, a budget that is greater.
#pragma once

#include <cstdint>
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

// A plan of the graph that was made for less memory, as one of that budget: it leaves the rest
// free. What is known of better plans holds for less memory only, so it is kFeasible and bounded by
// the plain step alone. `profile` is the one that it was planned with.
POET_API Schedule leavingRoom(Schedule schedule, const Graph& graph, const DeviceProfile& profile,
                              int64_t ram_budget_bytes);

}  // namespace poet
