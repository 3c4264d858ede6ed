#include "planner/worker/spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <optional>
#include <string_view>

#include "graph/error.h"
#include "planner/clock.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/worker/protocol.h"
#include "schedule/simulator.h"

extern char** environ;

namespace poet::planner {
namespace {

constexpr int kChildSocket = 3;
constexpr int kLeastPrivateDescriptor = 10;  // above those that the child's end is moved to
constexpr double kPollSeconds = 0.1;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// posix_spawn's two argument structures.
class SpawnArguments {
 public:
  explicit SpawnArguments(int child_socket) {
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY,
                                     0);  // CBC chatters
    posix_spawn_file_actions_adddup2(&actions, child_socket, kChildSocket);
    posix_spawnattr_init(&attributes);
    sigset_t signals;
    sigemptyset(&signals);
    posix_spawnattr_setsigmask(&attributes, &signals);
    sigfillset(&signals);
    posix_spawnattr_setsigdefault(&attributes, &signals);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  }
  SpawnArguments(const SpawnArguments&) = delete;
  SpawnArguments& operator=(const SpawnArguments&) = delete;
  ~SpawnArguments() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// Moves a descriptor out of the range that the child uses, so that dup2 always makes a new one
// there.
int movedUp(int descriptor) {
  const int moved = fcntl(descriptor, F_DUPFD_CLOEXEC, kLeastPrivateDescriptor);
  // The system says EINVAL where the process may have none as high as that.
  const int error = errno == EINVAL ? EMFILE : errno;
  close(descriptor);
  POET_CHECK_AS(Error, moved >= 0,
                "poet-solver: no descriptor for its socket: ", std::strerror(error),
                ". Close files, or raise the process's limit (ulimit -n).");
  return moved;
}

std::string describeExit(int status) {
  if (WIFSIGNALED(status)) {
    return detail::message("was ended by signal ", WTERMSIG(status), " (",
                           strsignal(WTERMSIG(status)), ")");
  }
  return detail::message("exited with code ", WEXITSTATUS(status));
}

}  // namespace

WorkerProcess::WorkerProcess(const std::string& path) {
  std::array<int, 2> ends{};
  POET_CHECK_AS(Error, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) == 0,
                "poet-solver: no socket to talk to it: ", std::strerror(errno));
  socket_ = ends[0];
  const int child_socket = movedUp(ends[1]);
  try {
    spawn(path, child_socket);
  } catch (...) {
    close(child_socket);
    close(socket_);
    throw;
  }
  close(child_socket);
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

void WorkerProcess::spawn(const std::string& path, int child_socket) {
  const SpawnArguments arguments(child_socket);
  std::string name = path, mode = "--worker", socket = std::to_string(kChildSocket),
              parent = std::to_string(getpid());
  std::array<char*, 5> argv = {name.data(), mode.data(), socket.data(), parent.data(), nullptr};
  const int failure = posix_spawn(&pid_, path.c_str(), &arguments.actions, &arguments.attributes,
                                  argv.data(), environ);
  const bool may_pass = failure == EAGAIN || failure == ENOMEM;
  POET_CHECK_AS(Error, !may_pass, "the solver could not be started: ", std::strerror(failure),
                ". The limit of processes or of memory has been reached; raise it (ulimit -u, "
                "ulimit -v), or end what is not needed.");
  POET_CHECK(failure == 0, "the solver \"", path,
             "\" could not be started: ", std::strerror(failure),
             ". It is installed beside poet's libraries; was the installation moved or cut short?");
}

std::string WorkerProcess::end() {
  if (pid_ <= 0) return how_it_ended_;
  int status = 0;
  // Still running? Kill, then wait: SIGKILL cannot be refused, so the wait is short.
  pid_t reaped = waitpid(pid_, &status, WNOHANG);
  if (reaped == 0) {
    kill(pid_, SIGKILL);
    do {
      reaped = waitpid(pid_, &status, 0);
    } while (reaped < 0 && errno == EINTR);
  }
  // A host that ignores SIGCHLD reaps for us, and nothing is known.
  how_it_ended_ = reaped == pid_ ? describeExit(status) : "ended";
  pid_ = -1;
  return how_it_ended_;
}

WorkerProcess::~WorkerProcess() {
  end();
  close(socket_);
}

namespace {

// One solve from the parent's side: sends the request, takes in frames, ends the worker in time.
class Conversation {
 public:
  Conversation(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
               const std::string& worker_path, const ProgressCallback& on_progress)
      : graph_(graph),
        profile_(profile),
        options_(options),
        on_progress_(on_progress),
        start_(now()),
        worker_(worker_path),
        unsent_(encodeFrame(FrameKind::kRequest, encodeRequest(graph, profile, options))) {}

