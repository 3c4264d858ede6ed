// The solvers that tests run: HiGHS and Gurobi where the build found them.
#pragma once

#include <string>
#include <vector>

#include "planner/backends/solver.h"
#include "planner/solver_choice.h"

#ifndef POET_TEST_HIGHS_LIBRARY
#define POET_TEST_HIGHS_LIBRARY ""
#endif
#ifndef POET_TEST_PYTHON
#define POET_TEST_PYTHON ""
#endif

namespace poet::testing {

inline SolverChoice choiceOf(SolverKind kind) {
  SolverChoice choice{.kind = kind, .highs_library = POET_TEST_HIGHS_LIBRARY};
  const std::string python = POET_TEST_PYTHON;
  if (kind == SolverKind::kGurobi && !python.empty()) {
    choice.gurobi_command = {python,
                             std::string(POET_REPOSITORY) + "/python/poet/_gurobi_child.py"};
  }
  return choice;
}

// Why a back end cannot be tested here; empty where it can.
inline std::string whyNot(SolverKind kind) {
  const SolverChoice choice = choiceOf(kind);
  if (kind == SolverKind::kHighs) return findSolvers(choice).back().why_not;
  if (kind != SolverKind::kGurobi) return "";
  if (choice.gurobi_command.empty()) return "no Python was found when the tests were configured";
  planner::SparseModel one;
  const std::vector<planner::Term> row = {{one.addBinary(-1), 1}};
  one.addRow(row, -planner::kInfinity, 1);
  planner::solveMip(one, {.time_limit_seconds = 20, .solver = choice});
  const auto trouble = choice.trouble->texts();
  return trouble.empty() ? "" : trouble.front();
}

}  // namespace poet::testing
