// Plans of a coarse graph on the graph that it was made of.
#include "planner/refinement.h"

#include <gtest/gtest.h>

#include <optional>

#include "planner/extract.h"
#include "planner/greedy.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"
#include "support/random_graph.h"

namespace poet::planner {
namespace {

DeviceProfile device() {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.replay_factor = 1.5;
  profile.replay_fixed_seconds = 0.25;
  profile.store_read_rate = 100;
  profile.store_write_rate = 50;
  profile.generator_state_bytes = 3;
  return profile;
}

// The same peak and cost by the planner's arithmetic on either graph, and by the simulator's.
TEST(Refinement, APlanNeedsTheSameOnBothGraphs) {
  int plans = 0, replays = 0;
  for (int seed = 0; seed < poet::testing::propertyCases(300); ++seed) {
    SCOPED_TRACE(seed);
    poet::testing::RandomGraphOptions random;
    random.forward_ops = 4 + seed % 12;
    random.view = random.in_place = 0.3;
    const Graph graph = poet::testing::randomGraph(static_cast<uint64_t>(seed) + 9000, random);
    const DeviceProfile profile = device();
    const RecipeTable fine_table(graph);
    const Coarsening coarsening(graph, fine_table);
    const RecipeTable table(coarsening.graph());
    const ProblemOptions options{
        .objective = Objective::kTime, .paging = seed % 2 == 1, .coarsening = &coarsening};
    const Problem problem(coarsening.graph(), table, profile, options);
    const Refinement refinement(problem, coarsening, fine_table, options);
    const int64_t peak = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = problem.floor_bytes + (peak - problem.floor_bytes) * (seed % 5) / 5;
    const std::optional<ReplayPlan> plan = greedyPlan(problem, {.budget_bytes = budget});
    if (!plan) continue;
    const ReplayPlan fine = refinement.refined(*plan);
    const Timeline here = makeTimeline(problem, *plan);
    const Timeline there = makeTimeline(refinement.fine(), fine);
    EXPECT_EQ(here.peak_bytes, there.peak_bytes);
    EXPECT_NEAR(here.replay_cost, there.replay_cost, 1e-9);
    EXPECT_EQ(refinement.coarsened(fine), plan);
    Schedule schedule;
    schedule.graph_signature = graph.signature();
    schedule.num_ops = graph.numOps();
    schedule.status = Status::kFeasible;
    writeActions(refinement.fine(), fine, schedule);
    const SimulationResult result = simulate(graph, schedule, profile);
    EXPECT_EQ(result.peak_bytes, there.peak_bytes);
    EXPECT_NEAR(result.makespan_seconds, graph.plainSeconds() + there.replay_seconds, 1e-9);
    ++plans;
    replays += static_cast<int>(here.steps.size()) - problem.numStages();
  }
  EXPECT_GT(plans, 50);
  EXPECT_GT(replays, 50);
}

}  // namespace
}  // namespace poet::planner
