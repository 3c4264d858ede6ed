// COIN-OR CBC (branch and cut) through its C interface, Clp (simplex) for relaxations. The only
// file with their headers.
//
// The C interface runs CBC's whole strategy (presolve, cuts, heuristics), which a bare CbcModel
// does not. It is the same in Debian's 2.10 and in PyPI's cbcbox (CBC's main branch). CBC overruns
// its own time limit now and then: whoever cannot wait solves in a worker process (planner.h).
#include <Cbc_C_Interface.h>

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>

#include "planner/backends/backend.h"
#include "planner/backends/isolated.h"
#include "planner/backends/work.h"
#include "planner/clock.h"

namespace poet::planner::cbc {
namespace {

// Tiny models need no preprocessing, and some of them trip CBC's.
constexpr int kMostColumnsWithoutPreprocessing = 600;
constexpr double kFeasible = 1e-9;
// Relative: CBC leaves out what is cheaper than a cutoff by less than about 1e-5.
constexpr double kCutoffTolerance = 1e-5;
constexpr double kLeastSeconds = 0.05;
constexpr double kPerNode = 6;  // against a node of HiGHS, where work is counted

// Rows first_row ... of a model, as the solvers take them.
struct RowBlock {
  RowBlock(const SparseModel& model, int first_row)
      : count(model.numRows() - first_row),
        index(model.index.data() + model.row_start[static_cast<size_t>(first_row)]),
        value(model.value.data() + model.row_start[static_cast<size_t>(first_row)]) {
    const int begin = model.row_start[static_cast<size_t>(first_row)];
    for (int r = first_row; r <= model.numRows(); ++r) {
      start.push_back(model.row_start[static_cast<size_t>(r)] - begin);
    }
    for (int r = first_row; r < model.numRows(); ++r) {
      lower.push_back(bounded(model.row_lower[static_cast<size_t>(r)]));
      upper.push_back(bounded(model.row_upper[static_cast<size_t>(r)]));
    }
  }
  static double bounded(double x) { return std::clamp(x, -COIN_DBL_MAX, COIN_DBL_MAX); }

  int count;
  std::vector<CoinBigIndex> start;
  const int* index;
  const double* value;
  std::vector<double> lower, upper;
};

class ClpLp : public LpSolver {
 public:
  explicit ClpLp(const SparseModel& model) : work_(model) {
    clp_.setLogLevel(0);
    const RowBlock rows(model, 0);
    const CoinPackedMatrix matrix(/*colordered=*/false, model.numColumns(), rows.count,
                                  rows.start.back(), rows.value, rows.index, rows.start.data(),
                                  nullptr);
    std::vector<double> upper(model.upper);
    for (double& bound : upper) bound = RowBlock::bounded(bound);
    clp_.loadProblem(matrix, model.lower.data(), upper.data(), model.cost.data(), rows.lower.data(),
                     rows.upper.data());
  }

  LpResult solve(double time_limit_seconds) override {
    if (clp_.numberColumns() == 0) return solveEmpty();
    if (WorkMeter::current() != nullptr) {
      clp_.setMaximumIterations(work_.iterationsWithin(time_limit_seconds));
    } else {
      clp_.setMaximumWallSeconds(std::max(time_limit_seconds, 0.01));
    }
    clp_.dual();
    work_.chargeIterations(clp_.numberIterations());
    LpResult result;
    if (clp_.isProvenPrimalInfeasible()) result.status = SolverStatus::kInfeasible;
    if (!clp_.isProvenOptimal()) {
      if (result.status == SolverStatus::kStopped)
        result.duals.assign(clp_.dualRowSolution(), clp_.dualRowSolution() + clp_.numberRows());
      return result;
    }
    result.status = SolverStatus::kOptimal;
    result.objective = clp_.objectiveValue();
    const int columns = clp_.numberColumns();
    result.x.assign(clp_.primalColumnSolution(), clp_.primalColumnSolution() + columns);
    result.reduced.assign(clp_.dualColumnSolution(), clp_.dualColumnSolution() + columns);
    return result;
  }

  void addRows(const SparseModel& model, int first_row) override {
    if (first_row >= model.numRows()) return;
    const RowBlock rows(model, first_row);
    work_.addEntries(static_cast<size_t>(rows.start.back()));
    clp_.addRows(rows.count, rows.lower.data(), rows.upper.data(), rows.start.data(), rows.index,
                 rows.value);
  }

 private:
  // Clp has no answer for a model without columns.
  LpResult solveEmpty() const {
    LpResult result;
    result.status = SolverStatus::kOptimal;
    for (int r = 0; r < clp_.numberRows(); ++r) {
      if (clp_.rowLower()[r] > kFeasible || clp_.rowUpper()[r] < -kFeasible)
        result.status = SolverStatus::kInfeasible;
    }
    return result;
  }

