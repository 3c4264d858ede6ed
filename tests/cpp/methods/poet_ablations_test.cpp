// POET's two ablations against an exhaustive search that has the same one means.
#include <gtest/gtest.h>

#include <random>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/exhaustive.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet::testing {
namespace {

constexpr int kCases = 40;

// How many of the cases have a schedule, and ask for one that is not plain training.
int compareWithTheTruth(const char* method, const Allowed& allowed, int length) {
  int acting = 0;
  for (int seed = 0; seed < propertyCases(kCases); ++seed) {
    SCOPED_TRACE(::testing::Message() << method << ", seed " << seed);
    const auto number = static_cast<uint64_t>(seed);
    const Graph graph = trainingChain(number + 2000, length);
    const DeviceProfile profile = smallProfileWithStore(number);
    const SimulationResult plain = simulatePlain(graph, profile);
    std::mt19937_64 random(number);
    SolveOptions options;
    options.method = method;
    options.time_limit_seconds = 20;
    options.ram_budget_bytes =
        std::uniform_int_distribution<int64_t>(plain.peak_bytes / 2, plain.peak_bytes)(random);
    const Schedule schedule = planWith(graph, profile, options);
    const auto truth = exhaustiveExtra(graph, profile, options.ram_budget_bytes, allowed);
    EXPECT_EQ(schedule.hasPlan(), truth.has_value()) << schedule.message;
    if (!schedule.hasPlan() || !truth) {
      EXPECT_EQ(schedule.status, Status::kInfeasible);
      continue;
    }
    acting += *truth > 0;
    const SimulationResult simulated = simulate(graph, schedule, profile);
    EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
    EXPECT_TRUE(allowed.recompute || simulated.recomputed_ops == 0);
    EXPECT_TRUE(allowed.paging || simulated.page_ins == 0);
    EXPECT_NEAR(simulated.energy_joules - plain.energy_joules, *truth, 1e-3);
  }
  return acting;
}

TEST(PoetRematOnly, FindsTheOptimumOfChainsWithRecompute) {
  const Allowed recompute{.recompute = true, .paging = false, .joules = true};
  EXPECT_GE(compareWithTheTruth("poet_remat_only", recompute, 4), propertyCases(kCases) / 4);
}

TEST(PoetPageOnly, FindsTheOptimumOfChainsWithPaging) {
  const Allowed paging{.recompute = false, .paging = true, .joules = true};
  EXPECT_GE(compareWithTheTruth("poet_page_only", paging, 4), propertyCases(kCases) / 4);
}

}  // namespace
}  // namespace poet::testing
