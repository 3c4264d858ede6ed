// The planner against the exhaustive search, on hundreds of random small graphs.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "planner/exhaustive.h"
#include "planner/planner.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"

namespace poet {
namespace {

using testing::exhaustivePeak;
using testing::exhaustiveReplaySeconds;
using testing::smallRandomGraph;

// Two thousand in all; with paging the truth takes longer.
int numGraphs() { return poet::testing::propertyCases(1000); }
int numGraphsOfLeast() { return poet::testing::propertyCases(500); }
int numGraphsThatPage() { return poet::testing::propertyCases(75); }

DeviceProfile testProfile() {
  DeviceProfile profile;
  profile.name = "test";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.generator_state_bytes = 3;
  return profile;
}

// What must hold of every schedule that solve() returns.
void checkSchedule(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                   const Schedule& schedule) {
  if (!schedule.hasPlan()) {
    EXPECT_FALSE(schedule.gap.has_value());
    EXPECT_TRUE(schedule.before.empty());
    return;
  }
  const SimulationResult simulated = simulate(graph, schedule, profile);
  EXPECT_EQ(schedule.peak_bytes, simulated.peak_bytes);
  EXPECT_EQ(schedule.believed_peak_bytes, simulated.peak_bytes);
  EXPECT_NEAR(schedule.believed_seconds, simulated.makespan_seconds,
              1e-9 * simulated.makespan_seconds);
  EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
  if (options.runtime_budget_seconds) {
    EXPECT_LE(simulated.makespan_seconds, *options.runtime_budget_seconds * (1 + 1e-9));
  }
  ASSERT_TRUE(schedule.gap.has_value());
  ASSERT_TRUE(schedule.bound.has_value());
  EXPECT_LE(*schedule.bound, schedule.objectiveValue());
  if (schedule.status == Status::kOptimal) {
    EXPECT_EQ(*schedule.gap, 0.0);
    EXPECT_EQ(schedule.bound_scope, "all");
  }
}

DeviceProfile storeProfile(uint64_t seed) {
  std::mt19937_64 random(seed * 31 + 7);
  DeviceProfile profile = testProfile();
  profile.store_watts = static_cast<double>(seed % 3);
  profile.store_read_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_write_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_read_latency_seconds = 0.25;
  profile.store_write_latency_seconds = 0.5;
  return profile;
}

struct Case {
  explicit Case(uint64_t seed)
      : graph(smallRandomGraph(seed)), profile(testProfile()), random(seed * 7919 + 1) {
    plain = simulatePlain(graph, profile);
    least = exhaustivePeak(graph, profile, std::nullopt).value();
    options.ram_budget_bytes = std::max<int64_t>(
        1, std::uniform_int_distribution<int64_t>(least, plain.peak_bytes)(random));
    options.time_limit_seconds = 20;
    options.deterministic = true;  // counts below must not depend on the load
  }

