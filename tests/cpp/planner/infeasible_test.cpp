// Budgets that cannot be met: what is said of them must hold when it is tried.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "planner/planner.h"
#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/property_cases.h"
#include "support/random.h"

namespace poet {
namespace {

using testing::Random;

int numInfeasible() { return poet::testing::propertyCases(25); }

DeviceProfile pagingDevice() {
  DeviceProfile device;
  device.name = "test";
  device.compute_watts = 2;
  device.idle_watts = 1;
  device.generator_state_bytes = 3;
  device.store_read_rate = 2;
  device.store_write_rate = 3;
  return device;
}

// The message of a least budget that is proven, not only found.
bool isProven(const Schedule& schedule) {
  return schedule.message.find("the least that any schedule needs") != std::string::npos;
}

// One byte can never do. The least budget that is reported with it has a plan; where it is said to
// be the least that any schedule needs, one byte below it is proven to have none, and the same
// figure is reported.
TEST(Infeasible, TheLeastBudgetHasAPlanAndOneByteLessIsProvenToHaveNone) {
  int kept = 0, proven = 0, paged = 0;
  for (int i = 0; i < numInfeasible(); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(60000 + static_cast<uint64_t>(i));
    const DeviceProfile device = pagingDevice();
    SolveOptions options;
    options.ram_budget_bytes = 1;
    options.minimize = i % 2 == 0 ? Objective::kEnergy : Objective::kTime;
    options.recompute = i % 3 != 0;
    options.paging = i % 3 != 1;
    options.time_limit_seconds = 1;
    options.deterministic = true;
    const Schedule none = solve(graph, device, options);
    ASSERT_EQ(none.status, Status::kInfeasible) << none.message;
    ASSERT_TRUE(none.before.empty());
    if (!none.least_ram_budget) continue;
    EXPECT_TRUE(none.least_ram_op.valid() && none.least_ram_op <= graph.endOfStep());
    EXPECT_GT(*none.least_ram_budget, 1);

    options.ram_budget_bytes = *none.least_ram_budget;
    ASSERT_TRUE(none.least_plan);
    EXPECT_LE(simulate(graph, *none.least_plan, device).peak_bytes, *none.least_ram_budget);
    SolveOptions from_it = options;
    from_it.starts = {*none.least_plan};
    EXPECT_TRUE(solve(graph, device, from_it).hasPlan());
    const Schedule least = solve(graph, device, options);
    EXPECT_NE(least.status, Status::kInfeasible) << least.message;
    if (!least.hasPlan()) continue;  // a slow machine found none in time
    ++kept;
    EXPECT_LE(simulate(graph, least, device).peak_bytes, *none.least_ram_budget);
    paged += least.countActions(ActionKind::kPageIn) > 0;
    if (!isProven(none)) continue;

    options.ram_budget_bytes = *none.least_ram_budget - 1;
    const Schedule below = solve(graph, device, options);
    EXPECT_FALSE(below.hasPlan());
    if (below.status != Status::kInfeasible) continue;  // likewise
    EXPECT_EQ(below.least_ram_budget, none.least_ram_budget) << below.message;
    ++proven;
  }
  std::printf("%d of %d least budgets are proven, %d plans for them page\n", proven,
              numInfeasible(), paged);
  EXPECT_GT(kept, numInfeasible() / 2);
  EXPECT_GT(proven, numInfeasible() / 3);
  EXPECT_GT(paged, 0);
}

// A solver keeps the deadline to its own tolerance. Plans that miss it by less are none, and what
// is said of the memory that others need holds as it does for any other deadline.
TEST(Infeasible, ADeadlineJustBelowAPlanIsAnsweredAsAnyOther) {
  const DeviceProfile device = hostProfile();
  int dearer = 0;
  for (int i = 0; i < numInfeasible() / 2; ++i) {
    const Graph graph = testing::smallRandomGraph(65000 + static_cast<uint64_t>(i));
    const SimulationResult plain = simulatePlain(graph, device);
    SolveOptions least_memory;
    least_memory.ram_budget_bytes = plain.peak_bytes;
    least_memory.minimize = Objective::kMemory;
    least_memory.paging = false;
    least_memory.time_limit_seconds = 10;
    const Schedule smallest = solve(graph, device, least_memory);
    ASSERT_EQ(smallest.status, Status::kOptimal) << smallest.message;
    if (smallest.makespan_seconds <= plain.makespan_seconds * 1.001) continue;
    for (const double shortfall : {2e-9, 2e-8, 2e-7}) {
      SCOPED_TRACE(std::to_string(i) + " " + std::to_string(1e9 * shortfall));
      least_memory.runtime_budget_seconds = smallest.makespan_seconds * (1 - shortfall);
      const Schedule kept = solve(graph, device, least_memory);
      ASSERT_EQ(kept.status, Status::kOptimal) << kept.message;
      EXPECT_LE(kept.makespan_seconds, *least_memory.runtime_budget_seconds * (1 + 1e-9));
      dearer += kept.peak_bytes > smallest.peak_bytes;

      SolveOptions options = least_memory;
      options.minimize = Objective::kTime;
      options.ram_budget_bytes = kept.peak_bytes;
      EXPECT_TRUE(solve(graph, device, options).hasPlan());
      options.ram_budget_bytes = kept.peak_bytes - 1;
      const Schedule none = solve(graph, device, options);
      EXPECT_EQ(none.status, Status::kInfeasible) << none.message;
      EXPECT_EQ(none.least_ram_budget, kept.peak_bytes) << none.message;
    }
  }
  EXPECT_GT(dearer, 0);
}

// With a deadline the least budget is the least that keeps it.
TEST(Infeasible, WithADeadlineTheLeastBudgetKeepsItToo) {
  int reported = 0;
  for (int i = 0; i < numInfeasible() / 3; ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(70000 + static_cast<uint64_t>(i));
    const DeviceProfile device = pagingDevice();
    SolveOptions options;
    options.ram_budget_bytes = 1;
    options.minimize = Objective::kTime;
    options.paging = i % 2 == 0;
    options.runtime_budget_seconds = graph.plainSeconds() * (1.0 + 0.1 * (i % 5));
    options.time_limit_seconds = 1;
    options.deterministic = true;
    const Schedule none = solve(graph, device, options);
    ASSERT_FALSE(none.hasPlan());
    if (!none.least_ram_budget) continue;
    options.ram_budget_bytes = *none.least_ram_budget;
    const Schedule least = solve(graph, device, options);
    EXPECT_NE(least.status, Status::kInfeasible) << least.message;
    if (!least.hasPlan()) continue;
    const SimulationResult result = simulate(graph, least, device);
    EXPECT_LE(result.peak_bytes, *none.least_ram_budget);
    EXPECT_LE(result.makespan_seconds, *options.runtime_budget_seconds * (1 + 1e-9));
    ++reported;
  }
  EXPECT_GT(reported, numInfeasible() / 6);
}

// Transfers beside the step take no time of it: what keeps a deadline then may not keep it one
// after the other.
TEST(Infeasible, NotWhereOverlappedTransfersKeepTheDeadline) {
  int tight = 0, missed = 0;
  for (int i = 0; i < 2 * numInfeasible(); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(80000 + static_cast<uint64_t>(i));
    DeviceProfile device = pagingDevice();
    device.dma_channels = 1;
    device.store_read_rate = device.store_write_rate = 40;
    SolveOptions options;
    options.ram_budget_bytes = simulatePlain(graph, device).peak_bytes * 7 / 10;
    options.minimize = Objective::kTime;
    options.recompute = i % 2 == 0;
    options.time_limit_seconds = 0.2;
    options.deterministic = true;
    const Schedule free = solve(graph, device, options);
    if (!free.hasPlan()) continue;
    options.runtime_budget_seconds = free.makespan_seconds;
    for (const Objective objective : {Objective::kTime, Objective::kEnergy, Objective::kMemory}) {
      options.minimize = objective;
      const Schedule kept = solve(graph, device, options);
      EXPECT_NE(kept.status, Status::kInfeasible) << kept.message;
      missed += !kept.hasPlan();
      tight += kept.hasPlan() && kept.countActions(ActionKind::kPageIn) > 0;
    }
    options.starts = {free};
    options.minimize = Objective::kTime;
    EXPECT_TRUE(solve(graph, device, options).hasPlan());
  }
  EXPECT_GT(tight, 0);
  std::printf("%d of %d found none in time\n", missed, 6 * numInfeasible());
}

// Less time than the plain step takes is no question of memory.
TEST(Infeasible, ADeadlineBelowThePlainStepNamesTheDeadline) {
  const Graph graph = testing::smallRandomGraph(3);
  SolveOptions options;
  options.ram_budget_bytes = int64_t{1} << 40;
  options.runtime_budget_seconds = graph.plainSeconds() * 0.99;
  const Schedule schedule = solve(graph, pagingDevice(), options);
  EXPECT_EQ(schedule.status, Status::kInfeasible);
  EXPECT_FALSE(schedule.least_ram_budget.has_value());
  EXPECT_NE(schedule.message.find("runtime_budget"), std::string::npos) << schedule.message;
}

}  // namespace
}  // namespace poet
