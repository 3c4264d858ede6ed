// Addresses of what is in memory, against places worked out by hand and against the simulator.
#include "methods/placement.h"

#include <gtest/gtest.h>

#include "graph/error.h"
#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"
#include "support/property_cases.h"

namespace poet::testing {
namespace {

// a, b and c lie side by side; b dies, and d, which is larger, finds no place but behind c.
TEST(Placement, AHoleThatIsTooSmallIsFragmentation) {
  GraphBuilder g;
  const ValueId a = g.op("a").makes(10);
  const ValueId b = g.op("b").reads({a}).makes(20);
  const ValueId c = g.op("c").reads({a, b}).makes(30);
  const ValueId d = g.op("d").reads({a, c}).makes(25);
  g.op("e").reads({a, c, d}).makes(1);
  const Graph graph = g.build();
  const Placement placement = placeInArena(graph, PlanBuilder(graph).build());
  EXPECT_EQ(placement.live_bytes, 10 + 30 + 25 + 1);
  EXPECT_EQ(placement.arena_bytes, 10 + 20 + 30 + 25);
  EXPECT_DOUBLE_EQ(placement.fragmentation(), 85.0 / 66 - 1);
}

TEST(Placement, WorkspaceAndWhatAReplayMakesHavePlaces) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("a").reads({x}).workspace(16).makes(10);
  const ValueId b = g.op("b").reads({a}).makes(12);
  g.op("c").reads({a, b}).workspace(40).makes(1);
  const Graph graph = g.build();
  const Placement plain = placeInArena(graph, PlanBuilder(graph).build());
  EXPECT_EQ(plain.live_bytes, 8 + 10 + 12 + 1 + 40);
  EXPECT_EQ(plain.arena_bytes, plain.live_bytes);
  // a leaves its place to nothing, and comes back to it.
  const Schedule plan = PlanBuilder(graph).before(2).free(a).recompute({0}).build();
  const Placement again = placeInArena(graph, plan);
  EXPECT_EQ(again.live_bytes, plain.live_bytes);
  EXPECT_EQ(again.arena_bytes, plain.arena_bytes);
}

TEST(Placement, HoldsTheSimulatorsPeakAndNothingWithoutHoles) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(seed);
    DeviceProfile profile = smallProfile();
    profile.generator_state_bytes = 0;  // has no place
    SolveOptions options;
    options.ram_budget_bytes = 2 * simulatePlain(graph, profile).peak_bytes;
    options.method = "checkpoint_all";
    const Schedule plan = planWith(graph, profile, options);
    const Placement placement = placeInArena(graph, plan);
    EXPECT_EQ(placement.live_bytes, plan.peak_bytes);
    EXPECT_GE(placement.arena_bytes, placement.live_bytes);
    EXPECT_GE(placement.fragmentation(), 0);
  }
}

TEST(Placement, AnEmptyStepHasNone) {
  const Graph graph = GraphBuilder().build();
  EXPECT_EQ(placeInArena(graph, PlanBuilder(graph).build()).fragmentation(), 0);
}

TEST(Placement, AnotherStepsPlanIsRefused) {
  const Graph graph = uniformChain(3, 4, 0), other = uniformChain(4, 4, 0);
  EXPECT_THROW(placeInArena(graph, PlanBuilder(other).build()), ScheduleError);
}

}  // namespace
}  // namespace poet::testing
