// Swap-ins that a step waited for begin earlier in the next one: worked by hand.
#include "methods/swap_feedback.h"

#include <gtest/gtest.h>

#include <vector>

#include "graph/error.h"
#include "methods/method.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

constexpr int kReadsIt = 6;

// a is made, 100 bytes are needed, and a is read long after that.
Graph readLate(ValueId* a) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  *a = g.op("a").phase(Phase::kForward).reads({x}).seconds(1).makes(20);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  g.op("read_a").phase(Phase::kBackward).reads({*a}).seconds(1).makes(1);
  return g.build();
}

DeviceProfile withChannels(int channels) {
  DeviceProfile profile = smallProfile();
  profile.store_read_rate = profile.store_write_rate = 20;  // a takes a second
  profile.dma_channels = channels;
  return profile;
}

Schedule planned(const Graph& graph, const DeviceProfile& profile) {
  SolveOptions options;
  options.ram_budget_bytes = 105;
  options.method = "capuchin";
  options.recompute = false;
  Schedule schedule = planWith(graph, profile, options);
  EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
  return schedule;
}

std::vector<int> backBefore(const Schedule& schedule, ValueId v) {
  std::vector<int> positions;
  for (size_t k = 0; k < schedule.before.size(); ++k) {
    for (const Action& action : schedule.before[k]) {
      if (action == Action{ActionKind::kPageIn, v.index}) positions.push_back(static_cast<int>(k));
    }
  }
  return positions;
}

TEST(SwapFeedback, ALateSwapBeginsOneTouchEarlierUntilThereIsNoMemory) {
  ValueId a;
  const Graph graph = readLate(&a);
  const DeviceProfile profile = withChannels(1);
  Schedule schedule = planned(graph, profile);
  std::vector<std::vector<int>> seen{backBefore(schedule, a)};
  while (auto moved = withEarlierSwaps(schedule, graph, profile, {{a, OpId(kReadsIt), 0.5}})) {
    schedule = *std::move(moved);
    EXPECT_LE(schedule.peak_bytes, 105);
    EXPECT_EQ(schedule.peak_bytes, simulate(graph, schedule, profile).peak_bytes);
    EXPECT_EQ(schedule.believed_peak_bytes, schedule.peak_bytes);
    EXPECT_EQ(schedule.method, "capuchin");
    seen.push_back(backBefore(schedule, a));
    ASSERT_LT(seen.size(), 8u);
  }
  // Before "large" there is no room for it.
  EXPECT_EQ(seen, (std::vector<std::vector<int>>{{5}, {4}, {3}}));
}

TEST(SwapFeedback, NothingMovesWithoutAWaitOrAChannel) {
  ValueId a;
  const Graph graph = readLate(&a);
  const Schedule schedule = planned(graph, withChannels(1));
  EXPECT_FALSE(withEarlierSwaps(schedule, graph, withChannels(1), {}));
  // 5 % of the swap's second is what a move comes to.
  EXPECT_FALSE(withEarlierSwaps(schedule, graph, withChannels(1), {{a, OpId(kReadsIt), 0.04}}));
  EXPECT_FALSE(withEarlierSwaps(schedule, graph, withChannels(0), {{a, OpId(kReadsIt), 0.5}}));
}

TEST(SwapFeedback, WhatThePlanDoesNotBringBackStays) {
  ValueId a;
  const Graph graph = readLate(&a);
  const DeviceProfile profile = withChannels(1);
  const Schedule schedule = planned(graph, profile);
  EXPECT_FALSE(withEarlierSwaps(schedule, graph, profile, {{ValueId(0), OpId(kReadsIt), 0.5}}));
  EXPECT_FALSE(withEarlierSwaps(schedule, graph, profile, {{a, OpId(1), 0.5}}));
  EXPECT_THROW(withEarlierSwaps(schedule, graph, profile, {{ValueId(99), OpId(1), 0.5}}), Error);
  EXPECT_THROW(withEarlierSwaps(schedule, graph, profile, {{a, OpId(99), 0.5}}), Error);
}

}  // namespace
}  // namespace poet::testing
