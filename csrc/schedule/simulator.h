// The simulator: Graph + Schedule -> peak bytes, op at the peak, seconds, joules. The one oracle of
// what a plan costs. It replays the schedule op by op and checks residency and versions as it goes.
// It shares no code with the planner's program, with the recipe table or with the executor.
#pragma once

#include <vector>

#include "device/profile.h"
#include "graph/export.h"
#include "graph/graph.h"
#include "schedule/schedule.h"

namespace poet {

struct SimulationResult {
  int64_t peak_bytes = 0;
  OpId peak_op;  // op that runs (or before which a recompute runs) at the first moment of the peak
  double makespan_seconds = 0;
  double energy_joules = 0;
  double recompute_seconds = 0;
  int64_t recomputed_ops = 0;
  double transfer_seconds = 0;  // sum over transfers, whether they overlap or not
  double hidden_seconds = 0;    // of transfers, beside ops and beside each other
  int64_t page_outs = 0;
  int64_t page_ins = 0;
  int64_t paged_out_bytes = 0;
  int64_t paged_in_bytes = 0;
  int64_t wake_ups = 0;
  std::vector<int64_t> resident_bytes;  // per op: bytes resident while it runs, workspace included
                                        // (for plots, POET_VERIFY)
};

// An empty plan (no before/after lists) is plain training. Throws ScheduleError naming the op, the
// value and its version when the schedule cannot be carried out (a use of an absent value, a stale
// version, a value missing at the end ...).
POET_API SimulationResult simulate(const Graph& graph, const Schedule& schedule,
                                   const DeviceProfile& profile);
POET_API SimulationResult simulatePlain(const Graph& graph, const DeviceProfile& profile);

// Simulates the schedule and writes peak, seconds and joules into it.
POET_API void finalize(const Graph& graph, const DeviceProfile& profile, Schedule& schedule);

}  // namespace poet
