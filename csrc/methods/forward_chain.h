// The forward part of a step as a chain of links, for methods that know nothing else.
#pragma once

#include <vector>

#include "planner/problem.h"

namespace poet::methods {

// Note [Cut vertices]
// A position between two forward ops is a cut if a single value carries everything across: of all
// values that may leave (Note [What may leave]) and were made before it, one is read by forward ops
// behind it. That value is an articulation point of the forward graph (Chen et al. 2016, section
// 4.3), and the ops between two cuts are a link of the chain. A U-Net's skips leave no cut within.
//
// Not counted, and kept for their whole lives where more than one link reads them, are values that
// the chain merely carries along: computed without any parameter (masks, rotary tables, positions)
// or from parameters alone (casts, a shared position bias).
//
// A step may hold several chains: gradient accumulation runs forward and backward more than once.
struct Link {
  int first_stage = 0, last_stage = 0;  // its forward ops lie within
  int boundary = -1;                    // the value that it hands on; -1 at the chain's end
  std::vector<int> inside = {};         // other values that it makes and that may leave, ascending
  // Its backward begins before this stage: the first one outside of the forward part that touches
  // what it makes or reads, but never before that of the links behind it.
  int backward_stage = 0;
};

using Chain = std::vector<Link>;

// In running order; none for a step without ops of phase "forward". A chain with one link has no
// cut.
std::vector<Chain> findChains(const planner::Problem& problem, const std::vector<char>& may_leave);

// The chain with at most `most` links: neighbours that hold the fewest bytes are joined.
Chain joinLinks(const planner::Problem& problem, Chain chain, size_t most);

}  // namespace poet::methods
