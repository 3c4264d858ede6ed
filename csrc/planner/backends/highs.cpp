// HiGHS (dual simplex; branch and cut) through its C interface, in a child process.
//
// Source: Huangfu, Hall, "Parallelizing the dual revised simplex method", Math. Prog. Comp. 2018;
// https://highs.dev. One thread: the planner's process shares its machine with a training step.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "planner/backends/backend.h"
#include "planner/backends/highs_api.h"
#include "planner/backends/isolated.h"
#include "planner/backends/work.h"

namespace poet::planner::highs {
namespace {

constexpr double kLeastSeconds = 0.01;

// One instance of HiGHS.
class Instance {
 public:
  explicit Instance(const HighsApi& api) : api_(api), highs_(api.create()) {
    api_.setBoolOptionValue(highs_, "output_flag", 0);
    api_.setStringOptionValue(highs_, "parallel", "off");
    setThreads(1);
  }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  ~Instance() { api_.destroy(highs_); }

  const HighsApi& api() const { return api_; }
  void* get() const { return highs_; }

  void setThreads(int threads) { api_.setIntOptionValue(highs_, "threads", threads); }
  void setNumber(const char* option, double number) {
    api_.setDoubleOptionValue(highs_, option, number);
  }
  int count(const char* info) const {
    int result = 0;
    return api_.getIntInfoValue(highs_, info, &result) == kHighsError ? 0 : result;
  }
  double number(const char* info) const {
    double result = 0;
    return api_.getDoubleInfoValue(highs_, info, &result) == kHighsError ? -kInfinity : result;
  }

  // Its clock runs on from one run to the next, and the limit counts from the clock's zero.
  bool run(double time_limit_seconds) {
    api_.zeroAllClocks(highs_);
    if (WorkMeter::current() == nullptr)
      setNumber("time_limit", std::max(time_limit_seconds, kLeastSeconds));
    return api_.run(highs_) != kHighsError;
  }
  void setCount(const char* option, int count) { api_.setIntOptionValue(highs_, option, count); }

  int64_t nodes() const {
    int64_t result = 0;
    return api_.getInt64InfoValue(highs_, "mip_node_count", &result) == kHighsError ? 0 : result;
  }

  SolverStatus status() const {
    switch (api_.getModelStatus(highs_)) {
      case kHighsOptimal:
      case kHighsModelEmpty:
        return SolverStatus::kOptimal;
      case kHighsInfeasible:
        return SolverStatus::kInfeasible;
      default:  // limits, unbounded, errors
        return SolverStatus::kStopped;
    }
  }

  bool hasPoint() const { return count("primal_solution_status") == kHighsSolutionFeasible; }

 private:
  const HighsApi api_;
  void* highs_;
};

class Lp : public LpSolver {
 public:
  Lp(const HighsApi& api, const SparseModel& model)
      : highs_(api), work_(model), columns_(model.cost.size()), rows_(model.row_lower.size()) {
    highs_.api().setStringOptionValue(highs_.get(), "solver", "simplex");
    // Without presolve the first basis is one that later rounds start from, and Devex weights cost
    // less to set up in each of them than those of steepest edge.
    highs_.api().setStringOptionValue(highs_.get(), "presolve", "off");
    highs_.api().setIntOptionValue(highs_.get(), "simplex_dual_edge_weight_strategy",
                                   kHighsDevexWeights);
    loaded_ =
        highs_.api().passLp(highs_.get(), model.numColumns(), model.numRows(),
                            static_cast<int>(model.index.size()), kHighsRowwise, kHighsMinimize, 0,
                            model.cost.data(), model.lower.data(), model.upper.data(),
                            model.row_lower.data(), model.row_upper.data(), model.row_start.data(),
                            model.index.data(), model.value.data()) != kHighsError;
  }

