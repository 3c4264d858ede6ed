// The dense program against the exhaustive search where its schedules are all that matter, and
// against the planner where they are fewer.
#include "methods/poet_paper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "graph/error.h"
#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kPaperCases = 40;

SolveOptions between(int64_t least, int64_t most, uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);
  SolveOptions options;
  options.ram_budget_bytes = std::uniform_int_distribution<int64_t>(least, most)(random);
  options.time_limit_seconds = 20;
  return options;
}

void checkPlan(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
               const Schedule& schedule) {
  ASSERT_TRUE(schedule.hasPlan()) << schedule.message;
  EXPECT_EQ(schedule.method, "poet_paper");
  const SimulationResult simulated = simulate(graph, schedule, profile);
  EXPECT_EQ(schedule.peak_bytes, simulated.peak_bytes);
  EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
  EXPECT_LE(*schedule.bound, schedule.objectiveValue());
}

TEST(PoetPaper, FindsTheOptimumOfChainsWithRecompute) {
  for (uint64_t seed = 0; seed < kPaperCases; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed, 4);
    const DeviceProfile profile = smallProfile();
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const SolveOptions options = between(least, plain.peak_bytes, seed);
    const Schedule schedule = solvePoetPaper(graph, profile, options);
    checkPlan(graph, profile, options, schedule);
    const double truth = exhaustiveReplaySeconds(graph, profile, options.ram_budget_bytes).value();
    EXPECT_NEAR(schedule.makespan_seconds - plain.makespan_seconds, truth, 1e-4);
    EXPECT_LT(*schedule.gap, 1e-5);
  }
}

TEST(PoetPaper, FindsTheOptimumOfChainsWithRecomputeAndPaging) {
  for (uint64_t seed = 0; seed < kPaperCases; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = trainingChain(seed + 1000, 3);
    const DeviceProfile profile = smallProfileWithStore(seed);
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    const SolveOptions options = between(least, plain.peak_bytes, seed);
    const Schedule schedule = solvePoetPaper(graph, profile, options);
    checkPlan(graph, profile, options, schedule);
    const Allowed both{.recompute = true, .paging = true, .joules = true};
    const double truth = exhaustiveExtra(graph, profile, options.ram_budget_bytes, both).value();
    EXPECT_NEAR(schedule.energy_joules - plain.energy_joules, truth, 1e-3);
  }
}

// A solver that cannot start says so, and CBC goes on: so it was asked.
TEST(PoetPaper, ItsProgramGoesToTheSolverThatWasAskedFor) {
  const Graph graph = trainingChain(3, 4);
  const DeviceProfile profile = smallProfileWithStore(3);
  const int64_t plain = simulatePlain(graph, profile).peak_bytes;
  for (const char* name : {"poet_paper", "checkmate", "poet_remat_only", "poet_page_only"}) {
    SCOPED_TRACE(name);
    SolveOptions options;
    options.ram_budget_bytes = plain;
    options.time_limit_seconds = 20;
    options.method = name;
    options.solver.kind = SolverKind::kGurobi;
    options.solver.gurobi_command = {"false"};
    const Schedule schedule = planWith(graph, profile, options);
    EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
    EXPECT_FALSE(options.solver.trouble->texts().empty());
    options.solver.gurobi_command.clear();
    EXPECT_THAT([&] { planWith(graph, profile, options); },
                ThrowsMessage<ArgumentError>(HasSubstr("gurobi")));
  }
}

// 300 links make a program of about 700,000 columns.
TEST(PoetPaper, EndsInTimeWhereItsProgramIsNotBuiltInTime) {
  const Graph graph = uniformChain(300, 100, 0);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, profile).peak_bytes / 2;
  options.time_limit_seconds = 0.01;
  const Schedule schedule = solvePoetPaper(graph, profile, options);
  EXPECT_EQ(schedule.status, Status::kTimeLimit);
  EXPECT_THAT(schedule.message, HasSubstr("building it takes longer"));
  EXPECT_EQ(schedule.start, "");
}

