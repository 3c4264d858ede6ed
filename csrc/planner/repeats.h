// Repeated blocks of a step, recognised by structure: which ops play the same part.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"

namespace poet::planner {

// Note [Repeated blocks]
// A model of 24 equal layers is one layer 24 times, forwards and backwards, and micro-batches
// repeat the whole of it. Ops are *twins* where they look alike and so do the ops that they read
// from and those that read from them, up to kReach steps away: colours are refined as in Weisfeiler
// and Leman (1968). Names of ops, sizes and kinds of values count; times, which are measured, do
// not. Nothing rests on twins being exchangeable: they are where the search looks for moves.
inline constexpr int kReach = 4;

// By op: equal for twins.
std::vector<uint64_t> opColours(const Graph& graph);

}  // namespace poet::planner
