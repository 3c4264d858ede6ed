// Plans for the tightest budgets (planner/depth_first.h): what the greedy cannot do, and against
// exhaustive search.
#include "planner/depth_first.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "graph/recipes.h"
#include "planner/exhaustive.h"
#include "planner/extract.h"
#include "planner/greedy.h"
#include "planner/options.h"
#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"

namespace poet::planner {
namespace {

using poet::testing::exhaustivePeak;
using poet::testing::GraphBuilder;
using poet::testing::SmallRandomGraph;
using ::testing::ElementsAre;

struct Question {
  explicit Question(Graph asked, bool paging = false)
      : graph(std::move(asked)),
        table(graph),
        problem(graph, table, device, {.objective = Objective::kTime, .paging = paging}) {}

  static DeviceProfile makeDevice() {
    DeviceProfile device;
    device.name = "test";
    device.compute_watts = 2;
    device.store_write_rate = device.store_read_rate = 1;
    return device;
  }

  int recipeOf(ValueId id) const {
    for (const Evictable& value : problem.values) {
      if (value.id == id) return value.recipe;
    }
    return -1;
  }

  Graph graph;
  DeviceProfile device = makeDevice();
  RecipeTable table;
  Problem problem;
};

// use reads x and y, and x comes back through p, for which there is no room beside y.
TEST(DepthFirst, WhatTheStageReadsMayLeaveForWhatComesBackBeforeIt) {
  GraphBuilder g;
  const ValueId in = g.input(1);
  const ValueId y = g.op("y").reads({in}).seconds(1).makes(10);
  const ValueId p = g.op("p").reads({in}).seconds(1).makes(10);
  const ValueId x = g.op("x").reads({p}).seconds(1).makes(1);
  const ValueId m = g.op("wide").reads({y}).workspace(2).seconds(1).makes(1);
  g.outlives(g.op("use").reads({x, y, m}).seconds(1).makes(1));
  const Question question(g.build());
  constexpr int64_t kBudget = 14;
  EXPECT_FALSE(greedyPlan(question.problem, {.budget_bytes = kBudget}));
  EXPECT_FALSE(depthFirstPlan(question.problem, {.budget_bytes = kBudget}));
  const auto plan =
      depthFirstPlan(question.problem, {.budget_bytes = kBudget, .locks_first = false});
  ASSERT_TRUE(plan);
  EXPECT_EQ(makeTimeline(question.problem, *plan).peak_bytes, kBudget);
  EXPECT_THAT(plan->by_stage[4],
              ElementsAre(question.recipeOf(p), question.recipeOf(x), question.recipeOf(y)));
  EXPECT_EQ(anyDepthFirstPlan(question.problem, kBudget, 10), plan);
  EXPECT_EQ(exhaustivePeak(question.graph, question.device, std::nullopt), kBudget);
  EXPECT_EQ(leastDepthFirstPlan(question.problem, 1, 100, 10), plan);
}

// x changes when r and s are there, so r cannot come back any more. Plain training is done with r
// then; for s to come back r has to stay.
TEST(DepthFirst, WhatCannotComeBackStaysForWhatIsMadeOfIt) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId r = g.op("r").reads({x}).seconds(1).makes(1);
  const ValueId s = g.op("s").reads({r}).seconds(1).makes(10);
  g.op("write").writes({x}).seconds(1);
  const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
  g.outlives(g.op("use").reads({s, m}).seconds(1).makes(1));
  const Question question(g.build());
  constexpr int64_t kBudget = 13;
  EXPECT_FALSE(greedyPlan(question.problem, {.budget_bytes = kBudget}));
  const auto plan = depthFirstPlan(question.problem, {.budget_bytes = kBudget});
  ASSERT_TRUE(plan);
  EXPECT_EQ(makeTimeline(question.problem, *plan).peak_bytes, kBudget);
  EXPECT_THAT(plan->by_stage[4], ElementsAre(question.recipeOf(s)));
}

// Of a plan within the budget, by the planner's arithmetic and the simulator's.
int64_t peakOf(const Question& question, const ReplayPlan& plan, int64_t budget) {
  const int64_t bytes = makeTimeline(question.problem, plan).peak_bytes;
  EXPECT_LE(bytes, budget);
  Schedule schedule = emptySchedule(question.graph, {});
  writeActions(question.problem, plan, schedule);
  EXPECT_EQ(simulate(question.graph, schedule, question.device).peak_bytes, bytes);
  return bytes;
}

TEST(DepthFirst, KeepsItsBudgetAndIsNeverBelowTheLeastPeak) {
  int plans = 0, least = 0, graphs = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Question question(SmallRandomGraph(seed).make());
    const auto peak = exhaustivePeak(question.graph, question.device, std::nullopt);
    ASSERT_TRUE(peak);
    const int64_t plain = simulatePlain(question.graph, question.device).peak_bytes;
    if (*peak == plain) continue;
    ++graphs;
    for (int64_t budget = *peak - 1; budget < plain; ++budget) {
      const auto plan = anyDepthFirstPlan(question.problem, budget, 10);
      if (!plan) continue;
      ++plans;
      EXPECT_GE(peakOf(question, *plan, budget), *peak) << "seed " << seed;
    }
    const auto best = leastDepthFirstPlan(question.problem, *peak, plain, 10);
    if (best && makeTimeline(question.problem, *best).peak_bytes == *peak) ++least;
  }
  EXPECT_GT(graphs, 100);
  EXPECT_GT(plans, 500);
  EXPECT_GT(least, graphs / 2);
}

TEST(DepthFirst, PagesWhereThatCostsLess) {
  int paged = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    const Question question(SmallRandomGraph(seed, 2).make(), /*paging=*/true);
    const int64_t plain = simulatePlain(question.graph, question.device).peak_bytes;
    const auto plan = leastDepthFirstPlan(question.problem, 1, plain, 10);
    if (!plan) continue;
    peakOf(question, *plan, plain - 1);
    if (!makeTimeline(question.problem, *plan).paged_out.empty()) ++paged;
  }
  EXPECT_GT(paged, 50);
}

// Each link waits for the one before it: deeper than a thread of small stack could recurse.
TEST(DepthFirst, BringsBackLongChains) {
  constexpr int kLinks = 8'000;
  GraphBuilder g;
  ValueId last = g.input(1);
  for (int i = 0; i < kLinks; ++i) last = g.op("link").reads({last}).seconds(1).makes(1);
  const ValueId wide = g.op("wide").workspace(3).seconds(1).makes(1);
  g.outlives(g.op("use").reads({last, wide}).seconds(1).makes(1));
  const Question question(g.build());
  const auto plan = depthFirstPlan(question.problem, {.budget_bytes = 5});
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->by_stage[kLinks + 1].size(), static_cast<size_t>(kLinks));
}

TEST(DepthFirst, EndsInTime) {
  const Question question(SmallRandomGraph(1, 10).make());
  EXPECT_FALSE(
      depthFirstPlan(question.problem, {.budget_bytes = 1 << 20, .time_limit_seconds = 0}));
  EXPECT_TRUE(depthFirstPlan(question.problem, {.budget_bytes = 1 << 20}));
}

}  // namespace
}  // namespace poet::planner