  SolverWork work_;
  ClpSimplex clp_;
};

struct CbcDeleter {
  void operator()(Cbc_Model* model) const { Cbc_deleteModel(model); }
};
using CbcHandle = std::unique_ptr<Cbc_Model, CbcDeleter>;

// Column by column, as Cbc_loadProblem takes it.
void load(Cbc_Model* cbc, const SparseModel& model) {
  const auto columns = static_cast<size_t>(model.numColumns());
  std::vector<CoinBigIndex> start(columns + 1);
  for (const int c : model.index) ++start[static_cast<size_t>(c) + 1];
  for (size_t c = 0; c < columns; ++c) start[c + 1] += start[c];
  std::vector<int> row(model.index.size());
  std::vector<double> value(model.index.size());
  std::vector<CoinBigIndex> next(start.begin(), start.end() - 1);
  for (int r = 0; r < model.numRows(); ++r) {
    for (int e = model.row_start[static_cast<size_t>(r)];
         e < model.row_start[static_cast<size_t>(r) + 1]; ++e) {
      const auto slot =
          static_cast<size_t>(next[static_cast<size_t>(model.index[static_cast<size_t>(e)])]++);
      row[slot] = r;
      value[slot] = model.value[static_cast<size_t>(e)];
    }
  }
  const RowBlock bounds(model, 0);
  std::vector<double> upper(model.upper);
  for (double& bound : upper) bound = RowBlock::bounded(bound);
  Cbc_loadProblem(cbc, model.numColumns(), model.numRows(), start.data(), row.data(), value.data(),
                  model.lower.data(), upper.data(), model.cost.data(), bounds.lower.data(),
                  bounds.upper.data());
  for (int c = 0; c < model.numColumns(); ++c) {
    if (model.integer[static_cast<size_t>(c)]) Cbc_setInteger(cbc, c);
  }
}

void setNumber(Cbc_Model* cbc, const char* name, double number) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.12g", number);
  Cbc_setParameter(cbc, name, text.data());
}

void setStart(Cbc_Model* cbc, const std::vector<double>& start) {
  if (start.empty()) return;
  std::vector<int> columns(start.size());
  for (size_t c = 0; c < start.size(); ++c) columns[c] = static_cast<int>(c);
  Cbc_setMIPStartI(cbc, static_cast<int>(start.size()), columns.data(), start.data());
}

// Note [Cutoffs]
// Where all points but the cheapest are left out, hardly a replay that costs much is open, and a
// search that branches on the dearest columns first is done within tens of nodes. CBC's default
// takes those closest to one half, mostly the presence of a value in a gap, of which the next gap
// makes up for; with a start it does so whatever the strategy is. Heuristics find nothing here.
void aimBelow(Cbc_Model* cbc, double cutoff) {
  setNumber(cbc, "cutoff", cutoff + kCutoffTolerance * std::max(1.0, std::abs(cutoff)));
  Cbc_setParameter(cbc, "costStrategy", "priorities");
  Cbc_setParameter(cbc, "heuristicsOnOff", "off");
  for (const char* cut : {"gomoryCuts", "twoMirCuts"}) Cbc_setParameter(cbc, cut, "root");
}

struct Settings {
  bool preprocess = true;
  bool cuts = true;
};

MipResult branchAndCut(const SparseModel& model, const MipOptions& options,
                       const Settings& settings, double seconds) {
  const CbcHandle cbc(Cbc_newModel());
  load(cbc.get(), model);
  Cbc_setLogLevel(cbc.get(), 0);
  const SolverWork work(model, kPerNode);
  if (WorkMeter::current() != nullptr) {
    setNumber(cbc.get(), "maxNodes", work.nodesWithin(seconds));
  } else {
    setNumber(cbc.get(), "sec", seconds);
    Cbc_setParameter(cbc.get(), "timeMode", "elapsed");
  }
  if (!settings.preprocess) Cbc_setParameter(cbc.get(), "preprocess", "off");
  if (!settings.cuts) Cbc_setParameter(cbc.get(), "cuts", "off");
  setNumber(cbc.get(), "ratio", options.relative_gap);
  setNumber(cbc.get(), "allow", options.absolute_gap);
  // What is better by less than the gap is not looked for either.
  if (options.absolute_gap > 0) setNumber(cbc.get(), "increment", options.absolute_gap);
  if (options.threads > 1) setNumber(cbc.get(), "threads", options.threads);
  if (std::isfinite(options.cutoff)) {
    aimBelow(cbc.get(), options.cutoff + options.absolute_gap);
  } else {
    setStart(cbc.get(), options.start);
  }
  Cbc_solve(cbc.get());
  work.chargeSearch(Cbc_getIterationCount(cbc.get()));

  MipResult result;
  if (Cbc_isProvenInfeasible(cbc.get())) {
    result.status = SolverStatus::kInfeasible;
    result.bound = kInfinity;
    return result;
  }
  if (Cbc_isProvenOptimal(cbc.get())) result.status = SolverStatus::kOptimal;
  if (const double* x = Cbc_bestSolution(cbc.get())) {
    result.x.assign(x, x + model.numColumns());
    result.objective = Cbc_getObjValue(cbc.get());
  }
  result.bound = Cbc_getBestPossibleObjValue(cbc.get());
  // With a proof CBC does not always write its bound.
  if (result.status == SolverStatus::kOptimal && !result.x.empty()) {
    const double gap =
        std::max(options.absolute_gap, options.relative_gap * std::abs(result.objective));
    result.bound = std::max(result.bound, result.objective - gap);
    // Nor does its bound know of what was left out for the gap's sake.
    if (options.absolute_gap > 0)
      result.bound = std::min(result.bound, result.objective - options.absolute_gap);
  }
  return result;
}

}  // namespace

std::unique_ptr<LpSolver> makeLp(const SparseModel& model) {
  return std::make_unique<ClpLp>(model);
}

MipResult solveMip(const SparseModel& model, const MipOptions& options) {
  const bool small = model.numColumns() <= kMostColumnsWithoutPreprocessing;
  // Where one way crashes another mostly does not.
  const Deadline deadline(options.time_limit_seconds);
  for (const Settings settings : {Settings{.preprocess = !small},
                                  {.preprocess = small},
                                  {.preprocess = false, .cuts = false}}) {
    const double seconds = std::max(deadline.left(), kLeastSeconds);
    if (auto result =
            solveInChild(seconds, [&] { return branchAndCut(model, options, settings, seconds); }))
      return *result;
    if (deadline.over()) break;
  }
  return MipResult{};
}

std::string version() { return Cbc_getVersion(); }

}  // namespace poet::planner::cbc
