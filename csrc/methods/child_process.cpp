#include "methods/child_process.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include "graph/error.h"
#include "planner/clock.h"

namespace poet::methods {
namespace {

constexpr int kCannotStart = 127;  // as a shell says it
constexpr auto kPollInterval = std::chrono::milliseconds(5);

// A file in memory. Input and output are files and not pipes: nobody waits for the other to read,
// and a child that ends early does not signal its parent.
class MemoryFile {
 public:
  MemoryFile() : descriptor_(memfd_create("poet", MFD_CLOEXEC)) {
    POET_CHECK_AS(Error, descriptor_ >= 0, "no file for a child process: ", std::strerror(errno));
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile() { close(descriptor_); }

  int descriptor() const { return descriptor_; }

  void fill(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = write(descriptor_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      POET_CHECK_AS(Error, n > 0, "no room for a child process's input: ", std::strerror(errno));
      bytes.remove_prefix(static_cast<size_t>(n));
    }
    lseek(descriptor_, 0, SEEK_SET);
  }

  std::string contents() const {
    lseek(descriptor_, 0, SEEK_SET);
    std::string bytes;
    std::array<char, 65536> chunk;
    for (;;) {
      const ssize_t n = read(descriptor_, chunk.data(), chunk.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return bytes;
      bytes.append(chunk.data(), static_cast<size_t>(n));
    }
  }

 private:
  int descriptor_;
};

// Between fork and exec: nothing that allocates or locks.
[[noreturn]] void becomeChild(char* const* arguments, pid_t parent,
                              const std::array<int, 3>& files) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kCannotStart);
  for (int target = 0; target < 3; ++target) {
    if (dup2(files[static_cast<size_t>(target)], target) < 0) _exit(kCannotStart);
  }
  execvp(arguments[0], arguments);
  _exit(kCannotStart);
}

// The status that waitpid gives; kills the child when its time is over.
int waitFor(pid_t child, double limit_seconds, bool* timed_out) {
  const planner::Deadline deadline(limit_seconds);
  int status = 0;
  for (;;) {
    const pid_t ended = waitpid(child, &status, *timed_out ? 0 : WNOHANG);
    if (ended == child) return status;
    if (ended < 0 && errno != EINTR) return 0;
    if (!*timed_out && deadline.over()) {
      *timed_out = true;
      kill(child, SIGKILL);
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

}  // namespace

ChildResult runChild(const std::vector<std::string>& arguments, std::string_view input,
                     double limit_seconds) {
  MemoryFile in, out, err;
  in.fill(input);
  std::vector<std::string> words = arguments;
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  const pid_t parent = getpid();
  ChildResult result;
  const pid_t child = fork();
  if (child == 0)
    becomeChild(pointers.data(), parent, {in.descriptor(), out.descriptor(), err.descriptor()});
  if (child < 0) {
    result.started = false;
    return result;
  }
  const int status = waitFor(child, limit_seconds, &result.timed_out);
  result.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  result.started = result.exit_code != kCannotStart;
  result.out = out.contents();
  result.err = err.contents();
  return result;
}

}  // namespace poet::methods
