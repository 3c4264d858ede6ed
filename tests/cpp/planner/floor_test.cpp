// No schedule needs less than the floor, whatever was made a constant of the problem.
#include "planner/floor.h"

#include <gtest/gtest.h>

#include "planner/planner.h"
#include "planner/small_random_graph.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

TEST(Floor, NoScheduleIsBelowItHoweverCoarseTheProblem) {
  int attained = 0;
  for (int i = 0; i < testing::propertyCases(30); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(92000 + static_cast<uint64_t>(i));
    DeviceProfile device;
    device.name = "test";
    device.store_read_rate = 2;
    device.store_write_rate = 3;
    SolveOptions options;
    options.ram_budget_bytes = 1 << 20;
    options.minimize = Objective::kMemory;
    options.paging = i % 2 == 0;
    options.time_limit_seconds = 1;
    options.deterministic = true;
    const Schedule least = solve(graph, device, options);
    ASSERT_TRUE(least.hasPlan()) << least.message;

    const RecipeTable table(graph);
    for (const int64_t small_bytes : {0, 3, 100}) {
      const ProblemOptions of_problem = {.small_bytes = small_bytes, .paging = options.paging};
      const Problem problem(graph, table, device, of_problem);
      const Floor floor = floorOfEverySchedule(problem, table, of_problem);
      EXPECT_LE(floor.bytes, least.peak_bytes) << small_bytes;
      EXPECT_TRUE(floor.op.valid() && floor.op <= graph.endOfStep());
      attained += floor.bytes == least.peak_bytes;
    }
  }
  EXPECT_GT(attained, 0);
}

}  // namespace
}  // namespace poet::planner
