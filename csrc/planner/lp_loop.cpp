#include "planner/lp_loop.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/clock.h"
#include "planner/cuts.h"

namespace poet::planner {
namespace {

constexpr double kRowTolerance = 1e-6;  // of the budget
constexpr size_t kRowsPerRound = 150;
constexpr size_t kCutsPerRound = 300;
constexpr int kMostCutRounds = 60;
constexpr int kMostRounds = 120;
constexpr double kCutShareOfTime = 0.7;
constexpr double kFixingTolerance = 1e-6;  // of values, and of the scaled cost
constexpr double kLeastProgress =
    1e-4;                       // relative; less so often in a row ends the search for cuts
constexpr int kSlowRounds = 8;  // degenerate: one optimum is cut off after the other

class LpLoop {
 public:
  LpLoop(const Program& program, const RelaxationOptions& options)
      : program_(program),
        options_(options),
        deadline_(options.time_limit_seconds),
        separator_(program) {}

  Relaxation run() {
    result_.model = program_.model();
    const auto lp = makeLpSolver(result_.model, options_.solver);
    for (int round = 0; round < kMostRounds; ++round) {
      const LpResult solved = lp->solve(deadline_.left());
      if (solved.status != SolverStatus::kOptimal) {
        result_.status = solved.status;
        if (solved.status == SolverStatus::kInfeasible) result_.x.clear();
        if (!solved.duals.empty()) takeBound(safeBound(result_.model, solved.duals));
        return std::move(result_);
      }
      result_.objective = solved.objective;
      result_.bound = solved.objective;
      result_.has_bound = true;
      result_.x = solved.x;
      result_.reduced = solved.reduced;
      const int known = result_.model.numRows();
      addMemoryRows();
      if (result_.model.numRows() == known ||
          static_cast<size_t>(result_.model.numRows() - known) <= kRowsPerRound / 2)
        addCuts();
      if (result_.model.numRows() == known || stalled(known)) {
        result_.status = SolverStatus::kOptimal;
        return std::move(result_);
      }
      if (deadline_.over()) return std::move(result_);
      lp->addRows(result_.model, known);
    }
    return std::move(result_);
  }

 private:
  // Of a simplex out of time: it is dual feasible all along, and its bound grows.
  void takeBound(double bound) {
    result_.bound = result_.has_bound ? std::max(result_.bound, bound) : bound;
    result_.has_bound = result_.has_bound || bound > -kInfinity;
  }

  void addMemoryRows() {
    rows_added_ = 0;
    std::vector<Term> terms;
    for (const MemoryRow& row : program_.violatedRows(result_.x, kRowTolerance)) {
      if (rows_added_ >= kRowsPerRound) break;
      if (!known_rows_.insert(row.step).second) continue;
      const double upper = program_.memoryRow(row.step, terms);
      result_.model.addRow(terms, -kInfinity, upper);
      ++rows_added_;
      ++result_.memory_rows;
    }
  }

  void addCuts() {
    if (!options_.cuts || cut_rounds_ >= kMostCutRounds ||
        deadline_.elapsed() > kCutShareOfTime * options_.time_limit_seconds) {
      return;
    }
    ++cut_rounds_;
    size_t added = 0;
    std::vector<Term> terms;
    for (PathCut& cut : separator_.separate(result_.x)) {
      if (added >= kCutsPerRound) break;
      if (!known_cuts_.insert(cut.columns).second) continue;
      terms.clear();
      for (const int column : cut.columns) terms.push_back({column, 1});
      result_.model.addRow(terms, 1, kInfinity);
      ++added;
      result_.cut_columns.push_back(std::move(cut.columns));
    }
  }

  // Only cuts were added, and the last ones moved the bound by next to nothing.
  bool stalled(int) {
    if (rows_added_ > 0) return false;
    const bool little = std::abs(result_.objective - last_objective_) <=
                        kLeastProgress * std::abs(result_.objective);
    last_objective_ = result_.objective;
    slow_rounds_ = little ? slow_rounds_ + 1 : 0;
    return slow_rounds_ >= kSlowRounds;
  }

  const Program& program_;
  const RelaxationOptions options_;
  const Deadline deadline_;
  PathCutSeparator separator_;
  Relaxation result_;
  std::set<int> known_rows_;
  std::set<std::vector<int>> known_cuts_;
  size_t rows_added_ = 0;
  int cut_rounds_ = 0;
  int slow_rounds_ = 0;
  double last_objective_ = -1;
};

}  // namespace

int fixByReducedCost(double cutoff, Relaxation& relaxation) {
  SparseModel& model = relaxation.model;
  const double room = cutoff - relaxation.objective + kFixingTolerance;
  int free = 0;
  for (size_t c = 0; c < model.cost.size(); ++c) {
    if (model.lower[c] == model.upper[c] || !model.integer[c]) continue;
    if (relaxation.x.empty()) {
      ++free;
    } else if (relaxation.x[c] < kFixingTolerance && relaxation.reduced[c] > room) {
      model.upper[c] = model.lower[c];
    } else if (relaxation.x[c] > 1 - kFixingTolerance && -relaxation.reduced[c] > room) {
      model.lower[c] = model.upper[c];
    } else {
      ++free;
    }
  }
  return free;
}

Relaxation relax(const Program& program, const RelaxationOptions& options) {
  return LpLoop(program, options).run();
}

}  // namespace poet::planner
