// Plans for devices whose transfers run beside computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "planner/event_list.h"
#include "planner/planner.h"
#include "planner/transfer_timing.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/page_everything.h"
#include "support/paging_plan.h"
#include "support/random_graph.h"

namespace poet {
namespace {

DeviceProfile deviceWithChannels(int channels, double bytes_per_second) {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.generator_state_bytes = 3;
  profile.store_read_rate = bytes_per_second;
  profile.store_write_rate = 2 * bytes_per_second;
  profile.store_read_latency_seconds = 0.01;
  profile.dma_channels = channels;
  return profile;
}

// What must hold after the timing of any schedule that can be carried out.
void checkTiming(const Graph& graph, const DeviceProfile& profile, const Schedule& schedule,
                 int64_t budget_bytes, int& faster) {
  const SimulationResult before = simulate(graph, schedule, profile);
  const planner::GraphFacts facts(graph);
  Schedule timed = schedule;
  planner::TransferTiming(facts, profile).improve(budget_bytes, timed);
  SimulationResult after;
  ASSERT_NO_THROW(after = simulate(graph, timed, profile));
  EXPECT_LE(after.peak_bytes, std::max(budget_bytes, before.peak_bytes));
  EXPECT_LE(after.makespan_seconds, before.makespan_seconds * (1 + 1e-9));
  EXPECT_NEAR(after.transfer_seconds, before.transfer_seconds, 1e-9 * before.transfer_seconds);
  EXPECT_EQ(after.recomputed_ops, before.recomputed_ops);
  if (before.page_ins + before.page_outs > 0) {
    EXPECT_EQ(timed.believed_peak_bytes, after.peak_bytes);
    EXPECT_NEAR(timed.believed_seconds, after.makespan_seconds, 1e-9 * after.makespan_seconds);
  }
  faster += after.makespan_seconds < before.makespan_seconds * (1 - 1e-9);
}

TEST(Overlap, TimingKeepsTheBudgetAndNeverSlowsAStepDown) {
  int faster = 0, cases = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph =
        testing::randomGraph(seed, {.forward_ops = 6 + static_cast<int>(seed % 20)});
    const DeviceProfile profile =
        deviceWithChannels(1 + static_cast<int>(seed % 3), 20 + 30 * static_cast<double>(seed % 7));
    for (const double eagerness : {0.1, 0.3}) {
      const Schedule schedule = testing::pagingPlan(graph, seed, eagerness);
      const int64_t peak = simulate(graph, schedule, profile).peak_bytes;
      for (const int64_t budget : {peak - 1, peak, peak + 20, peak * 2}) {
        checkTiming(graph, profile, schedule, budget, faster);
        ++cases;
      }
    }
    const Schedule everything = testing::pageEverything(graph, seed % 2 == 0);
    const int64_t peak = simulate(graph, everything, profile).peak_bytes;
    checkTiming(graph, profile, everything, peak + 10, faster);
  }
  std::printf("%d of %d schedules are faster\n", faster, cases);
  EXPECT_GT(faster, cases / 3);
}

// Forward ops whose outputs backward ops read in the opposite order, and one more op of a second
// between the two.
Graph chain(int length, int64_t bytes) {
  testing::GraphBuilder g;
  std::vector<ValueId> saved = {g.op("first").notReplayable().seconds(1).makes(bytes)};
  for (int i = 1; i < length; ++i) {
    saved.push_back(g.op("forward").reads({saved.back()}).notReplayable().seconds(1).makes(bytes));
  }
  ValueId gradient = g.op("loss").reads({saved.back()}).notReplayable().seconds(1).makes(1);
  for (int i = length - 1; i >= 0; --i) {
    gradient = g.op("backward")
                   .reads({gradient, saved[static_cast<size_t>(i)]})
                   .notReplayable()
                   .seconds(1)
                   .makes(1);
  }
  g.outlives(gradient);
  return g.build();
}

// Half of the chain's values fit.
SolveOptions halfTheChain(double time_limit_seconds) {
  SolveOptions options;
  options.ram_budget_bytes = 650;
  options.minimize = Objective::kTime;
  options.time_limit_seconds = time_limit_seconds;
  return options;
}

// Nothing can be recomputed, six of twelve values must leave, and each transfer takes half an op.
TEST(Overlap, AChainHidesAllItsTransfers) {
  const Graph graph = chain(12, 100);
  DeviceProfile profile = deviceWithChannels(1, 200);
  profile.store_write_rate = 200;
  profile.store_read_latency_seconds = 0;
  const SimulationResult plain = simulatePlain(graph, profile);
  const SolveOptions options = halfTheChain(10);
  const Schedule schedule = solve(graph, profile, options);
  ASSERT_TRUE(schedule.hasPlan());
  const SimulationResult result = simulate(graph, schedule, profile);
  EXPECT_GE(result.page_ins, 6);
  EXPECT_GT(result.hidden_seconds, 5.9);
  EXPECT_LE(result.peak_bytes, options.ram_budget_bytes);
  EXPECT_NEAR(schedule.makespan_seconds, plain.makespan_seconds, 1e-9);
  EXPECT_EQ(schedule.status, Status::kOptimal);
}

// The same where a channel is too slow for it: the plan stops no shorter than the channel does.
TEST(Overlap, AChannelThatIsFullTakesItsTime) {
  const Graph graph = chain(12, 100);
  const DeviceProfile profile = deviceWithChannels(1, 20);
  const SimulationResult plain = simulatePlain(graph, profile);
  SolveOptions options = halfTheChain(2);
  const Schedule schedule = solve(graph, profile, options);
  ASSERT_TRUE(schedule.hasPlan());
  const SimulationResult result = simulate(graph, schedule, profile);
  EXPECT_GE(schedule.makespan_seconds, result.transfer_seconds);
  EXPECT_GT(schedule.makespan_seconds, plain.makespan_seconds * 1.5);
  EXPECT_LE(*schedule.bound, schedule.makespan_seconds);
  EXPECT_GT(*schedule.bound, plain.makespan_seconds * 1.2);
  options.runtime_budget_seconds = schedule.makespan_seconds * 0.9;
  const Schedule hurried = solve(graph, profile, options);
  if (hurried.hasPlan()) {
    EXPECT_LE(hurried.makespan_seconds, *options.runtime_budget_seconds * (1 + 1e-9));
  }
}

TEST(Overlap, TimedPlansSurviveTheCompactForm) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = testing::randomGraph(seed, {.forward_ops = 12});
    const DeviceProfile profile = deviceWithChannels(1, 60);
    Schedule schedule = testing::pagingPlan(graph, seed, 0.3);
    schedule.graph_signature = graph.signature();
    schedule.num_ops = graph.numOps();
    schedule.status = Status::kFeasible;
    const planner::GraphFacts facts(graph);
    const int64_t budget = simulate(graph, schedule, profile).peak_bytes + 20;
    planner::TransferTiming(facts, profile).improve(budget, schedule);
    const std::string bytes = schedule.toBytes(graph);
    const Schedule back = Schedule::fromBytes(bytes, graph);
    EXPECT_EQ(back.toBytes(graph), bytes);
    EXPECT_EQ(simulate(graph, back, profile).makespan_seconds,
              simulate(graph, schedule, profile).makespan_seconds);
  }
}

}  // namespace
}  // namespace poet
