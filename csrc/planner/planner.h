// Graph + device + budgets -> Schedule, by mixed-integer programming (docs/design.md section 5).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/profile.h"
#include "graph/export.h"
#include "graph/graph.h"
#include "planner/solver_choice.h"
#include "schedule/schedule.h"

namespace poet {

// Note [Foreign starts]
// Nothing of poet's planner calls another method, and none of them hands plans to it: with
// SolveOptions::starts empty, which is the default, whatever it returns it has found itself. What
// it was given is a user's wish, and Schedule::start names the methods that those plans are of.

struct SolveOptions {
  int64_t ram_budget_bytes = 0;                  // > 0
  std::optional<double> runtime_budget_seconds;  // deadline on the makespan
  Objective minimize = Objective::kEnergy;
  double time_limit_seconds = 60;
  // The limit counts work, about as much as a quiet machine does in so many seconds: the same
  // graph, options and solver give the same schedule to the last byte, under load too. One thread.
  bool deterministic = false;
  int threads = 1;  // in [1, kMostThreads]
  // By how much a worker process gives way to others (nice(2)), in [0, kMostNiceness]: while it
  // searches, something trains. solve() in this process leaves the process as it is.
  int niceness = 0;
  SolverChoice solver = {};
  bool recompute = true;  // plans may recompute
  bool paging = true;     // plans may page, where the profile has a store
  // Optimizer state may stay in the store from one step to the next (Note [Away between steps]):
  // only for a runtime that brings back what something touches in between.
  bool away_between_steps = false;
  // With away_between_steps: so may parameters, where optimizer state is not enough, and on devices
  // that carry a plan out themselves (DeviceProfile::direct_kernels) buffers and inputs, too.
  bool parameters_away = false;
  // Schedules of the same graph to start from, e.g. for other budgets. One that keeps these budgets
  // is never lost: the result is at least as good. One of another graph is an ArgumentError.
  std::vector<Schedule> starts = {};
  // Which of allMethods() plans (methods/method.h). solve() is the method "poet" and looks at
  // neither.
  std::string method = "poet";
  std::string python = "python3";  // an interpreter, for methods whose solver needs one (moccasin)

  static constexpr int kMostThreads = 1024;
  // Of the budget, what a plan leaves free at most for what is still to come beside its step.
  static constexpr int64_t kLeastShareOfRoom = 32;
  static constexpr int kMostNiceness = 19;
  // Of a solver beside which the training goes on: where every processor is taken it gets about a
  // tenth of one, elsewhere all of an idle one.
  static constexpr int kBackgroundNiceness = 10;
};

// Called with every better plan as it is found (already simulated).
using IncumbentCallback = std::function<void(const Schedule&)>;

// Called with every better plan and every better bound.
using ProgressCallback = std::function<void(const SearchPoint&)>;

// Solves in this process. Never throws for a hard problem: the outcome is Schedule::status. Throws
// ArgumentError for options that make no sense.
POET_API Schedule solve(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options, const IncumbentCallback& on_incumbent = {},
                        const ProgressCallback& on_progress = {});

// Solves in a `poet-solver` process: the time limit holds from outside, a crash of the solver is a
// status with the best plan so far, and the worker dies with its parent. `should_stop` is polled
// about ten times a second; when it returns true the worker is ended and the best plan so far
// returned. Both callbacks run in the calling thread; what they throw ends the worker.
POET_API Schedule solveInWorker(const Graph& graph, const DeviceProfile& profile,
                                const SolveOptions& options, const std::string& worker_path,
                                const std::function<bool()>& should_stop = {},
                                const ProgressCallback& on_progress = {});

}  // namespace poet
