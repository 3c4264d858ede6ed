// Plans for devices whose transfers run beside computation.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>

#include "planner/event_list.h"
#include "planner/exhaustive.h"
#include "planner/planner.h"
#include "planner/random_graph.h"
#include "planner/transfer_timing.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/page_everything.h"
#include "support/paging_plan.h"
#include "support/plan_builder.h"
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

}  // namespace
}  // namespace poet
