// checkmate: the T x T program, and its LP rounding for large graphs.
//
// Paper: Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez, "Checkmate: Breaking the
// Memory Wall with Optimal Tensor Rematerialization", MLSys 2020: R and S by stage and value,
// equations (1) to (8); two-phase rounding of the linear relaxation (section 5: S is rounded at
// 1/2, R is the least that serves it) for graphs that are too large.
//
// Chosen: the program is that of dense_program.h without its store. It gets half of the time limit
// where it has at most CheckmateOptions::most_program_columns columns; then, or where it has more,
// the relaxation is solved and rounded. The relaxation is solved for shares of the budget, as in
// the paper (its epsilon), and S is rounded at several thresholds: the simulator picks. Values of
// at most ProblemOptions::defaultSmallBytes() are constants in steps of more than 200 ops.
//
// Bound: poet_paper.h's for the program; none for a rounded plan, and Schedule::message says that
// it is one. Weakness: O(T^2) columns: beyond CheckmateOptions::most_relaxed_columns not even the
// relaxation is built, and the status is "time_limit".
#include "methods/checkmate.h"

#include <algorithm>

#include "graph/error.h"
#include "methods/dense_program.h"
#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"
#include "methods/poet_paper.h"
#include "planner/backends/solver.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Problem;

constexpr double kProgramShare = 0.5;   // of the time limit
constexpr double kLeastSeconds = 0.05;  // of the relaxation

// S kept where the relaxation keeps at least `threshold` of it; R the least that serves it.
planner::ReplayPlan roundAt(const Problem& problem, const DenseProgram& program,
                            const std::vector<double>& x, double threshold) {
  PlanWalk walk(problem);
  for (int t = 0; t < problem.numStages(); ++t) {
    for (int v = 0; v < problem.numValues(); ++v) {
      if (walk.there(v) && program.keptAt(x, t, v) < threshold) walk.leave(v);
    }
    if (t + 1 < problem.numStages()) {
      std::vector<int> wanted;
      for (int v = 0; v < problem.numValues(); ++v) {
        const bool made = problem.values[static_cast<size_t>(v)].first_stage < t;
        if (made && !walk.there(v) && walk.mayBeAskedFor(v) &&
            program.keptAt(x, t + 1, v) >= threshold)
          wanted.push_back(v);
      }
      walk.bring(wanted);
    }
    walk.advance();
  }
  return walk.take();
}

Schedule planByRounding(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options, int64_t most_columns) {
  const RecipeTable table(graph);
  const int64_t plain = simulatePlain(graph, profile).peak_bytes;
  const Problem problem(
      graph, table, profile,
      {.small_bytes = planner::ProblemOptions::defaultSmallBytes(plain, graph.numOps()),
       .objective = options.minimize});
  PlanChoice choice(problem, options, "checkmate");
  const int64_t columns = DenseProgram::estimateColumns(problem);
  if (columns > most_columns) {
    return choice.without(
        Status::kTimeLimit,
        detail::message("the dense program of this step has about ", columns,
                        " columns; not even its relaxation is built beyond ", most_columns));
  }
  bool solved = false, impossible = false;
  for (const double share : {1.0, 0.95, 0.9, 0.8, 0.7}) {
    if (choice.deadline().over() || (solved && choice.any())) break;
    const DenseProgram program(
        problem,
        {.budget_bytes = static_cast<int64_t>(
             share * static_cast<double>(std::min(options.ram_budget_bytes, plain))),
         .replay_seconds_limit = FinishedPlan(problem, options, "checkmate").replaySecondsLimit(),
         .deadline = &choice.deadline()});
    if (!program.complete()) break;
    const planner::LpResult lp = planner::makeLpSolver(program.model(), options.solver)
                                     ->solve(std::max(choice.deadline().left(), kLeastSeconds));
    impossible = impossible || (share == 1.0 && lp.status == planner::SolverStatus::kInfeasible);
    if (lp.x.empty()) break;
    solved = true;
    for (const double threshold : {0.5, 0.3, 0.7, 0.1, 0.9})
      choice.offer(roundAt(problem, program, lp.x, threshold));
  }
  if (choice.any()) {
    Schedule schedule = choice.finish("");
    schedule.message = "a rounded solution of the linear relaxation";
    if (schedule.hasPlan()) schedule.start = "rounded relaxation";
    return schedule;
  }
  if (impossible) {
    return choice.without(Status::kInfeasible,
                          "not even the linear relaxation of the dense program has a schedule "
                          "within the budgets");
  }
  return choice.without(Status::kTimeLimit,
                        solved ? "no rounding of the linear relaxation keeps the budgets"
                               : "the linear relaxation was not solved in time");
}

}  // namespace

Schedule solveCheckmate(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options, const CheckmateOptions& checkmate) {
  const planner::Deadline deadline(options.time_limit_seconds);
  SolveOptions own = options;
  own.paging = false;
  const RecipeTable table(graph);
  const int64_t columns =
      DenseProgram::estimateColumns(Problem(graph, table, profile, {.objective = own.minimize}));
  if (columns <= checkmate.most_program_columns) {
    own.time_limit_seconds = kProgramShare * options.time_limit_seconds;
    Schedule schedule = solvePoetPaper(graph, profile, own);
    schedule.method = "checkmate";
    if (schedule.status != Status::kTimeLimit) return schedule;
  }
  own.time_limit_seconds = std::max(deadline.left(), kLeastSeconds);
  Schedule schedule = planByRounding(graph, profile, own, checkmate.most_relaxed_columns);
  schedule.solve_seconds = deadline.elapsed();
  return schedule;
}

Schedule planCheckmate(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options) {
  return solveCheckmate(graph, profile, options, {});
}

}  // namespace poet::methods
