// Which solver of linear and mixed-integer programs the planner uses, and where it lies.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "graph/export.h"

namespace poet {

// kAuto: what was the fastest in benchmarks/planner/solvers.py, of those that are there.
enum class SolverKind { kAuto, kCbc, kHighs, kGurobi };

POET_API std::string_view toString(SolverKind kind);  // "auto", "cbc", "highs", "gurobi"
// Throws ArgumentError that names them.
POET_API SolverKind solverKindFromString(std::string_view name);

// Where another solver than the one asked for had to go on, and why. Thread-safe.
class POET_API SolverTrouble {
 public:
  // Each text is kept once.
  void add(const std::string& text);
  // The same, and that solver is not tried again.
  void giveUp(SolverKind kind, const std::string& text);
  bool gaveUp(SolverKind kind) const;
  std::vector<std::string> texts() const;

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> texts_;
  std::vector<SolverKind> given_up_;
};

// Copies share their `trouble`: it is read after the solve from the choice that went in.
struct SolverChoice {
  SolverKind kind = SolverKind::kAuto;
  // HiGHS's shared library. Empty: $POET_HIGHS_LIBRARY, or what the system's loader knows.
  std::string highs_library = {};
  // Starts python/poet/_gurobi_child.py: the words of a command line. Empty: no Gurobi.
  std::vector<std::string> gurobi_command = {};
  std::shared_ptr<SolverTrouble> trouble = std::make_shared<SolverTrouble>();
};

// One solver on this machine.
struct SolverReport {
  SolverKind kind = SolverKind::kCbc;
  std::string version = {};  // "2.10.8"; empty where it cannot be used
  std::string why_not = {};  // empty where it can
};

// Looks for CBC and HiGHS; Gurobi, which only Python can look for, is left out.
POET_API std::vector<SolverReport> findSolvers(const SolverChoice& choice);

}  // namespace poet
