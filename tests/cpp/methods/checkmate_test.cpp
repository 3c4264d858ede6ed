// Checkmate's program against the exhaustive search, and the rounding of its relaxation.
#include "methods/checkmate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kCases = 30;

SolveOptions within(int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = "checkmate";
  options.time_limit_seconds = 30;
  return options;
}

// Budgets from the least that any schedule does with up to plain training's.
template <class Check>
void forSmallChains(const Check& check) {
  for (int seed = 0; seed < propertyCases(kCases); ++seed) {
    SCOPED_TRACE(seed);
    const auto number = static_cast<uint64_t>(seed);
    const Graph graph = trainingChain(number + 3000, 4);
    const int64_t plain = simulatePlain(graph, smallProfile()).peak_bytes;
    const int64_t least = exhaustivePeak(graph, smallProfile(), std::nullopt).value();
    std::mt19937_64 random(number);
    check(graph, std::uniform_int_distribution<int64_t>(least, plain)(random));
  }
}

double extraSeconds(const Graph& graph, const Schedule& schedule) {
  return simulate(graph, schedule, smallProfile()).makespan_seconds - graph.plainSeconds();
}

TEST(Checkmate, FindsTheOptimumOfChains) {
  forSmallChains([](const Graph& graph, int64_t budget) {
    const Schedule schedule = planWith(graph, smallProfile(), within(budget));
    ASSERT_TRUE(schedule.hasPlan()) << schedule.message;
    EXPECT_EQ(schedule.start, "branch and cut");
    EXPECT_LE(simulate(graph, schedule, smallProfile()).peak_bytes, budget);
    const double truth = exhaustiveReplaySeconds(graph, smallProfile(), budget).value();
    EXPECT_NEAR(extraSeconds(graph, schedule), truth, 1e-4);
  });
}

// A step that is too large, were the limit lower.
TEST(Checkmate, RoundsTheRelaxationOfAStepThatIsTooLarge) {
  int rounded = 0, equal = 0;
  forSmallChains([&](const Graph& graph, int64_t budget) {
    const Schedule schedule =
        methods::solveCheckmate(graph, smallProfile(), within(budget), {.most_program_columns = 0});
    EXPECT_EQ(schedule.method, "checkmate");
    if (!schedule.hasPlan()) {
      EXPECT_EQ(schedule.status, Status::kTimeLimit) << "rounding proves nothing";
      EXPECT_THAT(schedule.message, HasSubstr("no rounding"));
      EXPECT_GT(schedule.least_ram_budget.value_or(0), budget) << "of the plans that it saw";
      return;
    }
    ++rounded;
    EXPECT_EQ(schedule.start, "rounded relaxation");
    EXPECT_THAT(schedule.message, HasSubstr("rounded solution of the linear relaxation"));
    EXPECT_LE(simulate(graph, schedule, smallProfile()).peak_bytes, budget);
    const double truth = exhaustiveReplaySeconds(graph, smallProfile(), budget).value();
    EXPECT_GE(extraSeconds(graph, schedule), truth - 1e-9);
    equal += extraSeconds(graph, schedule) <= truth + 1e-9;
  });
  EXPECT_GE(rounded, propertyCases(kCases) * 2 / 3);
  EXPECT_GE(equal, rounded / 2);
}

TEST(Checkmate, KeepsTheBudgetOfLongerChainsByRounding) {
  const Graph graph = uniformChain(20, 1000, 0);
  const int64_t plain = simulatePlain(graph, smallProfile()).peak_bytes;
  for (const int percent : {50, 75, 90}) {
    const int64_t budget = plain * percent / 100;
    const Schedule schedule =
        methods::solveCheckmate(graph, smallProfile(), within(budget), {.most_program_columns = 0});
    ASSERT_TRUE(schedule.hasPlan()) << schedule.message;
    EXPECT_EQ(schedule.start, "rounded relaxation");
    const SimulationResult simulated = simulate(graph, schedule, smallProfile());
    EXPECT_LE(simulated.peak_bytes, budget);
    EXPECT_GT(simulated.recomputed_ops, 0);
    EXPECT_EQ(*schedule.bound, simulatePlain(graph, smallProfile()).energy_joules);
  }
}

// 400 links: 1.7 million columns, and still 1.2 million with small values as constants.
TEST(Checkmate, EndsInTimeWhereNotEvenItsRelaxationIsBuilt) {
  const Graph graph = uniformChain(400, 1000, 0);
  const int64_t plain = simulatePlain(graph, smallProfile()).peak_bytes;
  const Schedule schedule = planWith(graph, smallProfile(), within(plain / 2));
  EXPECT_EQ(schedule.method, "checkmate");
  EXPECT_EQ(schedule.status, Status::kTimeLimit);
  EXPECT_EQ(schedule.start, "");
  EXPECT_THAT(schedule.message, HasSubstr("not even its relaxation is built beyond 1000000"));
  EXPECT_FALSE(schedule.least_ram_budget.has_value());
}

}  // namespace
}  // namespace poet::testing
