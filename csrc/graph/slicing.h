// A pass Graph -> Graph: the optimizer's elementwise ops run slice by slice.
#pragma once

#include <cstdint>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// Note [Slices]
// The update of a weight holds the weight, its gradient, the optimizer's state and temporaries at
// once. Elementwise ops may as well run on one piece after the other, and then only one piece of
// each must be in memory. So a value of n bytes becomes k values of about n / k bytes, in order; an
// elementwise op on it becomes k ops; any other op that reads, writes, makes or views it lists all
// k in its place. Ops of one run (a weight's whole update) are ordered by slice, so that the
// temporaries of one slice are gone before those of the next come. Op::slice and Value::slice lead
// back: the bytes of slices of a value add up to its own, flops and seconds of slices of an op
// likewise.
//
// Only ops of the optimizer's phase are sliced, whose large arguments have the same bytes and
// dtype: parameters, gradients and state share one layout, which holds nowhere else. Arguments of
// one number are read whole. A slice's bytes are a multiple of kSliceAlignment (but for the last
// one), so that no number is torn.
//
// For devices that carry a plan out themselves. PyTorch runs its ops whole.
inline constexpr int64_t kSliceAlignment = 64;

struct SliceOptions {
  // Values are sliced where an elementwise op of the optimizer touches more than this ...
  int64_t threshold_bytes = 0;
  // ... so that each slice of it touches about this much, > 0.
  int64_t most_bytes = 1;
  static constexpr int32_t kMostSlices = 64;  // of a value
};

// The graph itself where nothing is sliced, or it has slices already; else one with a signature of
// its own. Throws ArgumentError for options that make no sense.
POET_API Graph sliceOptimizer(const Graph& graph, const SliceOptions& options);

}  // namespace poet
