// The rows of the program (planner/program.h).
#include "planner/program.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "planner/planner.h"
#include "support/graph_builder.h"

namespace poet::planner {
namespace {

using poet::testing::GraphBuilder;

// Both outlive the step: a byte that could be made again at its end, and what a recipe with two
// random ops makes, each with a generator's state of 5,056 bytes to be kept for it.
Graph drawsTwice() {
  GraphBuilder g;
  const ValueId x = g.input(0);
  const ValueId spare = g.op("aten::empty_like").reads({x}).shapeOnly().makes(1);
  const std::vector<ValueId> made = g.op("dropout").reads({x}).random().makes({1, 0});
  g.op("add_").writes({made[1]}).random().workspace(700);
  for (const ValueId v : {spare, made[0], made[1]}) g.diesAfter(v, OpId(3));
  return g.build();
}

TEST(Program, RowsNameAColumnOnce) {
  const Graph graph = drawsTwice();
  const RecipeTable table(graph);
  const DeviceProfile profile = hostProfile();
  ASSERT_GT(profile.generator_state_bytes, 0);
  const Problem problem(graph, table, profile, {});
  const Program program(problem, allCandidates(problem),
                        {.budget_bytes = 702, .replay_seconds_limit = std::nullopt});
  std::vector<Term> terms;
  bool doubled = false;
  for (int s = 0; s < static_cast<int>(program.steps().size()); ++s) {
    program.memoryRow(s, terms);
    std::set<int> columns;
    for (const Term& term : terms) {
      EXPECT_TRUE(columns.insert(term.column).second) << "column " << term.column << ", step " << s;
      doubled |= term.value * 702 == 2 * static_cast<double>(profile.generator_state_bytes);
    }
  }
  EXPECT_TRUE(doubled) << "both states are held at once";
}

TEST(Program, FindsTheLeastPeakBesideARecipeThatDrawsTwice) {
  SolveOptions options;
  options.ram_budget_bytes = 10000;
  options.minimize = Objective::kMemory;
  options.time_limit_seconds = 30;
  const Schedule schedule = solve(drawsTwice(), hostProfile(), options);
  EXPECT_EQ(schedule.status, Status::kOptimal);
  EXPECT_EQ(schedule.peak_bytes, 701) << "the spare byte is away while op 2 runs";
}

}  // namespace
}  // namespace poet::planner
