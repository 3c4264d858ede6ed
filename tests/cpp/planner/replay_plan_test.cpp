// Plans of one problem as plans of another (planner/replay_plan.h).
#include "planner/replay_plan.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "graph/recipes.h"
#include "planner/annealing.h"
#include "planner/problem.h"
#include "planner/random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

DeviceProfile deviceWithStore() {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.store_watts = 1;
  profile.store_read_rate = profile.store_write_rate = 4;
  return profile;
}

TEST(Translated, PlansCostTheSameInAProblemWithFewerChoices) {
  int plans = 0, left_out = 0;
  for (int seed = 0; seed < poet::testing::propertyCases(200); ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = poet::testing::randomGraph(static_cast<uint64_t>(seed) + 400);
    const DeviceProfile profile = deviceWithStore();
    const RecipeTable table(graph);
    const Problem every(graph, table, profile, {.paging = true});
    const Problem larger(graph, table, profile, {.small_bytes = 2, .paging = true});
    const AnnealingResult walked =
        anneal(every, every.leastPlan(),
               {.budget_bytes =
                    std::max(every.floor_bytes, simulatePlain(graph, profile).peak_bytes * 3 / 4),
                .replay_seconds_limit = std::nullopt,
                .most_moves = 2000,
                .seed = 1});
    const ReplayPlan& plan = walked.best ? *walked.best : walked.closest;
    EXPECT_EQ(translated(plan, every, every), plan);
    const ReplayPlan other = translated(plan, every, larger);
    ASSERT_EQ(other.by_stage.size(), larger.stages.size());
    size_t replays = 0, kept = 0;
    double cost = 0;
    for (size_t t = 0; t < plan.by_stage.size(); ++t) {
      replays += plan.by_stage[t].size();
      kept += other.by_stage[t].size();
      for (const int r : other.by_stage[t]) {
        ASSERT_TRUE(larger.runnable(r, static_cast<int>(t)));
        cost += larger.replays[static_cast<size_t>(r)].cost;
      }
    }
    ASSERT_LE(kept, replays);
    plans += kept > 0 ? 1 : 0;
    left_out += kept < replays ? 1 : 0;
    if (kept < replays) continue;
    double expected = 0;
    for (const std::vector<int>& stage : plan.by_stage) {
      for (const int r : stage) expected += every.replays[static_cast<size_t>(r)].cost;
    }
    EXPECT_DOUBLE_EQ(cost, expected);
  }
  EXPECT_GT(plans, 20);
  EXPECT_GT(left_out, 0);
}

}  // namespace
}  // namespace poet::planner
