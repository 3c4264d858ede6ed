// A step that was recorded on one machine, as it would run on another.
#pragma once

#include "device/profile.h"
#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// Seconds of one op on the device: the greater of arithmetic and memory traffic, and the fixed cost
// of starting it,
//   max(flops / rate of its class, bytes / memory_rate) + op_overhead_seconds,
// the roofline of Williams, Waterman and Patterson (CACM 52(4), 2009). Views and ops that only
// allocate cost nothing. `bytes` are those of its distinct inputs and outputs, each at most 8 a
// flop, so that a lookup does not pay for its whole table. docs/costs.md derives it.
POET_API double deviceSeconds(const Graph& graph, OpId op, const DeviceProfile& device);

// The same ops and values with the device's seconds. Workspaces stay where the device runs the same
// kernels, and are 0 where its kernels need none (DeviceProfile::direct_kernels); there, values
// that do not outlive the step die at their last use. The signature stays. A device without rates
// (hasRates()) is the machine that the step was recorded on: the graph comes back as it is. Throws
// ArgumentError where a graph has no flops at all.
POET_API Graph onDevice(const Graph& graph, const DeviceProfile& device);

}  // namespace poet
