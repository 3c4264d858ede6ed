#include "planner/worker/worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <new>
#include <optional>
#include <string>

#include "graph/error.h"
#include "planner/planner.h"
#include "planner/worker/protocol.h"

namespace poet::planner {
namespace {

// Note [Memory of the solver]
// A solver that runs away must not take the machine's memory from the training process. Its address
// space is limited to half of the memory that there is (the machine's or the control group's), or 4
// GiB where that is less: the largest solves need about one. Past the limit an allocation fails,
// and that is a status like every other failure. Where memory runs out all the same, the kernel is
// told to take the solver first. POET_SOLVER_MEMORY_BYTES sets another limit; 0 sets none.
constexpr const char* kMemoryVariable = "POET_SOLVER_MEMORY_BYTES";
constexpr int64_t kLeastMemoryBytes = int64_t{4} << 30;
constexpr const char* kKilledFirst = "1000";  // the highest oom_score_adj

void dieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);  // it died before the line above
}

// A number that stands alone in a file or a variable: "max" and what is missing are none.
std::optional<int64_t> wholeNumber(const std::string& text) {
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || number < 0 || (stopped != end && *stopped != '\n'))
    return std::nullopt;
  return number;
}

int64_t memoryThatThereIs() {
  int64_t bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::string line;
    std::getline(std::ifstream(path), line);
    bytes = std::min(bytes, wholeNumber(line).value_or(bytes));
  }
  return bytes;
}

// See Note [Memory of the solver]. 0: no limit.
int64_t memoryLimit() {
  const char* wanted = std::getenv(kMemoryVariable);
  if (wanted == nullptr) return std::max(memoryThatThereIs() / 2, kLeastMemoryBytes);
  const auto bytes = wholeNumber(wanted);
  POET_CHECK(bytes.has_value(), kMemoryVariable, ": expected a number of bytes, 0 for no limit; ",
             "got \"", wanted, "\"");
  return *bytes;
}

void limitMemory() {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  std::ofstream("/proc/self/oom_score_adj") << kKilledFirst;
  [[maybe_unused]] const int64_t bytes = memoryLimit();
#if !defined(__SANITIZE_ADDRESS__)  // it reserves terabytes of address space
  rlimit limit{};
  if (bytes > 0 && getrlimit(RLIMIT_AS, &limit) == 0) {
    limit.rlim_cur = std::min(limit.rlim_max, static_cast<rlim_t>(bytes));
    setrlimit(RLIMIT_AS, &limit);
  }
#endif
}

void closeAbove(int descriptor) {
#if defined(SYS_close_range)
  if (syscall(SYS_close_range, static_cast<unsigned>(descriptor) + 1, ~0U, 0U) == 0) return;
#endif
  const long most = sysconf(_SC_OPEN_MAX);
  for (int fd = descriptor + 1; fd < most; ++fd) close(fd);
}

// The parent went away, or does not listen any more: nobody wants the rest.
[[noreturn]] void leave() { _exit(EXIT_SUCCESS); }

void sendAll(int socket, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n = send(socket, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) leave();
    sent += static_cast<size_t>(n);
  }
}

std::string receiveRequest(int socket) {
  FrameReader reader;
  std::array<char, 65536> chunk;
  for (;;) {
    const ssize_t n = recv(socket, chunk.data(), chunk.size(), 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) leave();
    reader.append({chunk.data(), static_cast<size_t>(n)});
    if (auto frame = reader.next()) return std::move(frame->payload);
  }
}

}  // namespace

int workerMain(int socket, pid_t parent, const PlanFunction& plan) {
  dieWith(parent);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C goes to the whole terminal; the parent decides
  closeAbove(socket);
  fcntl(socket, F_SETFD, FD_CLOEXEC);  // a solver in another program keeps none of it
  std::string error;
  try {
    limitMemory();
    const Request request = decodeRequest(receiveRequest(socket));
    (void)!nice(request.options.niceness);  // without it the search only takes more from others
    const auto stream = [&](const Schedule& incumbent) {
      sendAll(socket, encodeFrame(FrameKind::kIncumbent, incumbent.toJson()));
    };
    const auto progress = [&](const SearchPoint& point) {
      sendAll(socket, encodeFrame(FrameKind::kProgress, encodeProgress(point)));
    };
    const Schedule result = plan(request.graph, request.profile, request.options, stream, progress);
    for (const std::string& text : request.options.solver.trouble->texts())
      sendAll(socket, encodeFrame(FrameKind::kTrouble, text));
    sendAll(socket, encodeFrame(FrameKind::kResult, result.toJson()));
    return EXIT_SUCCESS;
  } catch (const std::bad_alloc&) {
    error = "out of memory";
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  sendAll(socket, encodeFrame(FrameKind::kError, error));
  return EXIT_FAILURE;
}

}  // namespace poet::planner