  pid_t pid() const { return worker_.pid(); }

  Schedule run(const std::function<bool()>& should_stop) {
    const double limit = options_.time_limit_seconds;
    const double deadline =
        start_ + (options_.deterministic ? watchdogSeconds(limit) : limit + kGraceSeconds);
    double next_question = start_ + kPollSeconds;
    while (!ended_ || (untold_ < history_.size() && now() < deadline)) {
      const double time = now();
      if (time >= deadline) return endedBy("the time limit ended the search");
      if (should_stop && time >= next_question) {
        if (should_stop()) return endedBy("the search was stopped");
        next_question = time + kPollSeconds;
      }
      const bool has_news = untold_ < history_.size();
      if (!ended_) exchange(has_news ? 0 : std::min(deadline - time, kPollSeconds));
      tellNext();
    }
    worker_.end();
    return finished();
  }

 private:
  // What the worker had sent by then counts: it may be a plan, or the result.
  Schedule endedBy(const std::string& why) {
    worker_.end();
    const double enough = now() + kPollSeconds;  // where another process goes on talking
    while (!ended_ && now() < enough && receive()) {
    }
    return result_ ? finished() : bestSoFar(why);
  }

  // A point at a time: a slow callback keeps nobody from reading, nor from the time limit, for
  // longer than it takes once.
  void tellNext() {
    if (untold_ == history_.size()) return;
    const SearchPoint point = history_[untold_++];
    if (on_progress_) on_progress_(point);
  }

  void exchange(double timeout_seconds) {
    pollfd waiting{.fd = worker_.socket(), .events = POLLIN, .revents = 0};
    if (sent_ < unsent_.size()) waiting.events |= POLLOUT;
    const int milliseconds = static_cast<int>(std::ceil(timeout_seconds * 1000));
    const int ready = poll(&waiting, 1, milliseconds);
    if (ready <= 0) return;  // time is up, or a signal came
    if (waiting.revents & POLLOUT) sendMore();
    if (waiting.revents & (POLLIN | POLLHUP | POLLERR)) receive();
  }

