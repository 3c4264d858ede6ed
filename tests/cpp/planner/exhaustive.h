// The truth for small graphs: Dijkstra over (next op, resident values, kept generator states, good
// copies in the store); under a limit in seconds with all ways to a state of which none is both
// dearer and slower than another.
//
// It allows everything that Note [Semantics of a schedule] allows: first executions in traced
// order; any recipe replayed again whenever its inputs are resident in the versions that its ops
// first read, any number of times, in any order; a value freed at any time after its last write. It
// shares nothing with the planner but the recipe table's chains: versions and lifetimes are read
// from the graph.
#pragma once

#include <cstdint>
#include <optional>

#include "device/profile.h"
#include "graph/graph.h"

namespace poet::testing {

// Least seconds of replays within the budget; nullopt where no schedule keeps it. At most 20 values
// with recipes.
std::optional<double> exhaustiveReplaySeconds(const Graph& graph, const DeviceProfile& profile,
                                              int64_t budget_bytes);

// With transfers: every evictable value may be paged, at any time, in any version. Least joules
// beyond those of plain training (`joules`), or seconds. Without DMA and wake-ups.
struct Allowed {
  bool recompute = true;
  bool paging = false;
  bool joules = false;
  std::optional<double> seconds_limit = std::nullopt;  // of replays and transfers
};
std::optional<double> exhaustiveExtra(const Graph& graph, const DeviceProfile& profile,
                                      int64_t budget_bytes, const Allowed& allowed);

// Least budget for which replays take at most `limit` seconds (no limit: any). Nullopt where even
// plain memory will not do.
std::optional<int64_t> exhaustivePeak(const Graph& graph, const DeviceProfile& profile,
                                      std::optional<double> limit);

}  // namespace poet::testing
