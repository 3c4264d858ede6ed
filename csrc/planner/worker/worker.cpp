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
#include <csignal>
#include <cstdlib>
#include <exception>
#include <new>
#include <string>

#include "planner/planner.h"
#include "planner/worker/protocol.h"

namespace poet::planner {
namespace {

constexpr rlim_t kLeastAddressSpace = rlim_t{4} << 30;

void dieWith(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(EXIT_FAILURE);  // it died before the line above
}

// A solver that runs away must not take the machine's memory from the training process. Sanitizers
// reserve terabytes of address space, so they go without.
void limitMemory() {
#if !defined(__SANITIZE_ADDRESS__)
  const auto physical =
      static_cast<rlim_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0) {
    limit.rlim_cur = std::min(limit.rlim_max, std::max(physical, kLeastAddressSpace));
    setrlimit(RLIMIT_AS, &limit);
  }
#endif
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
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

int workerMain(int socket, pid_t parent) {
  dieWith(parent);
  std::signal(SIGINT, SIG_IGN);  // Ctrl-C goes to the whole terminal; the parent decides
  closeAbove(socket);
  fcntl(socket, F_SETFD, FD_CLOEXEC);  // a solver in another program keeps none of it
  limitMemory();
  std::string error;
  try {
    const Request request = decodeRequest(receiveRequest(socket));
    const auto stream = [&](const Schedule& incumbent) {
      sendAll(socket, encodeFrame(FrameKind::kIncumbent, incumbent.toJson()));
    };
    const Schedule result = solve(request.graph, request.profile, request.options, stream);
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
