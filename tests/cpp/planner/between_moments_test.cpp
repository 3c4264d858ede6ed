// What lies between the moments of a point (planner/between_moments.h).
#include "planner/between_moments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "planner/lp_loop.h"
#include "planner/moments.h"
#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

using poet::testing::GraphBuilder;

DeviceProfile device() {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  return profile;
}

Program programAt(const Problem& coarse, int64_t budget) {
  return Program(coarse, momentCandidates(coarse),
                 {.budget_bytes = budget,
                  .replay_seconds_limit = std::nullopt,
                  .relaxed = true,
                  .rows_at_replays = false});
}

// a1 <- a2 <- a3 <- a4, ten bytes each, then "wide", then what reads a4, a3, a2, a1 in turn.
struct Chain {
  Chain() {
    GraphBuilder g;
    ValueId last = g.input(1);
    std::vector<ValueId> values;
    for (int i = 0; i < 4; ++i) {
      last = g.op("a").reads({last}).seconds(1).makes(10);
      values.push_back(last);
    }
    auto wide_op = g.op("wide").seconds(1).workspace(30);
    wide = static_cast<int>(wide_op.id().index);
    ValueId gradient = wide_op.makes(1);
    reads_a4 = wide + 1;
    for (auto value = values.rbegin(); value != values.rend(); ++value)
      gradient = g.op("b").reads({*value, gradient}).seconds(1).makes(1);
    g.outlives(gradient);
    graph.emplace(g.build());
  }

  std::optional<Graph> graph;
  int wide = 0, reads_a4 = 0;
};

// During "wide" there is room for its 30 bytes, its result and the input: 32. So all four values
// are made again after it, and since a4 is asked for first and needs all others, they lie in memory
// together then: 40, the input, and the two gradients. That is 43 bytes, 11 above the budget.
TEST(BetweenMoments, AChainThatIsReplayedWholeLiesInMemoryWhole) {
  const Chain step;
  const RecipeTable table(*step.graph);
  const DeviceProfile profile = device();
  const Problem fine(*step.graph, table, profile, {});
  const std::vector<int> moments = {step.wide};
  const Problem coarse = atMoments(fine, moments);
  const Program program = programAt(coarse, 32);
  const Relaxation found = relax(program, {.time_limit_seconds = 10});
  ASSERT_FALSE(found.x.empty());

  const std::vector<Excess> worst = excessBetween(fine, moments, 0, program, found.x);
  ASSERT_EQ(worst.size(), 2u);  // a block before the moment and one after it
  EXPECT_EQ(worst.front().stage, step.reads_a4);
  EXPECT_NEAR(worst.front().bytes, 11, 1e-6);

  const ReplayPlan plan = planBetween(fine, moments, program, found.x);
  EXPECT_EQ(plan.by_stage[static_cast<size_t>(step.reads_a4)], (std::vector<int>{0, 1, 2, 3}));
  const Timeline timeline = makeTimeline(fine, plan);
  EXPECT_EQ(timeline.peak_bytes, 43);
  EXPECT_DOUBLE_EQ(timeline.replay_seconds, 4);
}

// A second moment at the place of that excess: a4 and what it is made from no longer lie there
// together, and some of the chain is replayed twice.
TEST(BetweenMoments, TheNextMomentStandsWhereThePlanOfTheLastHasTheMost) {
  const Chain step;
  const RecipeTable table(*step.graph);
  const DeviceProfile profile = device();
  const Problem fine(*step.graph, table, profile, {});
  const std::vector<ReplayPlan> plans = plansAtMoments(
      fine, {.budget_bytes = 32, .replay_seconds_limit = std::nullopt, .time_limit_seconds = 10});
  ASSERT_GE(plans.size(), 2u);
  EXPECT_EQ(makeTimeline(fine, plans[0]).peak_bytes, 43);
  EXPECT_LT(makeTimeline(fine, plans[1]).peak_bytes, 43);
  EXPECT_GT(makeTimeline(fine, plans[1]).replay_seconds, 4);
}

// Of random graphs and moments: every replay stands where it may run, and before what reads it.
TEST(BetweenMoments, PlansRunWhereTheyMay) {
  int replays = 0, chains = 0;
  const int cases = poet::testing::propertyCases(100);
  for (int seed = 0; seed < cases; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = poet::testing::smallRandomGraph(static_cast<uint64_t>(seed) + 90000);
    DeviceProfile profile = device();
    const bool paging = seed % 2 == 1;
    if (paging) profile.store_read_rate = profile.store_write_rate = 4;
    const RecipeTable table(graph);
    const Problem fine(graph, table, profile, {.paging = paging});
    const int64_t peak = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = std::max(fine.floor_bytes, peak * 7 / 10);
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    std::vector<int> moments;
    for (int t = 0; t < fine.numStages(); ++t) {
      if (std::uniform_real_distribution<double>(0, 1)(random) < 0.3) moments.push_back(t);
    }
    const Problem coarse = atMoments(fine, moments);
    const Program program = programAt(coarse, budget);
    const Relaxation found = relax(program, {.time_limit_seconds = 10});
    if (found.x.empty()) continue;
    const ReplayPlan plan = planBetween(fine, moments, program, found.x);
    ASSERT_EQ(plan.by_stage.size(), fine.stages.size());
    for (int t = 0; t < fine.numStages(); ++t) {
      const auto& stage = plan.by_stage[static_cast<size_t>(t)];
      EXPECT_TRUE(std::is_sorted(stage.begin(), stage.end()));
      for (const int replay : stage) EXPECT_TRUE(fine.runnable(replay, t));
      replays += static_cast<int>(stage.size());
      chains += stage.size() > 1;
    }
    EXPECT_GE(makeTimeline(fine, plan).peak_bytes, fine.floor_bytes);
  }
  EXPECT_GT(replays, cases / 4);
  EXPECT_GT(chains, 0);
}

}  // namespace
}  // namespace poet::planner
