// revolve: binomial checkpointing.
//
// Paper: Griewank, Walther, "Algorithm 799: Revolve: An Implementation of Checkpointing for the
// Reverse or Adjoint Mode of Computational Differentiation", ACM TOMS 26(1), 2000.
//
// Chosen: links between the step's cut vertices (Note [Cut vertices]) are its steps, all alike to
// it. `s` states may be held at once, the chain's input among them. For the budget: the most states
// whose plan fits, by the simulator.
//
// Bound: on a chain of equal links the number of forwards is the least that s states allow:
// t(l, s) = r l - beta(s + 1, r - 1) with beta(s, r) = C(s + r, s) and r the least number for which
// beta(s, r) >= l. Weakness: real links are not alike, and what a link holds inside is not asked.
#pragma once

#include <cstdint>
#include <vector>

#include "methods/chain_schedule.h"

namespace poet::methods {

// t(l, s), l and s >= 1: forwards before the backward of each of l links, not counting the one that
// each backward runs behind.
int64_t revolveForwards(int64_t num_links, int64_t states);

// Longer chains have neighbours joined: plans with few states grow with the square.
inline constexpr size_t kMostRevolveLinks = 200;

std::vector<Step> stepsOfRevolve(int num_links, int states);

}  // namespace poet::methods
