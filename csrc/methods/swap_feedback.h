// Capuchin's feedback in a live step: swap-ins that came late are triggered earlier in the next.
#pragma once

#include <optional>
#include <vector>

#include "device/profile.h"
#include "graph/export.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet {

constexpr double kSwapFeedback = 0.05;  // of a swap's time: see Note [Feedback of swap-ins]

// A page-in that the plan had begun, and that the step waited for before an op.
struct AwaitedSwap {
  ValueId value;
  OpId op;
  double seconds = 0;

  friend bool operator==(const AwaitedSwap&, const AwaitedSwap&) = default;
};

// Note [Feedback of swap-ins]
// Peng et al., ASPLOS 2020, section 4.4: where the access that a swap-in was meant for comes before
// the swap-in is done, the access that triggers it is moved forward by 5 % of the swap's time, in
// each iteration again, until it is in time. capuchin.cpp asks a model of the channel for that
// while it plans; here the step itself tells. What moves is the plan's own action, and the one
// simulator says what that comes to: where the value would be back before it has left, or the
// memory of the stages that it is now back for is not there, the action stays. So the plan's budget
// holds in each of these steps, which the authors leave to their passive mode.
//
// A wait below the 5 % is no reason to move anything: transfers end when they end.
//
// The plan with those of `awaited` moved that are late; nullopt where none is, or none can be
// moved. Without a DMA channel transfers block, and nothing is ever early. Throws ScheduleError
// where the schedule does not belong to the graph.
POET_API std::optional<Schedule> withEarlierSwaps(const Schedule& schedule, const Graph& graph,
                                                  const DeviceProfile& profile,
                                                  const std::vector<AwaitedSwap>& awaited);

}  // namespace poet
