// The continuous relaxation of a Program: memory rows and path cuts are added as they are violated.
#pragma once

#include <functional>
#include <vector>

#include "planner/backends/solver.h"
#include "planner/program.h"

namespace poet::planner {

struct Relaxation {
  SolverStatus status =
      SolverStatus::kStopped;  // kOptimal: of the relaxation with every row that mattered
  // A lower bound on every point of the program, scaled; valid also when kStopped in between.
  bool has_bound = false;
  double bound = 0;
  // Of the last round that was solved to its end: a bound too, and its point. Empty: none was.
  double objective = 0;
  std::vector<double> x;
  std::vector<double> reduced;  // reduced costs at x
  SparseModel model;            // the program, the memory rows and the cuts that were added
  int memory_rows = 0;
  std::vector<std::vector<int>> cut_columns;  // of the path cuts
};

struct RelaxationOptions {
  double time_limit_seconds = 10;
  bool cuts = true;
  SolverChoice solver = {};
};

Relaxation relax(const Program& program, const RelaxationOptions& options);

// Fixes the columns of the model that no point below `cutoff` (scaled cost) can have at their other
// bound: objective + |reduced cost| is a lower bound on all that do. Returns how many of the binary
// columns stay free: all of them where no round was solved.
int fixByReducedCost(double cutoff, Relaxation& relaxation);

}  // namespace poet::planner
