// The back ends, as solver.cpp calls them: one .cpp each.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "planner/backends/isolated.h"
#include "planner/backends/solver.h"

namespace poet::planner {

// COIN-OR's CBC and Clp: linked, so always there.
namespace cbc {
std::unique_ptr<LpSolver> makeLp(const SparseModel& model);
MipResult solveMip(const SparseModel& model, const MipOptions& options);
std::string version();
}  // namespace cbc

// HiGHS, from a shared library that is loaded when first asked for.
namespace highs {
// Null where the library cannot be used.
std::unique_ptr<IsolatedLp> makeLp(const SparseModel& model, const std::string& library);
// Nullopt where the library cannot be used, or HiGHS crashed or was killed for time.
std::optional<MipResult> solveMip(const SparseModel& model, const MipOptions& options);
// Empty where the library cannot be used, and then `why_not` says why.
std::string version(const std::string& library, std::string& why_not);
}  // namespace highs

// Gurobi, in a Python process with gurobipy.
namespace gurobi {
// Nullopt where it could not solve; `options.solver.trouble` has heard why.
std::optional<MipResult> solveMip(const SparseModel& model, const MipOptions& options);
}  // namespace gurobi

}  // namespace poet::planner