TEST(PoetPaper, NeverBeatsAProvenOptimum) {
  int optimal = 0, equal = 0;
  for (uint64_t seed = 0; seed < kPaperCases; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(seed);
    const bool pages = seed % 2 == 0;
    const DeviceProfile profile = pages ? smallProfileWithStore(seed) : smallProfile();
    const SimulationResult plain = simulatePlain(graph, profile);
    const int64_t least = exhaustivePeak(graph, profile, std::nullopt).value();
    SolveOptions options = between(least, plain.peak_bytes, seed);
    if (seed % 3 == 0) options.runtime_budget_seconds = 1.2 * plain.makespan_seconds;
    const Schedule ours = solve(graph, profile, options);
    const Schedule dense = solvePoetPaper(graph, profile, options);
    if (!dense.hasPlan()) {
      EXPECT_EQ(dense.status, Status::kInfeasible) << dense.message;
      EXPECT_EQ(dense.bound_scope, "candidates");
      continue;
    }
    checkPlan(graph, profile, options, dense);
    if (ours.status != Status::kOptimal) continue;
    ++optimal;
    EXPECT_GE(dense.energy_joules, ours.energy_joules * (1 - 1e-6));
    equal += dense.energy_joules <= ours.energy_joules * (1 + 1e-6);
  }
  EXPECT_GE(optimal, kPaperCases / 2);
  EXPECT_GE(equal, optimal * 3 / 4);
}

TEST(PoetPaper, ReportsPlansAtThePriceOfPlainTrainingAsOptimal) {
  const Graph graph = trainingChain(1, 4);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = simulatePlain(graph, profile).peak_bytes;
  const Schedule schedule = solvePoetPaper(graph, profile, options);
  EXPECT_EQ(schedule.status, Status::kOptimal);
  EXPECT_EQ(schedule.bound_scope, "all");
  EXPECT_EQ(schedule.countActions(ActionKind::kRecompute), 0);
}

TEST(PoetPaper, SaysThatNoScheduleOfItsClassKeepsTheBudgets) {
  const Graph graph = trainingChain(1, 4);
  const DeviceProfile profile = smallProfile();
  SolveOptions options;
  options.ram_budget_bytes = 1;
  const Schedule schedule = solvePoetPaper(graph, profile, options);
  EXPECT_EQ(schedule.status, Status::kInfeasible);
  EXPECT_EQ(schedule.bound_scope, "candidates");
  EXPECT_THAT(schedule.message, HasSubstr("dense program"));

  options.ram_budget_bytes = simulatePlain(graph, profile).peak_bytes;
  options.runtime_budget_seconds = 0.5 * graph.plainSeconds();
  EXPECT_EQ(solvePoetPaper(graph, profile, options).status, Status::kInfeasible);
}

// Its program takes transfers to block, so where they do not it may find more than there must be.
TEST(PoetPaper, ClaimsNoBoundForTransfersThatOverlap) {
  const Graph graph = trainingChain(5, 4);
  DeviceProfile profile = smallProfileWithStore(5);
  SolveOptions options;
  options.ram_budget_bytes = exhaustivePeak(graph, profile, std::nullopt).value();
  profile.dma_channels = 1;
  const Schedule schedule = solvePoetPaper(graph, profile, options);
  checkPlan(graph, profile, options, schedule);
  EXPECT_DOUBLE_EQ(*schedule.bound, simulatePlain(graph, profile).energy_joules);
}

TEST(PoetPaper, RefusesTheObjectiveThatThePaperDoesNotHave) {
  SolveOptions options;
  options.ram_budget_bytes = 100;
  options.minimize = Objective::kMemory;
  EXPECT_THAT([&] { solvePoetPaper(trainingChain(1, 4), smallProfile(), options); },
              ThrowsMessage<ArgumentError>(HasSubstr("poet_paper")));
}

// In joules this small, tolerances of a solver that sees them unscaled would hide every difference.
TEST(PoetPaper, IsIndifferentToUnits) {
  const Graph large = trainingChain(7, 4);
  std::vector<Op> ops = large.ops();
  for (Op& op : ops) op.seconds *= 1e-9;
  const Graph small(ops, large.values());
  const DeviceProfile profile = smallProfile();
  const int64_t least = exhaustivePeak(large, profile, std::nullopt).value();
  SolveOptions options;
  options.ram_budget_bytes = least;
  const double seconds = solvePoetPaper(large, profile, options).makespan_seconds;
  EXPECT_GT(seconds, large.plainSeconds());
  EXPECT_NEAR(solvePoetPaper(small, profile, options).makespan_seconds, 1e-9 * seconds,
              1e-15 * seconds);
}

}  // namespace
}  // namespace poet::testing