  Graph graph;
  DeviceProfile profile;
  std::mt19937_64 random;
  SimulationResult plain;
  int64_t least = 0;
  SolveOptions options;
};

TEST(Optimality, TimeAndEnergyAgreeWithAnExhaustiveSearch) {
  int optimal = 0, late_ones = 0;
  for (int seed = 0; seed < numGraphs(); ++seed) {
    SCOPED_TRACE(seed);
    Case c(static_cast<uint64_t>(seed));
    c.options.minimize = seed % 2 == 0 ? Objective::kEnergy : Objective::kTime;
    if (seed % 3 == 0)
      c.options.runtime_budget_seconds = c.plain.makespan_seconds * (1.0 + 0.1 * (seed % 7));
    const Schedule schedule = solve(c.graph, c.profile, c.options);
    checkSchedule(c.graph, c.profile, c.options, schedule);
    const auto truth = exhaustiveReplaySeconds(c.graph, c.profile, c.options.ram_budget_bytes);
    const bool late =
        c.options.runtime_budget_seconds &&
        *truth + c.plain.makespan_seconds > *c.options.runtime_budget_seconds * (1 + 1e-9);
    if (late) {
      EXPECT_FALSE(schedule.hasPlan());
      ++late_ones;
      continue;
    }
    ASSERT_TRUE(schedule.hasPlan()) << toString(schedule.status) << " " << schedule.message;
    const double extra = schedule.makespan_seconds - c.plain.makespan_seconds;
    EXPECT_GE(extra, *truth - 1e-6);
    if (schedule.status == Status::kOptimal) {
      EXPECT_NEAR(extra, *truth, 1e-6);
    }
    optimal += schedule.status == Status::kOptimal;
    if (schedule.status != Status::kOptimal) {
      std::printf("seed %d: %s, +%g against +%g, bound %g\n", seed,
                  std::string(toString(schedule.status)).c_str(), extra, *truth, *schedule.bound);
    }
  }
  std::printf("%d optimal, %d late\n", optimal, late_ones);
  EXPECT_GT(optimal, 9 * (numGraphs() - late_ones) / 10);
  EXPECT_GT(late_ones, 0);
}

TEST(Optimality, LeastMemoryAgreesWithAnExhaustiveSearch) {
  int optimal = 0;
  for (int seed = 0; seed < numGraphsOfLeast(); ++seed) {
    SCOPED_TRACE(seed);
    Case c(static_cast<uint64_t>(seed) + 10000);
    c.options.minimize = Objective::kMemory;
    c.options.ram_budget_bytes = c.plain.peak_bytes;
    std::optional<double> limit;
    if (seed % 3 == 0) {
      limit = c.plain.makespan_seconds * 0.1 * (seed % 7);
      c.options.runtime_budget_seconds = c.plain.makespan_seconds + *limit;
    }
    const Schedule schedule = solve(c.graph, c.profile, c.options);
    checkSchedule(c.graph, c.profile, c.options, schedule);
    const int64_t truth = exhaustivePeak(c.graph, c.profile, limit).value();
    ASSERT_TRUE(schedule.hasPlan());
    EXPECT_GE(schedule.peak_bytes, truth);
    if (schedule.status == Status::kOptimal) {
      EXPECT_EQ(schedule.peak_bytes, truth);
    }
    optimal += schedule.status == Status::kOptimal;
    if (schedule.status != Status::kOptimal) {
      std::printf("seed %d: %s, %ld against %ld, bound %g\n", seed,
                  std::string(toString(schedule.status)).c_str(),
                  static_cast<long>(schedule.peak_bytes), static_cast<long>(truth),
                  *schedule.bound);
    }
  }
  std::printf("%d optimal\n", optimal);
  EXPECT_GT(optimal, 9 * numGraphsOfLeast() / 10);
}

TEST(Optimality, LeastBudgetHasAPlanAndOneByteLessHasNone) {
  int tried = 0, proven = 0;
  for (int seed = 0; seed < numGraphsOfLeast(); ++seed) {
    SCOPED_TRACE(seed);
    Case c(static_cast<uint64_t>(seed) + 20000);
    if (c.least <= 1) continue;
    c.options.ram_budget_bytes = c.least - 1;
    ++tried;
    const Schedule none = solve(c.graph, c.profile, c.options);
    checkSchedule(c.graph, c.profile, c.options, none);
    EXPECT_FALSE(none.hasPlan());
    if (none.status != Status::kInfeasible) {
      std::printf("seed %d: %s, least %ld\n", seed, std::string(toString(none.status)).c_str(),
                  static_cast<long>(c.least));
      continue;
    }
    ++proven;
    ASSERT_TRUE(none.least_ram_budget.has_value());
    EXPECT_EQ(*none.least_ram_budget, c.least);
    EXPECT_TRUE(none.least_ram_op.valid());
    EXPECT_FALSE(none.message.empty());
    c.options.ram_budget_bytes = *none.least_ram_budget;
    const Schedule found = solve(c.graph, c.profile, c.options);
    checkSchedule(c.graph, c.profile, c.options, found);
    EXPECT_TRUE(found.hasPlan());
  }
  std::printf("%d of %d proven\n", proven, tried);
  EXPECT_GT(proven, 9 * tried / 10);
}

// Recompute and paging, and paging alone, some under a deadline: against a search that may page any
// version at any time.
TEST(Optimality, PagingAgreesWithAnExhaustiveSearch) {
  int optimal = 0, infeasible = 0, paged = 0, cases = 0, under_deadline = 0, dearer_for_it = 0;
  for (int seed = 0; seed < numGraphsThatPage(); ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(static_cast<uint64_t>(seed) + 40000);
    if (graph.numValues() > 13) continue;  // the truth would take minutes
    const DeviceProfile profile = storeProfile(static_cast<uint64_t>(seed));
    const SimulationResult plain = simulatePlain(graph, profile);
    SolveOptions options;
    options.minimize = seed % 2 == 0 ? Objective::kEnergy : Objective::kTime;
    options.recompute = seed % 3 != 0;
    options.time_limit_seconds = 20;
    options.deterministic = true;  // counts below must not depend on the load
    options.ram_budget_bytes = std::max<int64_t>(1, plain.peak_bytes * (65 + seed % 34) / 100);
    testing::Allowed allowed{.recompute = options.recompute,
                             .paging = true,
                             .joules = options.minimize == Objective::kEnergy};
    auto truth = testing::exhaustiveExtra(graph, profile, options.ram_budget_bytes, allowed);
    if (seed % 5 < 2 && graph.numValues() <= 10) {  // all ways, the slower ones too, are more
      const double without = truth.value_or(std::numeric_limits<double>::infinity());
      // Not where rounding would decide.
      allowed.seconds_limit = plain.makespan_seconds * (0.051 + 0.1 * (seed % 6));
      options.runtime_budget_seconds = plain.makespan_seconds + *allowed.seconds_limit;
      truth = testing::exhaustiveExtra(graph, profile, options.ram_budget_bytes, allowed);
      ++under_deadline;
      dearer_for_it += std::isfinite(without) && (!truth || *truth > without + 1e-6);
    }
    const Schedule schedule = solve(graph, profile, options);
    checkSchedule(graph, profile, options, schedule);
    ++cases;
    if (!truth) {
      EXPECT_FALSE(schedule.hasPlan());
      infeasible += schedule.status == Status::kInfeasible;
      continue;
    }
    EXPECT_NE(schedule.status, Status::kInfeasible);
    if (!schedule.hasPlan()) continue;
    const double extra = allowed.joules ? schedule.energy_joules - plain.energy_joules
                                        : schedule.makespan_seconds - plain.makespan_seconds;
    EXPECT_GE(extra, *truth - 1e-6);
    if (schedule.status == Status::kOptimal) {
      EXPECT_NEAR(extra, *truth, 1e-5);
    }
    const double bound =
        *schedule.bound - (allowed.joules ? plain.energy_joules : plain.makespan_seconds);
    if (schedule.bound_scope == "all") {
      EXPECT_LE(bound, *truth + 1e-5);
    }
    optimal += schedule.status == Status::kOptimal;
    paged += schedule.countActions(ActionKind::kPageIn) > 0;
  }
  std::printf(
      "%d cases: %d optimal, %d infeasible, %d paged; %d under a deadline, %d of them dearer or "
      "impossible for it\n",
      cases, optimal, infeasible, paged, under_deadline, dearer_for_it);
  EXPECT_GT(optimal, cases / 4);
  EXPECT_GT(paged, 0);
  EXPECT_GT(dearer_for_it, 0);
}

// Transfers that take no time bound from below what those beside computation cost.
std::optional<double> extraWithFreeTransfers(const Graph& graph, DeviceProfile profile,
                                             const SolveOptions& options) {
  profile.store_read_rate = profile.store_write_rate = std::numeric_limits<double>::max();
  profile.store_read_latency_seconds = profile.store_write_latency_seconds = 0;
  profile.dma_channels = 0;
  profile.wake_joules = 0;
  return testing::exhaustiveExtra(
      graph, profile, options.ram_budget_bytes,
      {.recompute = true, .paging = true, .joules = options.minimize == Objective::kEnergy});
}

// What a plan says of its seconds is what the simulator finds, and no plan beats the truth.
TEST(Optimality, WithOverlapNoPlanIsBetterThanFreeTransfers) {
  int hidden = 0, compared = 0, attained = 0;
  double sum = 0, most = 0;  // what plans cost beyond that, in percent of the plain step
  for (int seed = 0; seed < 2 * numGraphsThatPage() / 3; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(static_cast<uint64_t>(seed) + 50000);
    DeviceProfile profile = storeProfile(static_cast<uint64_t>(seed));
    profile.dma_channels = 1 + seed % 3;
    profile.wake_joules = seed % 2;
    const SimulationResult plain = simulatePlain(graph, profile);
    SolveOptions options;
    options.minimize = seed % 2 == 0 ? Objective::kEnergy : Objective::kTime;
    options.time_limit_seconds = 1.5;
    options.deterministic = true;  // counts below must not depend on the load
    options.ram_budget_bytes = std::max<int64_t>(1, plain.peak_bytes * (65 + seed % 34) / 100);
    const Schedule schedule = solve(graph, profile, options);
    if (!schedule.hasPlan()) continue;
    const SimulationResult simulated = simulate(graph, schedule, profile);
    EXPECT_LE(simulated.peak_bytes, options.ram_budget_bytes);
    EXPECT_EQ(simulated.makespan_seconds, schedule.makespan_seconds);
    EXPECT_NEAR(simulated.makespan_seconds, schedule.believed_seconds,
                1e-9 * simulated.makespan_seconds);
    EXPECT_EQ(simulated.peak_bytes, schedule.believed_peak_bytes);
    EXPECT_LE(*schedule.bound, schedule.objectiveValue() * (1 + 1e-9));
    hidden += simulated.hidden_seconds > 0;
    if (graph.numValues() > 10) continue;  // the truth would take minutes
    const auto truth = extraWithFreeTransfers(graph, profile, options);
    ASSERT_TRUE(truth.has_value());
    const bool joules = options.minimize == Objective::kEnergy;
    const double base = joules ? plain.energy_joules : plain.makespan_seconds;
    const double extra = schedule.objectiveValue() - base;
    EXPECT_GE(extra, *truth - 1e-6);
    const double beyond = 100 * std::max(0.0, extra - *truth) / base;
    sum += beyond;
    most = std::max(most, beyond);
    attained += extra <= *truth + 1e-6;
    ++compared;
  }
  std::printf("%d plans hide transfers; %d of %d cost what they would with free transfers\n",
              hidden, attained, compared);
  // For benchmarks/planner/overlap.py.
  RecordProperty("compared", compared);
  RecordProperty("attained", attained);
  RecordProperty("mean_beyond_percent", std::to_string(sum / std::max(compared, 1)));
  RecordProperty("most_beyond_percent", std::to_string(most));
  EXPECT_GT(compared, 0);
  EXPECT_GT(hidden, 0);
}

}  // namespace
}  // namespace poet