  void sendMore() {
    const ssize_t n =
        send(worker_.socket(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL);
    if (n > 0) sent_ += static_cast<size_t>(n);
    if (n < 0 && errno != EAGAIN && errno != EINTR)
      sent_ = unsent_.size();  // it is gone: receive() will notice
  }

  // False where nothing had come.
  bool receive() {
    std::array<char, 65536> chunk;
    const ssize_t n = recv(worker_.socket(), chunk.data(), chunk.size(), 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      fail(detail::message("the solver process ", worker_.end()));
      return true;
    }
    reader_.append({chunk.data(), static_cast<size_t>(n)});
    try {
      while (!ended_) {
        const auto frame = reader_.next();
        if (!frame) break;
        take(*frame);
      }
    } catch (const Error& error) {
      fail(detail::message("the solver process sent what makes no sense (", error.what(), ")"));
    }
    return true;
  }

  void take(const Frame& frame) {
    switch (frame.kind) {
      case FrameKind::kIncumbent:
        best_ = checked(frame.payload);
        return;
      case FrameKind::kProgress:
        history_.push_back(decodeProgress(frame.payload));
        if (!options_.deterministic) history_.back().seconds = now() - start_;
        return;
      case FrameKind::kTrouble:
        options_.solver.trouble->add(frame.payload);
        return;
      case FrameKind::kResult:
        result_ = checked(frame.payload);
        ended_ = true;
        return;
      case FrameKind::kError:
        return fail(detail::message("the solver process failed: ", frame.payload));
      case FrameKind::kRequest:
        break;
    }
    throw FormatError(detail::message("a frame of kind ", static_cast<int>(frame.kind)));
  }

  // Nothing that a worker says is believed before our own simulator has said the same.
  Schedule checked(const std::string& payload) const {
    Schedule schedule = Schedule::fromJson(payload);
    POET_CHECK_AS(FormatError, schedule.method == options_.method, "a schedule of the method \"",
                  schedule.method, "\", and \"", options_.method, "\" was asked for");
    if (!schedule.hasPlan()) {
      checkLeast(schedule);
      return schedule;
    }
    schedule.checkAgainst(graph_);
    const int64_t claimed = schedule.peak_bytes;
    finalize(graph_, profile_, schedule);
    POET_CHECK_AS(FormatError,
                  schedule.peak_bytes == claimed && claimed <= options_.ram_budget_bytes,
                  "a plan with a peak of ", schedule.peak_bytes, " bytes, announced as ", claimed,
                  ", for a budget of ", options_.ram_budget_bytes);
    POET_CHECK_AS(
        FormatError,
        !options_.runtime_budget_seconds ||
            schedule.makespan_seconds <= *options_.runtime_budget_seconds * (1 + kSecondsTolerance),
        "a plan that takes ", schedule.makespan_seconds, " s, for a deadline of ",
        options_.runtime_budget_seconds.value_or(0), " s");
    return schedule;
  }

  void checkLeast(const Schedule& without) const {
    if (!without.least_plan) return;
    Schedule least = *without.least_plan;
    least.checkAgainst(graph_);
    finalize(graph_, profile_, least);
    POET_CHECK_AS(FormatError, least.peak_bytes <= without.least_ram_budget.value_or(0),
                  "a plan with a peak of ", least.peak_bytes, " bytes for a least budget of ",
                  without.least_ram_budget.value_or(0));
  }

  void fail(std::string why) {
    failure_ = std::move(why);
    ended_ = true;
  }

  Schedule finished() {
    if (!result_) return bestSoFar(failure_);
    if (!options_.deterministic) result_->solve_seconds = now() - start_;
    result_->history = std::move(history_);
    return std::move(*result_);
  }

  Schedule bestSoFar(const std::string& why) {
    worker_.end();
    Schedule schedule = best_ ? std::move(*best_) : emptySchedule(graph_, options_);
    schedule.method = options_.method;
    schedule.message = detail::message(
        why, best_ ? "; this is the best plan found until then" : "; no plan was found");
    schedule.solve_seconds = now() - start_;
    schedule.history = std::move(history_);
    return schedule;
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const ProgressCallback& on_progress_;
  const double start_;
  WorkerProcess worker_;
  const std::string unsent_;
  size_t sent_ = 0;
  FrameReader reader_;
  std::optional<Schedule> best_, result_;
  std::vector<SearchPoint> history_;
  size_t untold_ = 0;  // the first point of history_ that on_progress_ has not heard of
  std::string failure_;
  bool ended_ = false;
};

}  // namespace

Schedule solveInWorkerProcess(const Graph& graph, const DeviceProfile& profile,
                              const SolveOptions& options, const std::string& worker_path,
                              const std::function<bool()>& should_stop,
                              const ProgressCallback& on_progress,
                              const std::function<void(pid_t)>& on_started) {
  checkOptions(options);
  profile.check();
  for (const Schedule& start : options.starts) start.checkAgainst(graph);
  Conversation conversation(graph, profile, options, worker_path, on_progress);
  if (on_started) on_started(conversation.pid());
  return conversation.run(should_stop);
}

}  // namespace poet::planner

namespace poet {

Schedule solveInWorker(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, const std::string& worker_path,
                       const std::function<bool()>& should_stop,
                       const ProgressCallback& on_progress) {
  return planner::solveInWorkerProcess(graph, profile, options, worker_path, should_stop,
                                       on_progress, {});
}

}  // namespace poet
