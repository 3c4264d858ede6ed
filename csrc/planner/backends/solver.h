// What the planner asks of a solver. solver.cpp hands it to a back end (backend.h); solver headers
// appear in those alone.
#pragma once

#include <memory>
#include <vector>

#include "planner/solver_choice.h"
#include "planner/sparse_model.h"

namespace poet::planner {

// kStopped: out of time, unbounded, or gave up; a solution may be at hand all the same
// (MipResult::x).
enum class SolverStatus { kOptimal, kInfeasible, kStopped };

struct LpResult {
  SolverStatus status = SolverStatus::kStopped;
  double objective = 0;
  std::vector<double> x;        // by column; empty unless kOptimal
  std::vector<double> reduced;  // reduced costs, likewise
  std::vector<double> duals;    // by row, of a simplex that was stopped; may be empty
};

// What no point of the model is cheaper than, from multipliers of its rows, whatever they are: a
// wrong sign or a rounding error makes the bound worse, not wrong. Rows open on the side that a
// multiplier asks for count with zero. -kInfinity where a column without that bound is left over.
// Source: Neumaier, Shcherbina, "Safe bounds in linear and mixed-integer linear programming",
// Math. Prog. 2004.
double safeBound(const SparseModel& model, const std::vector<double>& duals);

// The continuous relaxation, kept warm between calls: rows are added, the dual simplex goes on from
// where it stood.
class LpSolver {
 public:
  virtual ~LpSolver() = default;
  virtual LpResult solve(double time_limit_seconds) = 0;
  virtual void addRows(const SparseModel& model,
                       int first_row) = 0;  // rows first_row ... of the model
};

struct MipOptions {
  double time_limit_seconds = 10;
  double relative_gap = 1e-4;  // may stop at (value - bound) <= gap * |value|
  double absolute_gap = 0;     // likewise, in the objective's unit
  int threads = 1;
  std::vector<double> start = {};  // a feasible point, by column; may be empty
  // Only points that cost less are wanted: CBC leaves the others out, start too, and says
  // kInfeasible where there are no more. Other solvers may do without.
  double cutoff = kInfinity;
  SolverChoice solver = {};
};

struct MipResult {
  SolverStatus status = SolverStatus::kStopped;
  double objective = 0;  // of x
  double bound = -kInfinity;
  std::vector<double> x;  // best solution found; empty where none
};

// Neither throws for a solver that is missing or fails: CBC goes on, and SolverChoice::trouble says
// why.
std::unique_ptr<LpSolver> makeLpSolver(const SparseModel& model, const SolverChoice& solver = {});
MipResult solveMip(const SparseModel& model, const MipOptions& options);

// Throws ArgumentError where a solver is asked for by name that this process cannot load.
void checkSolver(const SolverChoice& solver);

}  // namespace poet::planner
