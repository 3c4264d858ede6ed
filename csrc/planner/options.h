// What every way to solve does first with its SolveOptions.
#pragma once

#include "planner/planner.h"

namespace poet::planner {

// Throws ArgumentError for options that make no sense.
void checkOptions(const SolveOptions& options);

// A schedule without a plan: status kTimeLimit, with the graph's identity and the budgets filled
// in.
Schedule emptySchedule(const Graph& graph, const SolveOptions& options);

}  // namespace poet::planner
