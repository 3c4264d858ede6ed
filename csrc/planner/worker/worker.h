// The inside of poet-solver.
#pragma once

#include <sys/types.h>

#include "graph/export.h"

namespace poet::planner {

// Reads one request from the socket, solves it, streams incumbents and the result back. Dies with
// `parent`. Returns the process's exit code. Only for a process of its own: it limits the address
// space, ignores SIGINT and closes every descriptor above `socket`.
POET_API int workerMain(int socket, pid_t parent);

}  // namespace poet::planner