  LpResult solve(double time_limit_seconds) override {
    LpResult result;
    if (WorkMeter::current() != nullptr)
      highs_.setCount("simplex_iteration_limit", work_.iterationsWithin(time_limit_seconds));
    const bool ran = loaded_ && highs_.run(time_limit_seconds);
    work_.chargeIterations(highs_.count("simplex_iteration_count"));
    if (!ran) return result;
    result.status = highs_.status();
    if (result.status == SolverStatus::kStopped) {
      result.duals.resize(rows_);
      highs_.api().getSolution(highs_.get(), nullptr, nullptr, nullptr, result.duals.data());
    }
    if (result.status != SolverStatus::kOptimal) return result;
    result.objective = highs_.api().getObjectiveValue(highs_.get());
    result.x.resize(columns_);
    result.reduced.resize(columns_);
    highs_.api().getSolution(highs_.get(), result.x.data(), result.reduced.data(), nullptr,
                             nullptr);
    return result;
  }

  void addRows(const SparseModel& model, int first_row) override {
    if (first_row >= model.numRows()) return;
    const int begin = model.row_start[static_cast<size_t>(first_row)];
    std::vector<int> start(model.row_start.begin() + first_row, model.row_start.end());
    for (int& s : start) s -= begin;
    work_.addEntries(model.index.size() - static_cast<size_t>(begin));
    const int added = highs_.api().addRows(
        highs_.get(), model.numRows() - first_row, model.row_lower.data() + first_row,
        model.row_upper.data() + first_row, static_cast<int>(model.index.size()) - begin,
        start.data(), model.index.data() + begin, model.value.data() + begin);
    loaded_ = loaded_ && added != kHighsError;
    rows_ += model.row_lower.size() - static_cast<size_t>(first_row);
  }

 private:
  Instance highs_;
  SolverWork work_;
  const size_t columns_;
  size_t rows_;
  bool loaded_ = false;
};

MipResult branchAndCut(const HighsApi& api, const SparseModel& model, const MipOptions& options) {
  Instance highs(api);
  highs.setThreads(options.threads);
  highs.setNumber("mip_rel_gap", options.relative_gap);
  highs.setNumber("mip_abs_gap", options.absolute_gap);
  const std::vector<int> integer(model.integer.begin(), model.integer.end());
  MipResult result;
  if (api.passMip(highs.get(), model.numColumns(), model.numRows(),
                  static_cast<int>(model.index.size()), kHighsRowwise, kHighsMinimize, 0,
                  model.cost.data(), model.lower.data(), model.upper.data(), model.row_lower.data(),
                  model.row_upper.data(), model.row_start.data(), model.index.data(),
                  model.value.data(), integer.data()) == kHighsError) {
    return result;
  }
  if (!options.start.empty())
    api.setSolution(highs.get(), options.start.data(), nullptr, nullptr, nullptr);
  const SolverWork work(model);
  if (WorkMeter::current() != nullptr)
    highs.setCount("mip_max_nodes", work.nodesWithin(options.time_limit_seconds));
  const bool ran = highs.run(options.time_limit_seconds);
  // Cuts, dives and restarts at the root take most iterations, and hardly a node.
  work.chargeSearch(highs.count("simplex_iteration_count"));
  if (!ran) return result;
  result.status = highs.status();
  if (result.status == SolverStatus::kInfeasible) {
    result.bound = kInfinity;
    return result;
  }
  result.bound = highs.number("mip_dual_bound");
  if (!highs.hasPoint()) return result;
  result.objective = api.getObjectiveValue(highs.get());
  result.x.resize(model.cost.size());
  api.getSolution(highs.get(), result.x.data(), nullptr, nullptr, nullptr);
  result.bound = std::min(result.bound, result.objective);
  return result;
}

}  // namespace

std::unique_ptr<IsolatedLp> makeLp(const SparseModel& model, const std::string& library) {
  std::string why_not;
  const auto api = loadHighs(library, why_not);
  if (!api) return nullptr;
  return lpInChild([&] { return std::make_unique<Lp>(*api, model); });
}

std::optional<MipResult> solveMip(const SparseModel& model, const MipOptions& options) {
  std::string why_not;
  const auto api = loadHighs(options.solver.highs_library, why_not);
  if (!api) return std::nullopt;
  return solveInChild(options.time_limit_seconds,
                      [&] { return branchAndCut(*api, model, options); });
}

std::string version(const std::string& library, std::string& why_not) {
  const auto api = loadHighs(library, why_not);
  return api ? api->version() : "";
}

}  // namespace poet::planner::highs
