#include "planner/backends/isolated.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <string>

#include "planner/clock.h"

namespace poet::planner {
namespace {

constexpr double kLongestPollSeconds = 3600;

struct Header {
  int32_t status = 0;
  double objective = 0;
  double bound = 0;
  uint64_t columns = 0;
};

bool writeAll(int pipe, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = write(pipe, bytes, size);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

[[noreturn]] void runChild(int pipe, pid_t parent, const std::function<MipResult()>& solve) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null >= 0) {  // CBC chatters, and says why it aborts
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
  }
  try {
    const MipResult result = solve();
    const Header header{.status = static_cast<int32_t>(result.status),
                        .objective = result.objective,
                        .bound = result.bound,
                        .columns = result.x.size()};
    const bool sent = writeAll(pipe, &header, sizeof header) &&
                      writeAll(pipe, result.x.data(), result.x.size() * sizeof(double));
    _exit(sent ? 0 : 1);
  } catch (const std::exception&) {
    _exit(1);
  }
}

// Everything that the child writes until it closes the pipe or its time is over.
std::string readUntil(int pipe, const Deadline& deadline) {
  std::string bytes;
  std::array<char, 65536> chunk;
  while (!deadline.over()) {
    pollfd waiting{.fd = pipe, .events = POLLIN, .revents = 0};
    // A limit of years does not fit into poll's milliseconds.
    const double seconds = std::min(deadline.left(), kLongestPollSeconds);
    const int ready = poll(&waiting, 1, static_cast<int>(seconds * 1000) + 1);
    if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
    if (ready < 0) break;
    const ssize_t n = read(pipe, chunk.data(), chunk.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    bytes.append(chunk.data(), static_cast<size_t>(n));
  }
  return bytes;
}

std::optional<MipResult> decode(const std::string& bytes) {
  Header header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  if (bytes.size() != sizeof header + header.columns * sizeof(double)) return std::nullopt;
  MipResult result;
  result.status = static_cast<SolverStatus>(header.status);
  result.objective = header.objective;
  result.bound = header.bound;
  result.x.resize(header.columns);
  // An empty vector's data() may be null, which memcpy does not take.
  if (header.columns > 0) {
    std::memcpy(result.x.data(), bytes.data() + sizeof header, header.columns * sizeof(double));
  }
  return result;
}

}  // namespace

std::optional<MipResult> solveInChild(double time_limit_seconds,
                                      const std::function<MipResult()>& solve) {
  std::array<int, 2> pipe{};
  if (pipe2(pipe.data(), O_CLOEXEC) != 0) return std::nullopt;
  const Deadline deadline(time_limit_seconds + kOverrunSeconds);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) runChild(pipe[1], parent, solve);
  close(pipe[1]);
  if (child < 0) {
    close(pipe[0]);
    return std::nullopt;
  }
  const std::string bytes = readUntil(pipe[0], deadline);
  close(pipe[0]);
  kill(child, SIGKILL);  // no effect where it has ended
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return decode(bytes);
}

}  // namespace poet::planner
