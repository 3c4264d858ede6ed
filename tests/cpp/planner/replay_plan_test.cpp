// Plans of one problem as plans of another (planner/replay_plan.h).
#include "planner/replay_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "graph/recipes.h"
#include "planner/annealing.h"
#include "planner/problem.h"
#include "planner/small_random_graph.h"
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

// (paged in or not, value) of all that some replays make, sorted.
std::vector<std::pair<bool, ValueId>> made(const Problem& problem,
                                           const std::vector<int>& replays) {
  std::vector<std::pair<bool, ValueId>> values;
  for (const int r : replays) {
    const Replay& replay = problem.replays[static_cast<size_t>(r)];
    for (const int v : replay.outputs)
      values.emplace_back(replay.is_page, problem.values[static_cast<size_t>(v)].id);
  }
  std::sort(values.begin(), values.end());
  return values;
}

TEST(Translated, PlansMakeTheSameInAProblemWithFewerChoices) {
  int plans = 0, left_out = 0;
  for (int seed = 0; seed < poet::testing::propertyCases(200); ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = poet::testing::smallRandomGraph(static_cast<uint64_t>(seed) + 400);
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
    for (size_t t = 0; t < plan.by_stage.size(); ++t) {
      replays += plan.by_stage[t].size();
      kept += other.by_stage[t].size();
      for (const int r : other.by_stage[t]) ASSERT_TRUE(larger.runnable(r, static_cast<int>(t)));
      const auto before = made(every, plan.by_stage[t]);
      const auto after = made(larger, other.by_stage[t]);
      EXPECT_TRUE(std::includes(before.begin(), before.end(), after.begin(), after.end()));
    }
    ASSERT_LE(kept, replays);
    plans += kept > 0 ? 1 : 0;
    left_out += kept < replays ? 1 : 0;
  }
  EXPECT_GT(plans, 20);
  EXPECT_GT(left_out, 0);
}

}  // namespace
}  // namespace poet::planner
