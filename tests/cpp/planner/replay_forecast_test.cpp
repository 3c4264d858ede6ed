// What reversing a chain takes against the recursion, and greedy plans by forecast against others.
#include "planner/replay_forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/greedy.h"
#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

using planner::greedyPlan;
using planner::makeTimeline;
using planner::Problem;
using planner::reversalRuns;

// Where the first checkpoint goes, tried everywhere.
int64_t leastRuns(int links, int spare, std::map<std::pair<int, int>, int64_t>& known) {
  if (links <= 1) return 0;
  if (spare == 0) return int64_t{links} * (links - 1) / 2;
  const auto found = known.find({links, spare});
  if (found != known.end()) return found->second;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int m = 1; m < links; ++m)
    least =
        std::min(least, m + leastRuns(links - m, spare - 1, known) + leastRuns(m, spare, known));
  return known[{links, spare}] = least;
}

TEST(ReplayForecast, RunsOfAReversedChainAreTheRecursions) {
  std::map<std::pair<int, int>, int64_t> known;
  for (int links = 0; links <= 60; ++links) {
    for (int spare = 0; spare <= 8; ++spare) {
      EXPECT_NEAR(reversalRuns(links, spare), static_cast<double>(leastRuns(links, spare, known)),
                  1e-6)
          << links << " links, " << spare << " spare";
    }
  }
}

// Activations and gradients of 100 bytes, as in benchmarks/paper/chains.py.
Graph unitChain(int links) {
  GraphBuilder g;
  std::vector<ValueId> activations = {g.input(100)};
  for (int i = 0; i < links; ++i) {
    OpHandle op = g.op("aten::link").phase(Phase::kForward).reads({activations.back()}).seconds(1);
    activations.push_back(op.makes(100));
  }
  ValueId last = g.op("aten::loss").phase(Phase::kForward).reads({activations.back()}).makes(100);
  for (int i = links; i-- > 0;) {
    const ValueId read = activations[static_cast<size_t>(i)];
    OpHandle op =
        g.op("aten::link_backward").phase(Phase::kBackward).reads({last, read}).seconds(2);
    last = op.makes(100, ValueKind::kGradient);
  }
  return g.build();
}

struct ChainProblem {
  ChainProblem(int links, int units)
      : graph(unitChain(links)),
        table(graph),
        problem(graph, table, device, {}),
        budget(100 * (units + 1)) {}  // the input is there all the time

  const Graph graph;
  const RecipeTable table;
  const DeviceProfile device = smallProfile();
  const Problem problem;
  const int64_t budget;
};

TEST(ReplayForecast, FindsFewerReplaysOfLongChainsThanTheScore) {
  for (const auto& [links, units] : {std::pair(64, 4), {64, 12}, {128, 4}}) {
    SCOPED_TRACE(links);
    SCOPED_TRACE(units);
    const ChainProblem chain(links, units);
    const Problem& problem = chain.problem;
    const int64_t budget = chain.budget;
    double by_score = std::numeric_limits<double>::infinity();
    for (const double exponent : {1.0, 0.5, 0.2, 2.0}) {
      const auto plan =
          greedyPlan(problem, {.budget_bytes = budget, .distance_exponent = exponent});
      ASSERT_TRUE(plan);
      by_score = std::min(by_score, makeTimeline(problem, *plan).replay_cost);
    }
    const auto plan = greedyPlan(problem, {.budget_bytes = budget, .forecast = true});
    ASSERT_TRUE(plan);
    const planner::Timeline timeline = makeTimeline(problem, *plan);
    EXPECT_LE(timeline.peak_bytes, budget);
    EXPECT_LT(timeline.replay_cost, by_score);
  }
}

// Greedy alone, without a walk behind it.
TEST(ReplayForecast, PlacedPlansOfEqualLayersTakeNoMoreThanBinomialCheckpoints) {
  for (const int links : {8, 16, 32, 64, 128}) {
    for (const int units : {3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64}) {
      if (units > links) continue;
      SCOPED_TRACE(links);
      SCOPED_TRACE(units);
      const ChainProblem chain(links, units);
      const Problem& problem = chain.problem;
      const int64_t budget = chain.budget;
      const auto plan =
          greedyPlan(problem, {.budget_bytes = budget, .forecast = true, .placed = true});
      ASSERT_TRUE(plan);
      const planner::Timeline timeline = makeTimeline(problem, *plan);
      EXPECT_LE(timeline.peak_bytes, budget);
      SolveOptions options;
      options.ram_budget_bytes = budget;
      options.method = "revolve";
      const Schedule revolve = planWith(chain.graph, chain.device, options);
      ASSERT_TRUE(revolve.hasPlan());
      EXPECT_LE(problem.plain_seconds + timeline.replay_seconds,
                revolve.makespan_seconds * (1 + 1e-9));
    }
  }
}

TEST(ReplayForecast, GreedyPlansByItKeepTheBudget) {
  int plans = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(seed);
    DeviceProfile profile = smallProfile();
    profile.generator_state_bytes = 0;  // known too late: see mendGreedy
    const RecipeTable table(graph);
    const Problem problem(graph, table, profile, {});
    const int64_t plain = simulatePlain(graph, profile).peak_bytes;
    for (const int64_t budget : {plain, (plain + problem.floor_bytes) / 2, problem.floor_bytes}) {
      for (const bool placed : {false, true}) {
        const auto plan =
            greedyPlan(problem, {.budget_bytes = budget, .forecast = true, .placed = placed});
        if (!plan) continue;
        ++plans;
        EXPECT_LE(makeTimeline(problem, *plan).peak_bytes, budget);
      }
    }
  }
  EXPECT_GT(plans, 600);
}

}  // namespace
}  // namespace poet::testing
