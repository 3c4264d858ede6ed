#include "planner/program_search.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "planner/clock.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

// A row is violated by a binary point by a byte or not at all; this is for the rounding of sums.
constexpr double kRowTolerance = 1e-9;
constexpr size_t kRowsPerRound = 200;
// What is less than this between bound and cutoff, of the cutoff, is taken in one step.
constexpr double kLastStep = 0.001;

}  // namespace

SearchResult searchProgram(const Program& program, Relaxation& root, const SearchOptions& options) {
  SearchResult result;
  const Deadline deadline(options.time_limit_seconds);
  std::vector<double> start;
  if (options.start != nullptr) {
    if (auto point = program.pointOf(*options.start)) start = std::move(*point);
  }
  std::vector<Term> terms;
  std::set<int> seen;
  while (!deadline.over()) {
    const MipResult mip = solveMip(root.model, {.time_limit_seconds = deadline.left(),
                                                .relative_gap = options.relative_gap,
                                                .absolute_gap = options.absolute_gap,
                                                .threads = options.threads,
                                                .start = start,
                                                .cutoff = options.cutoff,
                                                .solver = options.solver});
    if (mip.status == SolverStatus::kInfeasible) {
      result.status = SolverStatus::kInfeasible;
      result.bound = options.cutoff;
      return result;
    }
    result.bound = std::max(result.bound, std::min(mip.bound, options.cutoff));
    if (mip.x.empty() && program.numColumns() > 0) return result;
    std::vector<double> x = mip.x;
    program.leastRetention(x);
    const std::vector<MemoryRow> violated = program.violatedRows(x, kRowTolerance);
    if (violated.empty()) {
      ReplayPlan plan = program.planOf(x);
      dropUselessReplays(program.problem(), plan);
      result.plan = std::move(plan);
      result.status = mip.status;
      return result;
    }
    size_t added = 0;
    for (const MemoryRow& row : violated) {
      if (added == kRowsPerRound) break;
      if (!seen.insert(row.step).second) continue;
      const double upper = program.memoryRow(row.step, terms);
      root.model.addRow(terms, -kInfinity, upper);
      ++root.memory_rows;
      ++added;
    }
    if (added == 0)
      return result;  // the solver's tolerance, not a missing row: nothing more to learn here
  }
  return result;
}

SearchResult searchStep(const Program& program, Relaxation& root, double bound,
                        const SearchOptions& options) {
  const double between = options.cutoff - bound;
  const bool is_last = between <= kLastStep * options.cutoff;
  SearchOptions step = options;
  if (!is_last) step.cutoff = bound + options.step * between;
  const std::vector<double> lower = root.model.lower, upper = root.model.upper;
  fixByReducedCost(step.cutoff, root);
  SearchResult found = searchProgram(program, root, step);
  root.model.lower = lower;
  root.model.upper = upper;
  found.bound = std::max(found.bound, bound);
  // HiGHS has no cutoff: the cheapest point may lie above it.
  if (found.status == SolverStatus::kOptimal && found.bound >= step.cutoff)
    found.status = SolverStatus::kInfeasible;
  return found;
}

}  // namespace poet::planner
