#include "planner/backends/solver.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "graph/error.h"
#include "planner/backends/backend.h"
#include "planner/clock.h"

namespace poet {
namespace {

constexpr std::array kKinds = {SolverKind::kAuto, SolverKind::kCbc, SolverKind::kHighs,
                               SolverKind::kGurobi};

}  // namespace

std::string_view toString(SolverKind kind) {
  switch (kind) {
    case SolverKind::kAuto:
      return "auto";
    case SolverKind::kCbc:
      return "cbc";
    case SolverKind::kHighs:
      return "highs";
    case SolverKind::kGurobi:
      return "gurobi";
  }
  POET_INTERNAL_ASSERT(false, "a solver of kind ", static_cast<int>(kind));
}

SolverKind solverKindFromString(std::string_view name) {
  const auto* found = std::find_if(kKinds.begin(), kKinds.end(),
                                   [&](SolverKind kind) { return toString(kind) == name; });
  POET_CHECK(found != kKinds.end(),
             "solver: expected \"auto\", \"cbc\", \"highs\" or \"gurobi\", got \"", name, "\"");
  return *found;
}

void SolverTrouble::add(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (std::find(texts_.begin(), texts_.end(), text) == texts_.end()) texts_.push_back(text);
}

void SolverTrouble::giveUp(SolverKind kind, const std::string& text) {
  add(text);
  const std::lock_guard lock(mutex_);
  given_up_.push_back(kind);
}

bool SolverTrouble::gaveUp(SolverKind kind) const {
  const std::lock_guard lock(mutex_);
  return std::find(given_up_.begin(), given_up_.end(), kind) != given_up_.end();
}

std::vector<std::string> SolverTrouble::texts() const {
  const std::lock_guard lock(mutex_);
  return texts_;
}

std::vector<SolverReport> findSolvers(const SolverChoice& choice) {
  SolverReport highs{.kind = SolverKind::kHighs};
  highs.version = planner::highs::version(choice.highs_library, highs.why_not);
  return {{.kind = SolverKind::kCbc, .version = planner::cbc::version()}, std::move(highs)};
}

namespace planner {
namespace {

bool prefersHighs(const SolverChoice& solver) {
  return solver.kind == SolverKind::kHighs || solver.kind == SolverKind::kAuto;
}

void appendRows(const SparseModel& from, int first_row, SparseModel& to) {
  std::vector<Term> terms;
  for (auto r = static_cast<size_t>(first_row); r < from.row_lower.size(); ++r) {
    terms.clear();
    for (int e = from.row_start[r]; e < from.row_start[r + 1]; ++e)
      terms.push_back({from.index[static_cast<size_t>(e)], from.value[static_cast<size_t>(e)]});
    to.addRow(terms, from.row_lower[r], from.row_upper[r]);
  }
}

// Goes on with Clp, from the start, where the child of another solver is lost.
class RecoveringLp : public LpSolver {
 public:
  RecoveringLp(const SparseModel& model, std::unique_ptr<IsolatedLp> child)
      : model_(model), child_(std::move(child)) {}

  LpResult solve(double time_limit_seconds) override {
    const Deadline deadline(time_limit_seconds);
    if (child_) {
      LpResult result = child_->solve(time_limit_seconds);
      if (child_->running()) return result;
      child_.reset();
      clp_ = cbc::makeLp(model_);
    }
    return deadline.over() ? LpResult{} : clp_->solve(deadline.left());
  }

  void addRows(const SparseModel& model, int first_row) override {
    if (!child_) return clp_->addRows(model, first_row);
    appendRows(model, first_row, model_);
    child_->addRows(model, first_row);
  }

 private:
  SparseModel model_;
  std::unique_ptr<IsolatedLp> child_;  // null once it is lost
  std::unique_ptr<LpSolver> clp_;      // null before
};

MipResult solveContinuous(const SparseModel& model, const MipOptions& options) {
  LpResult lp = makeLpSolver(model, options.solver)->solve(options.time_limit_seconds);
  MipResult result;
  result.status = lp.status;
  result.objective = lp.objective;
  result.bound = lp.status == SolverStatus::kInfeasible ? kInfinity
                 : lp.status == SolverStatus::kOptimal  ? lp.objective
                                                        : -kInfinity;
  result.x = std::move(lp.x);
  return result;
}

}  // namespace

double safeBound(const SparseModel& model, const std::vector<double>& duals) {
  std::vector<double> reduced = model.cost;
  double bound = 0;
  for (size_t r = 0; r < model.row_lower.size(); ++r) {
    const double side = duals[r] > 0 ? model.row_lower[r] : model.row_upper[r];
    if (duals[r] == 0 || !std::isfinite(duals[r]) || !std::isfinite(side)) continue;
    bound += duals[r] * side;
    for (int e = model.row_start[r]; e < model.row_start[r + 1]; ++e) {
      const auto entry = static_cast<size_t>(e);
      reduced[static_cast<size_t>(model.index[entry])] -= duals[r] * model.value[entry];
    }
  }
  for (size_t c = 0; c < reduced.size(); ++c) {
    if (reduced[c] != 0) bound += reduced[c] * (reduced[c] > 0 ? model.lower[c] : model.upper[c]);
  }
  return std::isnan(bound) ? -kInfinity : bound;
}

// Note [Which solver is the fastest]
// At one thread (benchmarks/planner/solvers.py measures it) HiGHS's branch and cut is ahead of
// CBC's for the windows of the local search, and its dual simplex about even with Clp's for a
// relaxation with its rounds of added rows. So kAuto is HiGHS where that is installed. Gurobi,
// whose process takes longer to start than most windows take to solve, is for those who ask for it.
std::unique_ptr<LpSolver> makeLpSolver(const SparseModel& model, const SolverChoice& solver) {
  // A model without columns is solved by its rows' bounds, which cbc.cpp does.
  if (prefersHighs(solver) && model.numColumns() > 0) {
    if (auto lp = highs::makeLp(model, solver.highs_library))
      return std::make_unique<RecoveringLp>(model, std::move(lp));
  }
  return cbc::makeLp(model);
}

MipResult solveMip(const SparseModel& model, const MipOptions& options) {
  // Branch and cut finds nothing to branch on, and CBC then no solution either.
  const bool any_integer =
      std::find(model.integer.begin(), model.integer.end(), 1) != model.integer.end();
  if (model.numRows() == 0 || !any_integer) return solveContinuous(model, options);
  const Deadline deadline(options.time_limit_seconds);
  std::optional<MipResult> result;
  if (prefersHighs(options.solver)) result = highs::solveMip(model, options);
  if (options.solver.kind == SolverKind::kGurobi) result = gurobi::solveMip(model, options);
  if (result) return *result;
  MipOptions rest = options;
  rest.time_limit_seconds = deadline.left();
  return deadline.over() ? MipResult{} : cbc::solveMip(model, rest);
}

void checkSolver(const SolverChoice& solver) {
  if (solver.kind == SolverKind::kHighs) {
    std::string why_not;
    POET_CHECK(!highs::version(solver.highs_library, why_not).empty(),
               "solver=\"highs\": expected HiGHS's shared library; ", why_not,
               ". Install it with pip install highsbox, or name the library in the environment "
               "variable POET_HIGHS_LIBRARY.");
  }
  if (solver.kind == SolverKind::kGurobi) {
    POET_CHECK(
        !solver.gurobi_command.empty(),
        "solver=\"gurobi\": expected a command that starts Gurobi's child process, got none. "
        "poet.solve of the Python package has one.");
  }
}

}  // namespace planner
}  // namespace poet
