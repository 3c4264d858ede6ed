// The solver's process from outside: whatever becomes of it, the caller gets a status in time, and
// nothing is left behind. Fake solvers are shell scripts that speak the protocol from recorded
// frames. Times are watchdogs: ten times what they should be.
#include "planner/worker/spawn.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "planner/worker/protocol.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/random_graph.h"
#include "support/temporary_folder.h"

namespace poet::planner {
namespace {

using ::testing::AllOf;
using testing::GraphBuilder;
using ::testing::HasSubstr;
using testing::TemporaryFolder;

constexpr double kFarAway = 3600;  // seconds; a test that waits for it has failed
constexpr double kWatchdogSeconds = 20;

// Waits until the condition holds; false where it does not come to that.
bool within(double seconds, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

bool runs(pid_t process) { return kill(process, 0) == 0; }

// Orphans of this process's children become its own children while this lives, so that it can see
// how they end.
class Adopts {
 public:
  Adopts() { prctl(PR_SET_CHILD_SUBREAPER, 1); }
  Adopts(const Adopts&) = delete;
  Adopts& operator=(const Adopts&) = delete;
  ~Adopts() { prctl(PR_SET_CHILD_SUBREAPER, 0); }

  // Reaps everything that ends; true once no descendant is left.
  bool allEnd() {
    return within(kWatchdogSeconds, [this] {
      int status = 0;
      pid_t ended = 0;
      while ((ended = waitpid(-1, &status, WNOHANG)) > 0) how_[ended] = status;
      return ended < 0 && errno == ECHILD;
    });
  }
  // By the signal, not by itself?
  bool wasKilled(pid_t process) const {
    const auto found = how_.find(process);
    return found != how_.end() && WIFSIGNALED(found->second) && WTERMSIG(found->second) == SIGKILL;
  }

 private:
  std::map<pid_t, int> how_;
};

// ---- questions ----------------------------------------------------------------------------------

// f makes a (1 s), which must be away beside the workspace of wide.
struct Small {
  Small() {
    GraphBuilder g;
    const ValueId x = g.input(1);
    const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
    const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
    g.outlives(g.op("use").reads({a, m}).seconds(1).makes(1));
    graph.emplace(g.build());
    options.ram_budget_bytes = 20;
    options.time_limit_seconds = kFarAway;
    device.name = "test";
    device.compute_watts = 2;
    plan = poet::solve(*graph, device, options);
  }
  Schedule ask(const std::string& solver, const std::function<bool()>& should_stop = {},
               const std::function<void(pid_t)>& on_started = {}) const {
    return solveInWorkerProcess(*graph, device, options, solver, should_stop, {}, on_started);
  }

  std::optional<Graph> graph;
  DeviceProfile device;
  SolveOptions options;
  Schedule plan;
};

// Keeps the real solver busy for as long as it may.
struct Hard {
  Hard()
      : graph(testing::randomGraph(
            11, {.forward_ops = 400, .largest_bytes = 1 << 20, .not_replayable = 0})) {
    options.ram_budget_bytes = simulatePlain(graph, hostProfile()).peak_bytes * 7 / 10;
    options.time_limit_seconds = kFarAway;
  }
  Schedule ask(const std::function<bool()>& should_stop,
               const std::function<void(pid_t)>& on_started = {}) const {
    return solveInWorkerProcess(graph, hostProfile(), options, POET_SOLVER_PATH, should_stop, {},
                                on_started);
  }

  Graph graph;
  SolveOptions options;
};

// ---- fake solvers -------------------------------------------------------------------------------

class FakeSolver {
 public:
  // `frame` lies in the file $FRAME of the script; descriptor 3 leads to the parent.
  FakeSolver(const std::string& script, const std::string& frame = "") {
    folder_.write("frame", frame);
    folder_.write("solver", "#!/bin/sh\nFRAME='" + folder_ / "frame" + "'\n" + script + "\n");
    chmod(path().c_str(), 0700);
  }
  std::string path() const { return folder_ / "solver"; }

 private:
  TemporaryFolder folder_;
};

std::string incumbent(const Schedule& schedule) {
  return encodeFrame(FrameKind::kIncumbent, schedule.toJson());
}

void expectPlan(const Schedule& got, const Schedule& plan) {
  EXPECT_EQ(got.status, Status::kOptimal);
  EXPECT_EQ(got.before, plan.before);
  EXPECT_EQ(got.recipes, plan.recipes);
  EXPECT_EQ(got.makespan_seconds, plan.makespan_seconds);
  EXPECT_THAT(got.message, HasSubstr("best plan found until then"));
}

void expectNoPlan(const Schedule& got) {
  EXPECT_EQ(got.status, Status::kTimeLimit);
  EXPECT_FALSE(got.hasPlan());
  EXPECT_TRUE(got.before.empty());
  EXPECT_THAT(got.message, HasSubstr("no plan was found"));
}

// ---- how a solver ends --------------------------------------------------------------------------

TEST(SolverProcess, ASolverThatIsKilledLeavesTheBestPlanSoFar) {
  const Small small;
  const FakeSolver solver("cat \"$FRAME\" >&3; kill -KILL $$", incumbent(small.plan));
  const Schedule got = small.ask(solver.path());
  expectPlan(got, small.plan);
  EXPECT_THAT(got.message, HasSubstr("signal 9"));
}

TEST(SolverProcess, ASolverThatIsKilledBeforeAnyPlanIsAStatus) {
  const Schedule got = Small().ask(FakeSolver("kill -KILL $$").path());
  expectNoPlan(got);
  EXPECT_THAT(got.message, HasSubstr("signal 9"));
}

TEST(SolverProcess, ARealSolverThatIsKilledIsAStatusToo) {
  Adopts adopts;
  const Hard hard;
  pid_t solver = 0;
  int questions = 0;
  const Schedule got = hard.ask(
      [&] {
        if (++questions == 5) kill(solver, SIGKILL);
        return false;
      },
      [&](pid_t started) { solver = started; });
  EXPECT_THAT(got.message, HasSubstr("signal 9"));
  EXPECT_NE(got.status, Status::kInfeasible);
  EXPECT_LT(got.solve_seconds, kWatchdogSeconds);
  if (got.hasPlan()) {
    EXPECT_LE(simulate(hard.graph, got, hostProfile()).peak_bytes, *got.ram_budget_bytes);
  }
  EXPECT_TRUE(adopts.allEnd()) << "the processes of the solver's own outlived it";
}

// Only a SIGKILL to the process that asked: no destructor runs in it.
TEST(SolverProcess, DiesWithItsParent) {
  Adopts adopts;
  const Hard hard;
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t parent = fork();
  if (parent == 0) {
    hard.ask({}, [&](pid_t started) {
      const ssize_t n = write(pipe_ends[1], &started, sizeof started);
      static_cast<void>(n);
    });
    _exit(1);
  }
  pid_t solver = 0;
  ASSERT_EQ(read(pipe_ends[0], &solver, sizeof solver), static_cast<ssize_t>(sizeof solver));
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  ASSERT_TRUE(runs(solver));
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // well into the search, mostly
  kill(parent, SIGKILL);
  EXPECT_TRUE(adopts.allEnd());
  EXPECT_TRUE(adopts.wasKilled(solver)) << "it went on until it had something to say";
}

// ---- limits -------------------------------------------------------------------------------------

void expectLimitHolds(const std::string& script, const std::string& frame,
                      const std::function<void(const Schedule&)>& check) {
  Small small;
  small.options.time_limit_seconds = 0.2;
  const FakeSolver solver(script, frame);
  pid_t process = 0;
  const Schedule got = small.ask(solver.path(), {}, [&](pid_t started) { process = started; });
  EXPECT_GE(got.solve_seconds, 0.2);
  EXPECT_LT(got.solve_seconds, 10 * (0.2 + 1));
  EXPECT_FALSE(runs(process));
  EXPECT_THAT(got.message, HasSubstr("time limit"));
  check(got);
}

TEST(SolverProcess, TheTimeLimitHoldsForASolverThatHangs) {
  expectLimitHolds("exec sleep 3600", "", expectNoPlan);
}

TEST(SolverProcess, TheTimeLimitHoldsForASolverThatIgnoresSignals) {
  expectLimitHolds("trap '' TERM INT HUP; while :; do :; done", "", expectNoPlan);
}

TEST(SolverProcess, TheTimeLimitHoldsForASolverThatIsStopped) {
  expectLimitHolds("kill -STOP $$; exec sleep 3600", "", expectNoPlan);
}

TEST(SolverProcess, TheTimeLimitHoldsForASolverThatNeverStopsTalking) {
  const Schedule plan = Small().plan;
  expectLimitHolds("while cat \"$FRAME\"; do :; done >&3 2>/dev/null", incumbent(plan),
                   [&](const Schedule& got) { expectPlan(got, plan); });
}

TEST(SolverProcess, TheTimeLimitHoldsForASolverThatReadsNothing) {
  Hard hard;  // more than a socket takes at once
  hard.options.time_limit_seconds = 0.2;
  const FakeSolver solver("exec sleep 3600");
  const Schedule got =
      solveInWorkerProcess(hard.graph, hostProfile(), hard.options, solver.path(), {}, {}, {});
  expectNoPlan(got);
  EXPECT_LT(got.solve_seconds, 10 * (0.2 + 1));
}

TEST(SolverProcess, TheTimeLimitHoldsForTheRealOne) {
  Hard hard;
  hard.options.time_limit_seconds = 1;
  const Schedule got = hard.ask({});
  EXPECT_LT(got.solve_seconds, 10 * (1 + 1));
  EXPECT_NE(got.status, Status::kInfeasible);
}

TEST(SolverProcess, StoppingEndsItAtOnce) {
  const FakeSolver solver("exec sleep 3600");
  pid_t process = 0;
  const Schedule got = Small().ask(
      solver.path(), [] { return true; }, [&](pid_t started) { process = started; });
  expectNoPlan(got);
  EXPECT_THAT(got.message, HasSubstr("stopped"));
  EXPECT_LT(got.solve_seconds, kWatchdogSeconds);
  EXPECT_FALSE(runs(process));
}

TEST(SolverProcess, StoppingEndsTheRealOneWithAllItsProcesses) {
  Adopts adopts;
  int questions = 0;
  const Schedule got = Hard().ask([&] { return ++questions == 8; });
  EXPECT_THAT(got.message, HasSubstr("stopped"));
  EXPECT_LT(got.solve_seconds, kWatchdogSeconds);
  EXPECT_TRUE(adopts.allEnd());
}

// ---- callbacks ----------------------------------------------------------------------------------

TEST(SolverProcess, ASlowCallbackDelaysTheTimeLimitOnceAndLosesNoPlan) {
  Small small;
  small.options.time_limit_seconds = 0.05;
  std::string frames;
  for (int i = 1; i <= 200; ++i)
    frames += encodeFrame(FrameKind::kProgress, encodeProgress({.value = {}, .bound = i}));
  frames += incumbent(small.plan);
  const FakeSolver solver("cat \"$FRAME\" >&3; exec sleep 3600", frames);
  int calls = 0;
  const Schedule got =
      solveInWorkerProcess(*small.graph, small.device, small.options, solver.path(), {},
                           [&](const SearchPoint&) {
                             ++calls;
                             sleep(2);
                           },
                           {});
  expectPlan(got, small.plan);
  EXPECT_LE(calls, 1);
  EXPECT_EQ(got.history.size(), 200);
}

TEST(SolverProcess, EachPointIsToldInItsOrderBeforeTheResult) {
  Small small;
  std::string frames;
  for (int i = 1; i <= 50; ++i)
    frames += encodeFrame(FrameKind::kProgress, encodeProgress({.value = {}, .bound = i}));
  frames += encodeFrame(FrameKind::kResult, small.plan.toJson());
  const FakeSolver solver("cat \"$FRAME\" >&3", frames);
  std::vector<double> told;
  const Schedule got = solveInWorkerProcess(
      *small.graph, small.device, small.options, solver.path(), {},
      [&](const SearchPoint& point) { told.push_back(point.bound.value_or(-1)); }, {});
  EXPECT_EQ(got.before, small.plan.before);
  ASSERT_EQ(told.size(), 50);
  EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
}

// ---- what is believed ---------------------------------------------------------------------------

void expectNotBelieved(const std::function<void(Small&, Schedule&)>& spoil,
                       const std::string& says) {
  Small small;
  Schedule lie = small.plan;
  spoil(small, lie);
  small.options.time_limit_seconds = kWatchdogSeconds;
  const FakeSolver solver("cat \"$FRAME\" >&3; exec sleep 3600", incumbent(lie));
  const Schedule got = small.ask(solver.path());
  expectNoPlan(got);
  EXPECT_THAT(got.message, AllOf(HasSubstr("makes no sense"), HasSubstr(says)));
}

TEST(SolverProcess, NoPlanIsBelievedThatTheSimulatorDoesNotConfirm) {
  expectNotBelieved([](Small&, Schedule& lie) { --lie.peak_bytes; }, "announced as");
  expectNotBelieved([](Small& small, Schedule&) { small.options.ram_budget_bytes = 12; },
                    "for a budget of 12");
  expectNotBelieved([](Small& small, Schedule&) { small.options.runtime_budget_seconds = 3.5; },
                    "for a deadline of 3.5");
  expectNotBelieved([](Small&, Schedule& lie) { ++lie.graph_signature; }, "");
  expectNotBelieved([](Small&, Schedule& lie) { lie.before[2].clear(); }, "");
}

TEST(SolverProcess, NonsenseInsteadOfFramesIsAStatus) {
  Small small;
  small.options.time_limit_seconds = kWatchdogSeconds;
  for (const char* script : {"echo nonsense >&3", "head -c 100000 /dev/zero >&3",
                             "printf 'POETQ\\0\\0\\0\\0\\0\\0\\0\\0' >&3",
                             "printf 'POETR\\2\\0\\0\\0\\0\\0\\0\\0{}' >&3"}) {
    const FakeSolver solver(std::string(script) + "; exec sleep 3600");
    const Schedule got = small.ask(solver.path());
    expectNoPlan(got);
    EXPECT_THAT(got.message, HasSubstr("makes no sense")) << script;
  }
}

// ---- memory -------------------------------------------------------------------------------------

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

constexpr const char* kMemoryVariable = "POET_SOLVER_MEMORY_BYTES";

std::string fileOf(pid_t process, const char* name) {
  std::ostringstream text;
  text << std::ifstream("/proc/" + std::to_string(process) + "/" + name).rdbuf();
  return text.str();
}

// Asks a hard question and stops once the condition holds of the solver's process.
bool comesTrueOf(const std::function<bool(pid_t)>& condition, int niceness = 0) {
  pid_t solver = 0;
  bool came = false;
  const auto end =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(kWatchdogSeconds);
  Hard hard;
  hard.options.niceness = niceness;
  hard.ask(
      [&] {
        came = condition(solver);
        return came || std::chrono::steady_clock::now() > end;
      },
      [&](pid_t started) { solver = started; });
  return came;
}

TEST(SolverProcess, TheKernelTakesItBeforeTheTrainingProcess) {
  EXPECT_TRUE(
      comesTrueOf([](pid_t solver) { return fileOf(solver, "oom_score_adj") == "1000\n"; }));
}

TEST(SolverProcess, GivesWayToOthersByAsMuchAsItIsAsked) {
  const int own = getpriority(PRIO_PROCESS, 0);
  const auto nicenessIs = [](int expected) {
    return [=](pid_t solver) {
      return getpriority(PRIO_PROCESS, static_cast<id_t>(solver)) == expected;
    };
  };
  EXPECT_TRUE(comesTrueOf(nicenessIs(std::min(19, own + 7)), 7));
  EXPECT_TRUE(comesTrueOf(nicenessIs(own), 0));
  EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
}

TEST(SolverProcess, AMemoryLimitThatIsNoneIsNamed) {
  for (const char* wrong : {"lots", "-1", "", "1e9", "12 parsecs", "9223372036854775808"}) {
    const Variable variable(kMemoryVariable, wrong);
    const Schedule got = Small().ask(POET_SOLVER_PATH);
    expectNoPlan(got);
    EXPECT_THAT(got.message, AllOf(HasSubstr(kMemoryVariable), HasSubstr(wrong)));
  }
}

#if !defined(__SANITIZE_ADDRESS__)  // it reserves terabytes of address space, without a limit

// The soft limit of a process's address space; none where it is unlimited.
std::optional<int64_t> addressSpaceOf(pid_t process) {
  std::istringstream limits(fileOf(process, "limits"));
  for (std::string line; std::getline(limits, line);) {
    if (line.rfind("Max address space", 0) != 0) continue;
    const std::string soft = line.substr(26, 21);
    if (soft.rfind("unlimited", 0) == 0) return std::nullopt;
    return std::stoll(soft);
  }
  return std::nullopt;
}

TEST(SolverProcess, ItsAddressSpaceIsLimited) {
  const int64_t all = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  EXPECT_TRUE(comesTrueOf([&](pid_t solver) {
    const auto limit = addressSpaceOf(solver);
    return limit && *limit >= int64_t{4} << 30 && *limit <= std::max(all / 2, int64_t{4} << 30);
  }));
  const Variable variable(kMemoryVariable, "3000000000");
  EXPECT_TRUE(comesTrueOf([](pid_t solver) { return addressSpaceOf(solver) == 3000000000; }));
}

TEST(SolverProcess, WithoutMemoryASolveIsAStatus) {
  const Variable variable(kMemoryVariable, "100000000");
  Hard hard;
  hard.graph = testing::randomGraph(3, {.forward_ops = 60000});
  const Schedule got = hard.ask({});
  EXPECT_NE(got.status, Status::kInfeasible);
  EXPECT_THAT(got.message, HasSubstr("the solver process"));
  EXPECT_LT(got.solve_seconds, kFarAway / 10);
}

#endif

}  // namespace
}  // namespace poet::planner
