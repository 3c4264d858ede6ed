// What programs leave out costs no plan anything.
#include "planner/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/recipes.h"
#include "planner/exact.h"
#include "planner/problem.h"
#include "planner/random_graph.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

DeviceProfile deviceWithStore(double bytes_per_second) {
  DeviceProfile device;
  device.name = "test";
  device.store_read_rate = bytes_per_second;
  device.store_write_rate = bytes_per_second;
  return device;
}

int64_t countDominated(const Problem& problem) {
  return std::count_if(problem.replays.begin(), problem.replays.end(),
                       [](const Replay& replay) { return replay.dominated; });
}

bool isDecided(const ExactPlan& plan) { return plan.proven || plan.infeasible; }

// Note [Dominated recomputes]
TEST(Candidates, NoPlanWithDominatedRecomputesIsCheaper) {
  int64_t dominated = 0;
  const DeviceProfile device = deviceWithStore(3);
  int decided = 0;
  int with_plan = 0;
  for (int i = 0; i < testing::propertyCases(40); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::randomGraph(97000 + static_cast<uint64_t>(i));
    const RecipeTable table(graph);
    const ProblemOptions options{
        .objective = Objective::kTime, .paging = true, .has_deadline = i % 2 == 0};
    const Problem problem(graph, table, device, options);
    if (countDominated(problem) == 0) continue;
    dominated += countDominated(problem);
    Problem every = problem;
    for (Replay& replay : every.replays) replay.dominated = false;
    EXPECT_GE(countCandidates(allCandidates(every, 1)), countCandidates(allCandidates(problem, 1)));
    const int64_t budget = problem.floor_bytes + 1;
    ExactOptions limits;
    limits.time_limit_seconds = 20;
    const ExactPlan with = leastCost(every, budget, limits);
    const ExactPlan without = leastCost(problem, budget, limits);
    // Where time ran out (under a sanitizer, say), a bound says nothing of the optimum.
    if (!isDecided(with) || !isDecided(without)) continue;
    ++decided;
    ASSERT_EQ(with.plan.has_value(), without.plan.has_value());
    EXPECT_NEAR(with.bound_cost, without.bound_cost, 1e-6);
    with_plan += with.plan.has_value();
  }
  RecordProperty("dominated", static_cast<int>(dominated));
  RecordProperty("decided", decided);
  EXPECT_GT(dominated, 0);
  EXPECT_GE(decided, 5);
  EXPECT_GT(with_plan, 0);
}

TEST(Candidates, RecomputesStayWhereTheStoreIsDearerOrTooSlowForADeadline) {
  const Graph graph = testing::randomGraph(97001);
  const RecipeTable table(graph);
  const ProblemOptions by_time{.objective = Objective::kTime, .paging = true};
  const DeviceProfile far = deviceWithStore(0.01);
  const DeviceProfile near = deviceWithStore(1000);
  EXPECT_EQ(countDominated(Problem(graph, table, far, by_time)), 0);
  const ProblemOptions unpaged{.objective = Objective::kTime};
  EXPECT_EQ(countDominated(Problem(graph, table, near, unpaged)), 0);
  EXPECT_GT(countDominated(Problem(graph, table, near, by_time)), 0);

  DeviceProfile waking = deviceWithStore(1000);
  waking.compute_watts = 1;
  waking.wake_joules = 1;
  const ProblemOptions by_energy{.paging = true};
  EXPECT_EQ(countDominated(Problem(graph, table, waking, by_energy)), 0);

  // A store that draws nothing, and is slow: its transfers cost less than they take.
  DeviceProfile slow = deviceWithStore(1);
  slow.compute_watts = 1000;
  const ProblemOptions timed{.paging = true, .has_deadline = true};
  const ProblemOptions untimed{.paging = true, .has_deadline = false};
  EXPECT_LT(countDominated(Problem(graph, table, slow, timed)),
            countDominated(Problem(graph, table, slow, untimed)));
}

}  // namespace
}  // namespace poet::planner
