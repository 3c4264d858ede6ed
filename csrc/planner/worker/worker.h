// The inside of poet-solver.
#pragma once

#include <sys/types.h>

#include <functional>

#include "planner/planner.h"

namespace poet::planner {

// What a worker does with a request: planWith() (methods/method.h), which this folder knows nothing
// of.
using PlanFunction = std::function<Schedule(const Graph&, const DeviceProfile&, const SolveOptions&,
                                            const IncumbentCallback&, const ProgressCallback&)>;

// Reads one request from the socket, solves it with `plan`, streams incumbents and the result back.
// Dies with `parent`. Returns the process's exit code. Only for a process of its own: it limits the
// address space, ignores SIGINT and closes every descriptor above `socket`.
POET_API int workerMain(int socket, pid_t parent, const PlanFunction& plan);

}  // namespace poet::planner
