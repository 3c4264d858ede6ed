#include "schedule/other_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/error.h"
#include "planner/planner.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

// x and then a, b, c of `bytes` each; a is touched again at the end.
Graph chain(int64_t bytes, double seconds = 1, const std::string& third = "c") {
  GraphBuilder g;
  const ValueId x = g.parameter(1);
  const ValueId a = g.op("a").reads({x}).seconds(seconds).makes(bytes);
  const ValueId b = g.op("b").reads({a}).seconds(seconds).workspace(bytes / 4).makes(bytes);
  const ValueId c = g.op(third).reads({b}).seconds(seconds).makes(bytes);
  const ValueId d = g.op("d").reads({c}).seconds(seconds).makes(1);
  g.outlives(g.op("e").reads({d, a}).seconds(seconds).makes(1));
  return g.build();
}

DeviceProfile wattAndLess() {
  DeviceProfile device;
  device.name = "one watt";
  device.compute_watts = 1;
  return device;
}

Schedule plannedFor(const Graph& graph, int64_t bytes) {
  SolveOptions options;
  options.ram_budget_bytes = bytes;
  return solve(graph, wattAndLess(), options);
}

TEST(OtherSizes, ThePlanHoldsWithTheSimulatorsFigures) {
  const Graph large = chain(80, 10), small = chain(8);
  const Schedule plan = plannedFor(large, 200);
  ASSERT_EQ(plan.status, Status::kOptimal);
  ASSERT_EQ(plan.countActions(ActionKind::kRecompute), 1);
  const auto other = withOtherSizes(plan, large, small, wattAndLess());
  ASSERT_TRUE(other);
  EXPECT_NO_THROW(other->checkAgainst(small));
  EXPECT_EQ(other->status, Status::kFeasible);
  EXPECT_EQ(other->before, plan.before);
  EXPECT_EQ(other->recipes, plan.recipes);
  EXPECT_EQ(other->peak_bytes, 1 + 8 + 8 + 2) << "op b, whose workspace counts";
  EXPECT_EQ(other->makespan_seconds, 6);
  EXPECT_EQ(other->energy_joules, 6);
  EXPECT_EQ(other->bound, 5) << "plain training";
  EXPECT_EQ(other->bound_scope, "all");
  EXPECT_DOUBLE_EQ(*other->gap, 1.0 / 6);
}

TEST(LeavingRoom, IsTheSamePlanOfAGreaterBudgetAndSaysNothingOfBetterOnes) {
  const Graph graph = chain(80, 10);
  const Schedule plan = plannedFor(graph, 200);
  ASSERT_EQ(plan.status, Status::kOptimal);
  const Schedule roomy = leavingRoom(plan, graph, wattAndLess(), 230);
  EXPECT_NO_THROW(roomy.checkAgainst(graph));
  EXPECT_EQ(roomy.ram_budget_bytes, 230);
  EXPECT_EQ(roomy.peak_bytes, plan.peak_bytes);
  EXPECT_EQ(roomy.before, plan.before);
  EXPECT_EQ(roomy.status, Status::kFeasible);
  EXPECT_EQ(roomy.bound, 50) << "plain training";
  EXPECT_EQ(roomy.bound_scope, "all");
  EXPECT_DOUBLE_EQ(*roomy.gap, 1.0 / 6);
  EXPECT_NE(roomy.message.find("200 bytes"), std::string::npos) << roomy.message;
}

TEST(LeavingRoom, WantsAPlanThatKeepsTheBudget) {
  const Graph graph = chain(80, 10);
  const Schedule plan = plannedFor(graph, 200);
  EXPECT_THROW(leavingRoom(plan, graph, wattAndLess(), plan.peak_bytes - 1), ArgumentError);
  EXPECT_THROW(leavingRoom(Schedule(), graph, wattAndLess(), 200), ArgumentError);
}

TEST(OtherSizes, ItMayNeedMoreThanTheBudgetItWasMadeFor) {
  const Graph large = chain(80), small = chain(8);
  const auto other = withOtherSizes(plannedFor(small, 20), small, large, wattAndLess());
  ASSERT_TRUE(other);
  EXPECT_EQ(other->peak_bytes, 1 + 80 + 80 + 20);
}

TEST(OtherSizes, OtherOpsOrNoPlanGiveNothing) {
  const Graph step = chain(80);
  const Schedule plan = plannedFor(step, 200);
  EXPECT_FALSE(withOtherSizes(plan, step, chain(8, 1, "another op"), wattAndLess()));
  EXPECT_FALSE(withOtherSizes(plan, chain(40), chain(8), wattAndLess()))
      << "a plan of another graph";
  EXPECT_FALSE(withOtherSizes(plannedFor(step, 90), step, chain(8), wattAndLess())) << "infeasible";
  GraphBuilder longer;
  longer.op("a").reads({longer.parameter(1)}).makes(8);
  EXPECT_FALSE(withOtherSizes(plan, step, longer.build(), wattAndLess()));
}

TEST(OtherSizes, WhatCannotLeaveThereGivesNothing) {
  GraphBuilder g;
  const ValueId x = g.parameter(1);
  const ValueId a = g.op("a").reads({x}).seconds(1).makes(80);
  const ValueId b = g.op("b").reads({a}).seconds(1).makes(80);
  const ValueId c = g.op("c").reads({b}).seconds(1).makes(80);
  g.outlives(g.op("e").reads({c, a}).seconds(1).makes(1));
  const Graph free = g.build();
  g.notEvictable(a);
  const Graph held = g.build();
  EXPECT_TRUE(differInSizesOnly(free, free));
  EXPECT_FALSE(differInSizesOnly(free, held));
  EXPECT_FALSE(withOtherSizes(plannedFor(free, 200), free, held, wattAndLess()));
}

}  // namespace
}  // namespace poet::testing
