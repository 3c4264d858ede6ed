#include "planner/backends/child.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <exception>

namespace poet::planner {
namespace {

constexpr double kLongestWaitSeconds = 60;  // of one poll(), which counts in int milliseconds

[[noreturn]] void runChild(const std::function<void(int)>& run, int socket, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) std::signal(signal, SIG_DFL);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (null >= 0) {  // solvers chatter, and say why they abort
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
  }
  try {
    run(socket);
    _exit(0);
  } catch (const std::exception&) {
    _exit(1);
  }
}

}  // namespace

Child::Child(const std::function<void(int)>& run) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return;
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) runChild(run, ends[1], parent);
  close(ends[1]);
  socket_ = ends[0];
}

Child::~Child() {
  end();
  if (socket_ >= 0) close(socket_);
}

bool Child::end() {
  if (pid_ <= 0) return false;
  kill(pid_, SIGKILL);  // no effect where it has ended
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return false;
}

bool Child::waitFor(short events, const WallDeadline& deadline) {
  while (!deadline.over()) {
    pollfd waiting{.fd = socket_, .events = events, .revents = 0};
    const double seconds = std::min(deadline.left(), kLongestWaitSeconds);
    const int ready = poll(&waiting, 1, static_cast<int>(seconds * 1000) + 1);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool Child::send(const void* data, size_t size, const WallDeadline& deadline) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    if (!running() || !waitFor(POLLOUT, deadline)) return end();
    const ssize_t n = ::send(socket_, bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return end();
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return running();
}

bool Child::receive(void* data, size_t size, const WallDeadline& deadline) {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    if (!running() || !waitFor(POLLIN, deadline)) return end();
    const ssize_t n = recv(socket_, bytes, size, MSG_DONTWAIT);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return end();
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return running();
}

bool writeAll(int socket, const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = ::send(socket, bytes, size, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool readAll(int socket, void* data, size_t size) {
  char* bytes = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = recv(socket, bytes, size, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    bytes += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace poet::planner
