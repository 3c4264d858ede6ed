// Runs a solver in a child process: a crash or an overrun of the solver costs that call and nothing
// else.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "planner/backends/solver.h"

namespace poet::planner {

// Note [A process for every branch and cut]
// CBC 2.10.8 ends on an assertion of its own about once in two thousand small programs, and runs
// past its time limit now and then. So solveMip() forks: the child solves, writes its result into a
// socket and leaves by _exit. It is killed when it overruns `time_limit_seconds` by
// kOverrunSeconds, and dies with its parent. In poet-solver this is all the more harmless as that
// process has one thread; elsewhere the child uses nothing of the parent's but the allocator, which
// glibc keeps usable across a fork.
inline constexpr double kOverrunSeconds = 0.3;

// After so many seconds a child is lost. Where work is counted only one that hangs is.
double overrunSeconds(double time_limit_seconds);

// Nullopt where the child ended without a result: it crashed, was killed for time, or could not be
// started.
std::optional<MipResult> solveInChild(double time_limit_seconds,
                                      const std::function<MipResult()>& solve);

class IsolatedLp : public LpSolver {
 public:
  // False once the child has crashed or was killed for time: every solve is then kStopped.
  virtual bool running() const = 0;
};

// The solver that `make` makes, living in a child from one call to the next, so that it stays warm.
std::unique_ptr<IsolatedLp> lpInChild(const std::function<std::unique_ptr<LpSolver>()>& make);

}  // namespace poet::planner
