// Graph -> Graph: what counts towards a memory budget.
#pragma once

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// The same step, with no bytes for parameters, buffers, inputs, optimizer state, the gradients of
// parameters and what stays resident all through the step: activations, their gradients and
// workspaces alone count. Ops, values, lifetimes and the signature stay, so that a schedule of one
// is a schedule of the other. A gradient is a parameter's if it outlives the step or the optimizer
// reads it.
// Source: POET (Patil et al., ICML 2022) section 4 counts activations and their gradients.
POET_API Graph activationsOnly(const Graph& graph);

}  // namespace poet
