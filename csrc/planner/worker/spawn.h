// A poet-solver process and the socket to it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

#include "planner/planner.h"

namespace poet::planner {

// Past its time limit the worker gets this long to hand in its result before it is killed.
inline constexpr double kGraceSeconds = 0.75;

// Owns a child process: killed and reaped when it goes out of scope. Not copyable; one thread at a
// time.
class WorkerProcess {
 public:
  // Throws ArgumentError where `path` cannot be started, Error where the system has no room for it.
  explicit WorkerProcess(const std::string& path);
  WorkerProcess(const WorkerProcess&) = delete;
  WorkerProcess& operator=(const WorkerProcess&) = delete;
  ~WorkerProcess();

  pid_t pid() const { return pid_; }
  int socket() const { return socket_; }
  // Kills it if it still runs, reaps it, and says how it ended: "exited with code 1", "was ended by
  // signal 9 (Killed)".
  std::string end();

 private:
  void spawn(const std::string& path, int child_socket);

  pid_t pid_ = -1;
  int socket_ = -1;
  std::string how_it_ended_;
};

// solveInWorker, and says which process it is as soon as that runs (tests kill it).
Schedule solveInWorkerProcess(const Graph& graph, const DeviceProfile& profile,
                              const SolveOptions& options, const std::string& worker_path,
                              const std::function<bool()>& should_stop,
                              const ProgressCallback& on_progress,
                              const std::function<void(pid_t)>& on_started);

}  // namespace poet::planner
