// Liveness under changes against the timeline, which is written from scratch for each plan.
#include "planner/liveness.h"

#include <gtest/gtest.h>

#include <random>

#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

using poet::testing::smallRandomGraph;

DeviceProfile deviceWithStore(int64_t generator_bytes) {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.store_watts = 1;
  profile.generator_state_bytes = generator_bytes;
  profile.store_read_rate = 2;
  profile.store_write_rate = 1;
  return profile;
}

// Peak, cost and seconds, and what a budget below the peak is exceeded by, after each of many
// random changes, kept or undone.
TEST(Liveness, AgreesWithTheTimelineAfterEachChange) {
  int changes = 0, dropped = 0, undone = 0;
  for (int seed = 0; seed < poet::testing::propertyCases(150); ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(static_cast<uint64_t>(seed) + 70000);
    // Of generator states the timeline knows a moment more: they begin within a block.
    const int64_t generator_bytes = seed % 3 == 0 ? 7 : 0;
    const DeviceProfile profile = deviceWithStore(generator_bytes);
    const RecipeTable table(graph);
    const Problem problem(
        graph, table, profile,
        {.objective = Objective::kTime, .recompute = true, .paging = seed % 2 == 1});
    if (problem.replays.empty()) continue;
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto below = [&](size_t n) {
      return std::uniform_int_distribution<size_t>(0, n - 1)(random);
    };
    const int64_t budget = simulatePlain(graph, profile).peak_bytes / 2 + 1;
    Liveness state(problem, problem.leastPlan(), budget);
    for (int i = 0; i < 60; ++i) {
      const ReplayPlan before = state.plan();
      size_t asked = 0;
      for (size_t count = 1 + below(4); count > 0; --count) {
        const int r = static_cast<int>(below(problem.replays.size()));
        const int t = state.blockStage(static_cast<int>(below(problem.stages.size())));
        if (!problem.runnable(r, t)) continue;
        ++asked;
        if (below(3) == 0) {
          state.remove(t, r);
        } else {
          state.insert(t, r);
        }
      }
      state.settle();
      if (below(2) == 0) {
        state.undo();
        EXPECT_EQ(state.plan(), before);
        ++undone;
      } else {
        state.keep();
      }
      ReplayPlan useful = state.plan();
      dropUselessReplays(problem, useful);
      EXPECT_EQ(state.plan(), useful);
      const Timeline timeline = makeTimeline(problem, state.plan());
      if (generator_bytes == 0) {
        EXPECT_EQ(state.peakBytes(), timeline.peak_bytes);
      }
      EXPECT_NEAR(state.cost(), timeline.replay_cost, 1e-9);
      EXPECT_NEAR(state.seconds(), timeline.replay_seconds, 1e-9);
      const Liveness fresh(problem, state.plan(), budget);
      EXPECT_EQ(state.excessBytes(), fresh.excessBytes());
      EXPECT_EQ(state.peakBytes(), fresh.peakBytes());
      EXPECT_EQ(state.plan(), fresh.plan());
      changes += static_cast<int>(asked);
      dropped += state.plan() == before;
    }
  }
  std::printf("%d changes, %d moves undone, %d without effect\n", changes, undone, dropped);
  EXPECT_GT(changes, 1000);
}

}  // namespace
}  // namespace poet::planner
