// Moccasin: rematerialization as a constraint program over retention intervals.
//
// Paper: Bartan, Li, Teague, Lott, Dilkina, "Moccasin: Efficient Tensor Rematerialization for
// Neural Networks", ICML 2023 (arXiv 2304.14463): at most C retention intervals a value, each with
// a begin and an end; the staged event domain (events are the lower triangle of stage x op, so a
// recompute knows its place in the order before it is decided); memory as a cumulative constraint;
// inputs covered by some interval; and two phases: first any schedule within the budget, found by
// shrinking the capacity from plain training's peak, then the cheapest, from there. O(C n) integer
// variables in place of the dense program's O(n^2).
//
// Chosen: what of a graph is a choice is taken from planner::Problem (recipes of several ops,
// several outputs, versions, generator states), so that all methods solve the same problem.
// Coverage is one Boolean for every interval that may serve a read. The paper does not page, and
// neither does this. Bytes are counted in units of budget / 2^24 where the budget is larger,
// rounded up.
//
// Bound: CP-SAT's, over schedules with at most C retention intervals a value and C - 1 recomputes a
// recipe, one of them a stage at most: Schedule::bound_scope is "candidates".
//
// Weakness: up to some 150 values CP-SAT proves its class's optimum within seconds; from some 250
// on one thread hardly finds a schedule in a minute, and the bound stays at plain training
// (benchmarks/data/planner_peers.json). C = 2 excludes plans that recompute a value twice.
//
// CP-SAT runs in a Python child, because OR-tools has no small C++ package and must not share a
// process with other solvers.
#pragma once

#include <string>

#include "planner/planner.h"

namespace poet {

struct MoccasinOptions {
  int retention_intervals = 2;     // C >= 1, the first execution's included; the paper uses 2
  std::string python = "python3";  // an interpreter that has the package ortools
};

// Schedule::method is "moccasin". Statuses as those of solve(); "infeasible" with bound_scope
// "candidates" means: within the class of schedules above. Throws ArgumentError for options that
// make no sense and for minimize = memory; Error where the interpreter cannot be started, has no
// ortools, or fails.
POET_API Schedule solveMoccasin(const Graph& graph, const DeviceProfile& profile,
                                const SolveOptions& options, const MoccasinOptions& moccasin = {});

}  // namespace poet
