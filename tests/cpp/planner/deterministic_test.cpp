// SolveOptions::deterministic: the same bytes twice, on a busy machine and through a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "planner/clock.h"
#include "planner/planner.h"
#include "schedule/simulator.h"
#include "support/random_graph.h"
#include "support/solver_choices.h"

namespace poet {
namespace {

using planner::Deadline;
using planner::WorkMeter;
using testing::choiceOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::whyNot;

// Too large for a proof, so that the limit is what ends the search.
Graph largeGraph() { return testing::randomGraph(11, {.forward_ops = 60, .largest_bytes = 4096}); }

DeviceProfile deviceWithStore() {
  DeviceProfile device = hostProfile();
  device.store_read_rate = device.store_write_rate = 2000;
  device.dma_channels = 1;
  return device;
}

SolveOptions optionsFor(const Graph& graph, const DeviceProfile& device, SolverKind solver) {
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, device).peak_bytes * 7 / 10;
  options.time_limit_seconds = 0.15;
  options.deterministic = true;
  options.solver = choiceOf(solver);
  return options;
}

// Takes processor time from the solves that run meanwhile. They fork, so it waits until every
// thread has come up: one that is still starting may hold a lock of AddressSanitizer's, which its
// fork does not take, and the child would wait for that lock until the watchdog ends it.
class Load {
 public:
  Load() {
    const unsigned count = 2 * std::max(1U, std::thread::hardware_concurrency());
    for (unsigned i = 0; i < count; ++i) {
      threads_.emplace_back([this] {
        ++running_;
        while (!ended_) {
        }
      });
    }
    while (running_ < count) std::this_thread::yield();
  }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;
  ~Load() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> ended_ = false;
  std::atomic<unsigned> running_ = 0;
  std::vector<std::thread> threads_;
};

class Deterministic : public ::testing::TestWithParam<SolverKind> {};

TEST_P(Deterministic, TheSameBytesTwiceUnderLoadAndFromAProcess) {
  if (const std::string why = whyNot(GetParam()); !why.empty()) GTEST_SKIP() << why;
  const Graph graph = largeGraph();
  for (const DeviceProfile& device : {hostProfile(), deviceWithStore()}) {
    const SolveOptions asked = optionsFor(graph, device, GetParam());
    const Schedule first = solve(graph, device, asked);
    ASSERT_TRUE(first.hasPlan()) << first.message;
    EXPECT_FALSE(first.history.empty());
    const std::string text = first.toJson();
    EXPECT_EQ(solve(graph, device, asked).toJson(), text);
    const Load load;
    EXPECT_EQ(solve(graph, device, asked).toJson(), text);
#ifdef POET_SOLVER_PATH
    EXPECT_EQ(solveInWorker(graph, device, asked, POET_SOLVER_PATH).toJson(), text);
#endif
  }
}

INSTANTIATE_TEST_SUITE_P(Solvers, Deterministic,
                         ::testing::Values(SolverKind::kCbc, SolverKind::kHighs,
                                           SolverKind::kGurobi),
                         [](const auto& solver) { return std::string(toString(solver.param)); });

TEST(Deterministic, ALimitOfWorkIsKept) {
  const Graph graph = largeGraph();
  const DeviceProfile device = hostProfile();
  SolveOptions asked = optionsFor(graph, device, SolverKind::kCbc);
  for (const double limit : {0.05, 0.2}) {
    asked.time_limit_seconds = limit;
    const Schedule found = solve(graph, device, asked);
    EXPECT_GT(found.solve_seconds, 0);
    for (const SearchPoint& point : found.history) EXPECT_LE(point.seconds, found.solve_seconds);
  }
}

TEST(Deterministic, SeveralThreadsAreRefused) {
  const Graph graph = largeGraph();
  SolveOptions asked = optionsFor(graph, hostProfile(), SolverKind::kCbc);
  asked.threads = 2;
  EXPECT_THAT([&] { solve(graph, hostProfile(), asked); },
              ThrowsMessage<ArgumentError>(HasSubstr("solve_threads=1")));
}

TEST(WorkMeter, MovesTheDeadlinesThatAreMadeUnderIt) {
  const Deadline outside(1000);
  const WorkMeter meter;
  const Deadline inside(2);
  planner::chargeWork(1.5);
  EXPECT_EQ(inside.elapsed(), 1.5);
  EXPECT_EQ(inside.left(), 0.5);
  EXPECT_FALSE(inside.over());
  planner::chargeWork(0.5);
  EXPECT_TRUE(inside.over());
  EXPECT_EQ(Deadline(1).elapsed(), 0);  // counts from here
  EXPECT_LT(outside.elapsed(), 1000);
}

TEST(WorkMeter, EndsWithItsScope) {
  {
    const WorkMeter outer;
    planner::chargeWork(1);
    {
      const WorkMeter inner;
      planner::chargeWork(5);
      EXPECT_EQ(WorkMeter::current(), &inner);
    }
    EXPECT_EQ(WorkMeter::current(), &outer);
    EXPECT_EQ(outer.seconds(), 1);
  }
  EXPECT_EQ(WorkMeter::current(), nullptr);
}

}  // namespace
}  // namespace poet
