#include "methods/poet_paper.h"

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "methods/dense_program.h"
#include "methods/finished_plan.h"
#include "planner/backends/solver.h"
#include "planner/clock.h"
#include "planner/options.h"
#include "planner/program.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

using planner::Deadline;
using planner::MipResult;
using planner::Problem;
using planner::SolverStatus;

// A plan is proven within its class at this share of the plain step.
constexpr double kProvenShare = 1e-7;

}  // namespace

Schedule solvePoetPaper(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options) {
  planner::checkOptions(options);
  POET_CHECK(options.minimize != Objective::kMemory,
             "minimize: expected \"energy\" or \"time\" with the method \"poet_paper\", got "
             "\"memory\"; the method \"poet\" has it");
  const Deadline deadline(options.time_limit_seconds);
  const RecipeTable table(graph);
  const Problem problem(
      graph, table, profile,
      {.objective = options.minimize, .recompute = options.recompute, .paging = options.paging});
  methods::FinishedPlan finished(problem, options, "poet_paper");
  const int64_t columns = methods::DenseProgram::estimateColumns(problem);
  if (columns > kMostPoetPaperColumns) {
    return finished.without(
        Status::kTimeLimit,
        detail::message("the dense program of this step has about ", columns,
                        " columns; it is not built beyond ", kMostPoetPaperColumns),
        deadline.elapsed());
  }
  const methods::DenseProgram program(problem,
                                      {.budget_bytes = options.ram_budget_bytes,
                                       .replay_seconds_limit = finished.replaySecondsLimit(),
                                       .deadline = &deadline});
  if (!program.complete()) {
    return finished.without(
        Status::kTimeLimit,
        detail::message("the dense program of this step has about ", columns,
                        " columns, and building it takes longer than the search may"),
        deadline.elapsed());
  }
  const double percent = planner::costPerSecond(problem) * problem.plain_seconds;
  const MipResult mip =
      planner::solveMip(program.model(), {.time_limit_seconds = std::max(deadline.left(), 0.05),
                                          .relative_gap = 0,
                                          .absolute_gap = kProvenShare * percent,
                                          .threads = options.threads,
                                          .solver = options.solver});
  if (mip.status == SolverStatus::kInfeasible) {
    return finished.without(Status::kInfeasible,
                            "the dense program has no schedule within the budgets",
                            deadline.elapsed());
  }
  if (mip.x.empty()) {
    return finished.without(Status::kTimeLimit,
                            "the solver found no solution of the dense program in time",
                            deadline.elapsed());
  }
  const bool blocking = profile.dma_channels == 0 || !problem.pages();
  const double bound = blocking ? mip.bound / planner::costPerSecond(problem) : 0;
  return finished.with(program.planOf(mip.x), bound, deadline.elapsed(), "branch and cut");
}

}  // namespace poet
