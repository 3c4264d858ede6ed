// What programs leave out costs no plan anything.
#include "planner/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

#include "graph/recipes.h"
#include "planner/exact.h"
#include "planner/lp_loop.h"
#include "planner/problem.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

DeviceProfile storeOfRate(double bytes_per_second) {
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
  const DeviceProfile device = storeOfRate(3);
  int decided = 0;
  int with_plan = 0;
  for (int i = 0; i < testing::propertyCases(40); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(97000 + static_cast<uint64_t>(i));
    const RecipeTable table(graph);
    const ProblemOptions options{
        .objective = Objective::kTime, .paging = true, .has_deadline = i % 2 == 0};
    const Problem problem(graph, table, device, options);
    if (countDominated(problem) == 0) continue;
    dominated += countDominated(problem);
    Problem every = problem;
    for (Replay& replay : every.replays) replay.dominated = false;
    EXPECT_GE(countCandidates(allCandidates(every)), countCandidates(allCandidates(problem)));
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
  const Graph graph = testing::smallRandomGraph(97001);
  const RecipeTable table(graph);
  const ProblemOptions by_time{.objective = Objective::kTime, .paging = true};
  const DeviceProfile far = storeOfRate(0.01);
  const DeviceProfile near = storeOfRate(1000);
  EXPECT_EQ(countDominated(Problem(graph, table, far, by_time)), 0);
  const ProblemOptions unpaged{.objective = Objective::kTime};
  EXPECT_EQ(countDominated(Problem(graph, table, near, unpaged)), 0);
  EXPECT_GT(countDominated(Problem(graph, table, near, by_time)), 0);

  DeviceProfile waking = storeOfRate(1000);
  waking.compute_watts = 1;
  waking.wake_joules = 1;
  const ProblemOptions by_energy{.paging = true};
  EXPECT_EQ(countDominated(Problem(graph, table, waking, by_energy)), 0);

  // A store that draws nothing, and is slow: its transfers cost less than they take.
  DeviceProfile slow = storeOfRate(1);
  slow.compute_watts = 1000;
  const ProblemOptions timed{.paging = true, .has_deadline = true};
  const ProblemOptions untimed{.paging = true, .has_deadline = false};
  EXPECT_LT(countDominated(Problem(graph, table, slow, timed)),
            countDominated(Problem(graph, table, slow, untimed)));
}

// The optimum of the relaxed program that looks at memory during first executions alone.
SearchResult optimumOver(const Problem& problem, const Candidates& candidates, int64_t budget,
                         const std::optional<double>& seconds) {
  const Program program(problem, candidates,
                        {.budget_bytes = budget,
                         .replay_seconds_limit = seconds,
                         .relaxed = true,
                         .rows_at_replays = false});
  Relaxation root = relax(program, {.time_limit_seconds = 20});
  if (root.status == SolverStatus::kInfeasible)
    return {.status = SolverStatus::kInfeasible, .plan = {}, .bound = kInfinity};
  return searchProgram(program, root, {.time_limit_seconds = 20});
}

// Notes [Anchored replays] and [Replays that cost too much]
TEST(Candidates, AnchoredReplaysAttainTheOptimumOfAll) {
  size_t all = 0, anchored = 0, cheap = 0;
  int decided = 0, with_cost = 0, infeasible = 0;
  for (int i = 0; i < testing::propertyCases(60); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(98000 + static_cast<uint64_t>(i), i % 5);
    const RecipeTable table(graph);
    const DeviceProfile device = storeOfRate(1 + i % 7);
    const ProblemOptions options{.objective = Objective::kTime, .paging = i % 3 == 0};
    const Problem problem(graph, table, device, options);
    std::mt19937_64 random(static_cast<uint64_t>(i));
    const int64_t peak = std::max(problem.floor_bytes, simulatePlain(graph, device).peak_bytes);
    const int64_t budget =
        std::uniform_int_distribution<int64_t>(problem.floor_bytes, peak)(random);
    std::optional<double> seconds;
    if (i % 4 == 0) seconds = 0.3 * problem.plain_seconds;
    const Candidates every = allCandidates(problem);
    const Candidates some = allCandidates(problem, {.rows_at_replays = false});
    all += countCandidates(every);
    anchored += countCandidates(some);
    const SearchResult truth = optimumOver(problem, every, budget, seconds);
    if (truth.status == SolverStatus::kStopped) continue;
    ++decided;
    const SearchResult found = optimumOver(problem, some, budget, seconds);
    ASSERT_EQ(found.status, truth.status);
    if (truth.status == SolverStatus::kInfeasible) {
      ++infeasible;
      continue;
    }
    EXPECT_NEAR(found.bound, truth.bound, 1e-5);
    // Of what costs no more than the optimum something attains it.
    const double cost = problem.constant_cost + truth.bound / costPerSecond(problem);
    with_cost += truth.bound > 1e-6;
    const Candidates few = allCandidates(
        problem, {.most_cost = mostCostBelow(problem, cost + 1e-6), .rows_at_replays = false});
    cheap += countCandidates(few);
    const SearchResult again = optimumOver(problem, few, budget, seconds);
    ASSERT_EQ(again.status, truth.status);
    EXPECT_NEAR(again.bound, truth.bound, 1e-5);
  }
  std::printf("%zu replays, %zu anchored, %zu of them cheap; %d optima, %d of some cost, %d none\n",
              all, anchored, cheap, decided, with_cost, infeasible);
  EXPECT_LT(anchored, all);
  EXPECT_LT(cheap, anchored);
  EXPECT_GT(decided, testing::propertyCases(60) / 2);
  EXPECT_GT(with_cost, decided / 4);
}

// Where a wake-up costs something an early page-in may save one: nothing is left out.
TEST(Candidates, WakeUpsKeepReplaysWhereTheyAre) {
  const Graph graph = testing::smallRandomGraph(98001, 3);
  const RecipeTable table(graph);
  DeviceProfile waking = storeOfRate(2);
  waking.compute_watts = 1;
  waking.wake_joules = 1;
  const Problem problem(graph, table, waking, {.paging = true});
  const size_t every = countCandidates(allCandidates(problem));
  EXPECT_EQ(countCandidates(allCandidates(problem, {.rows_at_replays = false})), every);
  const DeviceProfile asleep = storeOfRate(2);
  const Problem without(graph, table, asleep, {.paging = true});
  EXPECT_LT(countCandidates(allCandidates(without, {.rows_at_replays = false})), every);
}

TEST(Candidates, CountingEndsOnceThereAreEnough) {
  const Graph graph = testing::smallRandomGraph(98002, 4);
  const RecipeTable table(graph);
  const DeviceProfile device = storeOfRate(1);
  const Problem problem(graph, table, device, {});
  const size_t every = countCandidates(allCandidates(problem));
  const size_t enough = every / 2;
  const size_t counted = countCandidates(allCandidates(problem, {.enough = enough}));
  EXPECT_GT(counted, enough);
  EXPECT_LT(counted, every);
}

}  // namespace
}  // namespace poet::planner
