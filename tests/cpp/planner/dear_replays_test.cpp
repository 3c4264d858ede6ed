// Which replays of a plan to do without (planner/dear_replays.h), and walks that do.
#include "planner/dear_replays.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "graph/recipes.h"
#include "planner/annealing.h"
#include "planner/timeline.h"
#include "support/graph_builder.h"

namespace poet::planner {
namespace {

using poet::testing::GraphBuilder;
using ::testing::ElementsAre;

// Six values of ten bytes that something reads again at the end, dear ones first.
struct SixValues {
  SixValues() {
    GraphBuilder g;
    const ValueId input = g.input(1);
    std::vector<ValueId> values;
    for (const double seconds : {50.0, 40.0, 30.0, 20.0, 10.0, 1.0})
      values.push_back(g.op("a").reads({input}).seconds(seconds).makes(10));
    ValueId gradient = g.op("wide").seconds(1).workspace(40).makes(1);
    for (const ValueId value : values)
      gradient = g.op("b").reads({value, gradient}).seconds(1).makes(1);
    g.outlives(gradient);
    graph.emplace(g.build());
    profile.name = "test";
    profile.compute_watts = 2;
    table.emplace(*graph);
    problem.emplace(*graph, *table, profile, ProblemOptions{.objective = Objective::kTime});
    for (size_t r = 0; r < problem->replays.size(); ++r) replays.push_back(static_cast<int>(r));
    std::sort(replays.begin(), replays.end(), [&](int a, int b) { return cost(a) > cost(b); });
  }

  double cost(int r) const { return problem->replays[static_cast<size_t>(r)].cost; }

  ReplayPlan planOf(const std::vector<int>& some) const {
    ReplayPlan plan = problem->leastPlan();
    for (const int r : some) {
      const int stage = problem
                            ->values[static_cast<size_t>(
                                problem->replays[static_cast<size_t>(r)].outputs.front())]
                            .use_stages.back();
      plan.by_stage[static_cast<size_t>(stage)].push_back(r);
    }
    return plan;
  }

  std::optional<Graph> graph;
  DeviceProfile profile;
  std::optional<RecipeTable> table;
  std::optional<Problem> problem;
  std::vector<int> replays;  // the dearest first
};

TEST(DearestReplays, AreSinglesAndPairsTheDearestFirst) {
  const SixValues six;
  const std::vector<int>& r = six.replays;
  EXPECT_THAT(dearestReplays(*six.problem, six.planOf({r[2], r[0], r[1]})),
              ElementsAre(ElementsAre(r[0]), ElementsAre(r[1]), ElementsAre(r[0], r[1]),
                          ElementsAre(r[2]), ElementsAre(r[0], r[2]), ElementsAre(r[1], r[2])));
}

TEST(DearestReplays, LeaveOutWhatCostsNextToNothing) {
  const SixValues six;
  EXPECT_THAT(dearestReplays(*six.problem, six.planOf({six.replays[0], six.replays[5]})),
              ElementsAre(ElementsAre(six.replays[0])));
  EXPECT_TRUE(dearestReplays(*six.problem, six.problem->leastPlan()).empty());
}

// A value that starts in the store has to come back, whatever that costs.
TEST(DearestReplays, KeepWhatEveryPlanHas) {
  GraphBuilder g;
  const ValueId weight = g.parameter(100);
  const ValueId out = g.op("a").reads({weight}).seconds(1).makes(10);
  g.outlives(g.op("b").reads({out}).seconds(1).makes(1));
  const Graph graph = g.build();
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.store_read_rate = profile.store_write_rate = 1;
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile,
                        {.objective = Objective::kTime, .paging = true, .away = {weight}});
  EXPECT_FALSE(problem.leastPlan().empty());
  EXPECT_TRUE(dearestReplays(problem, problem.leastPlan()).empty());
}

TEST(Annealing, WalksWithoutWhatItMayNotReplay) {
  const SixValues six;
  const int64_t peak = makeTimeline(*six.problem, six.problem->leastPlan()).peak_bytes;
  const AnnealingOptions options = {.budget_bytes = peak - 10,
                                    .replay_seconds_limit = std::nullopt,
                                    .most_moves = 20000,
                                    .seed = 1};
  const AnnealingResult any = anneal(*six.problem, six.planOf({six.replays[1]}), options);
  ASSERT_TRUE(any.best);
  EXPECT_DOUBLE_EQ(any.cost, six.cost(six.replays[5]));  // the cheapest one does
  AnnealingOptions without = options;
  without.without = {six.replays[5], six.replays[4]};
  const AnnealingResult other = anneal(*six.problem, *any.best, without);
  ASSERT_TRUE(other.best);
  EXPECT_DOUBLE_EQ(other.cost, six.cost(six.replays[3]));
}

}  // namespace
}  // namespace poet::planner
