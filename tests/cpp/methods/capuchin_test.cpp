// What Capuchin's policy swaps and recomputes first: worked by hand.
#include <gtest/gtest.h>

#include <set>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/small_random_graph.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

Schedule planned(const Graph& graph, const DeviceProfile& profile, int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = "capuchin";
  Schedule schedule = planWith(graph, profile, options);
  EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
  return schedule;
}

// a and b are made, 100 bytes are needed, then b is read, and a long after it.
Graph longAndShort(ValueId* a, ValueId* b) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  *a = g.op("a").phase(Phase::kForward).reads({x}).seconds(1).makes(20);
  *b = g.op("b").phase(Phase::kForward).reads({x}).seconds(1).makes(20);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(10).makes(1);
  const ValueId first = g.op("read_b").phase(Phase::kBackward).reads({*b}).seconds(10).makes(1);
  g.op("read_a").phase(Phase::kBackward).reads({*a, first}).seconds(1).makes(1);
  return g.build();
}

DeviceProfile profileWithChannel(double rate) {
  DeviceProfile profile = smallProfile();
  profile.store_read_rate = profile.store_write_rate = rate;
  profile.dma_channels = 1;
  return profile;
}

TEST(Capuchin, SwapsWhatHasTheMostFreeTime) {
  ValueId a, b;
  const Graph graph = longAndShort(&a, &b);
  const DeviceProfile profile = profileWithChannel(100);
  const Schedule schedule = planned(graph, profile, 125);
  std::set<int> swapped;
  for (const auto& actions : schedule.before) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kPageIn) swapped.insert(action.arg);
    }
  }
  EXPECT_EQ(swapped, (std::set<int>{a.index}));
  EXPECT_EQ(schedule.countActions(ActionKind::kRecompute), 0);
}

TEST(Capuchin, RecomputesWhereASwapTakesLonger) {
  ValueId a, b;
  const Graph graph = longAndShort(&a, &b);
  // 20 bytes take 200 seconds: no swap is free, and a recompute takes one.
  const Schedule schedule = planned(graph, profileWithChannel(0.1), 125);
  EXPECT_EQ(schedule.countActions(ActionKind::kPageIn), 0);
  EXPECT_EQ(schedule.countActions(ActionKind::kRecompute), 1);
}

TEST(Capuchin, RecomputesTheMostBytesForASecond) {
  for (const auto& [a_bytes, expected] : {std::pair{20, 1}, std::pair{400, 0}}) {
    GraphBuilder g;
    const ValueId x = g.input(1);
    const ValueId a = g.op("a").phase(Phase::kForward).reads({x}).seconds(10).makes(a_bytes);
    const ValueId b = g.op("b").phase(Phase::kForward).reads({x}).seconds(1).makes(20);
    g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
    const ValueId first = g.op("read_a").phase(Phase::kBackward).reads({a}).seconds(1).makes(1);
    g.op("read_b").phase(Phase::kBackward).reads({b, first}).seconds(1).makes(1);
    // a saves 2 or 40 bytes for a second, b 20.
    const Schedule schedule = planned(g.build(), smallProfile(), a_bytes + 105);
    ASSERT_EQ(schedule.recipes.size(), 1u);
    EXPECT_EQ(schedule.recipes[0], (std::vector<OpId>{OpId(expected)}));
  }
}

}  // namespace
}  // namespace poet::testing
