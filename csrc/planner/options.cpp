#include "planner/options.h"

#include <cmath>

#include "graph/error.h"

namespace poet::planner {

void checkOptions(const SolveOptions& options) {
  POET_CHECK(options.ram_budget_bytes > 0, "ram_budget: expected a positive number of bytes, got ",
             options.ram_budget_bytes);
  if (options.runtime_budget_seconds) {
    POET_CHECK(
        std::isfinite(*options.runtime_budget_seconds) && *options.runtime_budget_seconds > 0,
        "runtime_budget: expected a positive number of seconds, got ",
        *options.runtime_budget_seconds);
  }
  POET_CHECK(std::isfinite(options.time_limit_seconds) && options.time_limit_seconds > 0,
             "time_limit_s: expected a positive number of seconds, got ",
             options.time_limit_seconds);
  POET_CHECK(options.threads >= 1 && options.threads <= SolveOptions::kMostThreads,
             "solve_threads: expected a number in [1, ", SolveOptions::kMostThreads, "], got ",
             options.threads);
  POET_CHECK(options.niceness >= 0 && options.niceness <= SolveOptions::kMostNiceness,
             "niceness: expected a number in [0, ", SolveOptions::kMostNiceness, "], got ",
             options.niceness);
  POET_CHECK(!options.deterministic || options.threads == 1,
             "deterministic: expected solve_threads=1, got ", options.threads,
             ". Which of several threads is first is not determined.");
  POET_CHECK(static_cast<unsigned>(options.minimize) <= static_cast<unsigned>(Objective::kMemory),
             "minimize: expected energy, time or memory, got number ",
             static_cast<int>(options.minimize));
}

Schedule emptySchedule(const Graph& graph, const SolveOptions& options) {
  Schedule schedule;
  schedule.graph_signature = graph.signature();
  schedule.num_ops = graph.numOps();
  schedule.objective = options.minimize;
  schedule.ram_budget_bytes = options.ram_budget_bytes;
  schedule.runtime_budget_seconds = options.runtime_budget_seconds;
  schedule.bound_scope = "all";
  return schedule;
}

}  // namespace poet::planner
