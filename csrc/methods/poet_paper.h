// The dense program of POET's paper, as a method to compare with.
//
// Papers: POET (Patil et al., "POET: Training Neural Networks on Tiny Devices with Integrated
// Rematerialization and Paging", ICML 2022, section 4: R, S^RAM, S^SD, M^in, M^out and the energy
// objective), which extends Checkmate (Jain et al., "Checkmate: Breaking the Memory Wall with
// Optimal Tensor Rematerialization", MLSys 2020: precedence (1b), (1c), memory recurrence (2)-(4),
// FREE (5) and its linear form (7), frontier-advancing stages (8)). Without a store, or with
// options.paging off, the program is Checkmate's.
//
// Chosen: stage t ends with the first execution of op t, and holds one column for every recipe,
// every kept value and every transfer that could stand in it. What of a graph is a choice (recipes
// of several ops, several outputs, versions, values from before the step, generator states) is
// taken from planner::Problem, so that both programs solve the same problem. Other than in POET's
// own code, a page-in takes memory from the start of its stage, transfers take time out of the
// deadline, and numbers are scaled: costs are percent of the plain step, bytes are shares of the
// budget, seconds are shares of the plain step. (In joules near 1e-3 absolute tolerances of solvers
// decide what is optimal.)
//
// As in the papers, transfers block and waking a store costs nothing: on a device with DMA channels
// plans are right but not timed to hide anything, and no bound is claimed beyond plain training.
//
// Bound: of the program, over schedules that recompute a recipe at most once a stage, in one order,
// and page in at the start of a stage. So Schedule::bound_scope is "candidates", and status
// "optimal" is kept for plans that cost no more than plain training.
//
// Weakness: O(T * (values + recipes)) columns and rows: 42,600 columns for a step of 108 ops. The
// LP relaxation is weak besides: it keeps a tenth of one value and feeds nine fractional recomputes
// from it. Steps of more than a hundred ops mostly end without a plan.
#pragma once

#include "planner/planner.h"

namespace poet {

// Schedule::method is "poet_paper". Statuses as those of solve(); "infeasible" with bound_scope
// "candidates" means: within the class of schedules above. A program of more than
// kMostPoetPaperColumns columns is not built: status "time_limit", and a message. Throws
// ArgumentError for options that make no sense, and for minimize = memory, which the papers do not
// have.
POET_API Schedule solvePoetPaper(const Graph& graph, const DeviceProfile& profile,
                                 const SolveOptions& options);

inline constexpr int64_t kMostPoetPaperColumns = 6'000'000;

}  // namespace poet
