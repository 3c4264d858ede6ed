// Steps to a proof (planner/program_search.h) against the optimum that one search finds.
#include "planner/program_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <random>

#include "planner/small_random_graph.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

using poet::testing::smallRandomGraph;

constexpr double kTolerance = 1e-4;  // of costs in percent of the plain step
constexpr double kSeconds = 20;

int numSearched() { return poet::testing::propertyCases(60); }

struct Steps {
  double bound = 0;
  double best = 0;  // the cutoff, or less where a step found a plan
  int count = 0;
};

// Until nothing lies between bound and best plan.
Steps takeSteps(const Program& program, Relaxation& root, double cutoff) {
  Steps steps{.bound = root.objective, .best = cutoff};
  while (steps.bound < steps.best - kTolerance && steps.count < 20) {
    const SearchResult found = searchStep(program, root, steps.bound,
                                          {.time_limit_seconds = kSeconds, .cutoff = steps.best});
    ++steps.count;
    EXPECT_NE(found.status, SolverStatus::kStopped);
    EXPECT_GE(found.bound, steps.bound);
    steps.bound = found.bound;
    if (!found.plan) continue;
    const double cost =
        costPerSecond(program.problem()) * makeTimeline(program.problem(), *found.plan).replay_cost;
    EXPECT_LE(cost, steps.best + kTolerance);
    steps.best = std::min(steps.best, cost);
  }
  return steps;
}

// Seconds of these graphs are whole numbers: CBC might take a cutoff for a cost that a point has,
// and leave out all that is less than the next lower cost.
TEST(StepsToAProof, EndAtTheOptimumWhateverTheCutoffIs) {
  int compared = 0, replaying = 0, several = 0;
  for (int seed = 0; seed < numSearched(); ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(static_cast<uint64_t>(seed) + 70000);
    const DeviceProfile profile = hostProfile();
    const RecipeTable table(graph);
    const Problem problem(graph, table, profile, {});
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const int64_t peak = simulatePlain(graph, profile).peak_bytes;
    const int64_t budget = std::max<int64_t>(
        1,
        std::uniform_int_distribution<int64_t>(std::min(problem.floor_bytes, peak), peak)(random));
    const Program program(problem, allCandidates(problem),
                          {.budget_bytes = budget, .replay_seconds_limit = std::nullopt});
    Relaxation root = relax(program, {.time_limit_seconds = kSeconds});
    if (root.status != SolverStatus::kOptimal) continue;
    Relaxation whole_root = root;
    const SearchResult whole = searchProgram(program, whole_root, {.time_limit_seconds = kSeconds});
    if (whole.status != SolverStatus::kOptimal) continue;
    const double optimum = whole.bound;
    for (const double above : {0.0, 0.3, 7.0, 60.0}) {
      const Steps steps = takeSteps(program, root, optimum + above);
      EXPECT_LE(steps.bound, optimum + kTolerance);
      EXPECT_GE(steps.bound, std::min(optimum, steps.best) - kTolerance);
      EXPECT_NEAR(steps.best, optimum, kTolerance);
      several += steps.count > 1;
    }
    EXPECT_EQ(root.model.lower, program.model().lower);  // what the steps fixed is free again
    EXPECT_EQ(root.model.upper, program.model().upper);
    ++compared;
    replaying += optimum > kTolerance;
  }
  std::printf("%d programs, %d with replays; %d proofs of several steps\n", compared, replaying,
              several);
  EXPECT_GT(compared, numSearched() / 2);
  EXPECT_GT(replaying, numSearched() / 10);
  EXPECT_GT(several, 0);
}

// CBC without preprocessing cut off the cheapest plan of this program, which fills the budget to
// the byte, and with a cutoff it said that there was none.
TEST(SearchProgram, FindsThePlanThatFillsTheBudget) {
  const Graph graph = smallRandomGraph(98264, 4);
  DeviceProfile device;
  device.name = "test";
  device.store_read_rate = device.store_write_rate = 6;
  const RecipeTable table(graph);
  const Problem problem(graph, table, device, {.objective = Objective::kTime, .paging = true});
  constexpr int64_t kBudget = 47;
  const Program program(problem, allCandidates(problem),
                        {.budget_bytes = kBudget,
                         .replay_seconds_limit = 0.3 * problem.plain_seconds,
                         .relaxed = true,
                         .rows_at_replays = false});
  const double cost = 5.0 / 3;
  for (const double cutoff : {kInfinity, 1.8, 1.7}) {
    Relaxation root = relax(program, {.time_limit_seconds = kSeconds});
    const SearchResult found = searchProgram(
        program, root, {.time_limit_seconds = kSeconds, .cutoff = cutoff * costPerSecond(problem)});
    ASSERT_EQ(found.status, SolverStatus::kOptimal);
    EXPECT_NEAR(found.bound, cost * costPerSecond(problem), kTolerance);
    const Timeline timeline = makeTimeline(problem, *found.plan);
    EXPECT_NEAR(timeline.replay_cost, cost, kTolerance);
    EXPECT_EQ(timeline.peak_bytes, kBudget);
  }
}

}  // namespace
}  // namespace poet::planner
