// What may stay in the store between steps, and how much of it does.
#include "planner/away.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/small_random_graph.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

DeviceProfile deviceWithStore(bool direct_kernels = true) {
  DeviceProfile device;
  device.direct_kernels = direct_kernels;
  device.name = "test";
  device.store_read_rate = 2;
  device.store_write_rate = 3;
  return device;
}

TEST(Away, OnlyWhatTheStepGetsAndKeepsWhatIsOnlyReadFirst) {
  int some = 0;
  for (int i = 0; i < testing::propertyCases(50); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::smallRandomGraph(91000 + static_cast<uint64_t>(i));
    SolveOptions options;
    options.paging = options.away_between_steps = options.parameters_away = true;
    const std::vector<ValueId> found = mayBeAway(graph, deviceWithStore(), options);
    for (const ValueId v : found) {
      EXPECT_EQ(graph.value(v).producer, kNoOp);
      EXPECT_TRUE(graph.value(v).evictable);
      EXPECT_EQ(graph.value(v).death, graph.endOfStep());
    }
    const auto rank = [&](ValueId v) {
      return std::pair(!graph.writersOf(v).empty(), -graph.value(v).bytes);
    };
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                               [&](ValueId a, ValueId b) { return rank(a) < rank(b); }));
    some += !found.empty();
    for (bool SolveOptions::*needed : {&SolveOptions::paging, &SolveOptions::away_between_steps}) {
      SolveOptions without = options;
      without.*needed = false;
      EXPECT_TRUE(mayBeAway(graph, deviceWithStore(), without).empty());
    }
    EXPECT_TRUE(mayBeAway(graph, DeviceProfile(), options).empty());
    options.parameters_away = false;  // these graphs have no optimizer state
    EXPECT_TRUE(mayBeAway(graph, deviceWithStore(), options).empty());
  }
  EXPECT_GT(some, 0);
}

TEST(Away, InALiveProgramParametersComeAfterOptimizerStateAndInputsStay) {
  int mixed = 0;
  for (int i = 0; i < testing::propertyCases(50); ++i) {
    SCOPED_TRACE(i);
    const Graph random = testing::smallRandomGraph(92000 + static_cast<uint64_t>(i));
    const std::vector<ValueKind> kinds = {ValueKind::kParameter, ValueKind::kOptimizerState,
                                          ValueKind::kInput, ValueKind::kBuffer};
    std::vector<Value> values = random.values();
    for (size_t v = 0; v < values.size(); ++v) {
      if (values[v].producer == kNoOp) values[v].kind = kinds[v % kinds.size()];
    }
    const Graph graph(random.ops(), values, random.baseBytes());
    SolveOptions options;
    options.paging = options.away_between_steps = options.parameters_away = true;
    const std::vector<ValueId> found = mayBeAway(graph, deviceWithStore(false), options);
    const auto rank = [&](ValueId v) {
      return std::pair(graph.value(v).kind == ValueKind::kParameter, -graph.value(v).bytes);
    };
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(),
                               [&](ValueId a, ValueId b) { return rank(a) < rank(b); }));
    for (const ValueId v : found) {
      EXPECT_TRUE(graph.value(v).kind == ValueKind::kParameter ||
                  graph.value(v).kind == ValueKind::kOptimizerState);
    }
    mixed += !found.empty() && graph.value(found.front()).kind != graph.value(found.back()).kind;
    options.parameters_away = false;
    for (const ValueId v : mayBeAway(graph, deviceWithStore(false), options))
      EXPECT_EQ(graph.value(v).kind, ValueKind::kOptimizerState);
  }
  EXPECT_GT(mixed, 0);
}

TEST(Away, TheFewestThatFit) {
  const std::vector<int64_t> floors = {90, 80, 80, 50, 20, 20};  // by count
  const auto floorWith = [&](size_t count) { return floors.at(count); };
  const size_t all = floors.size() - 1;
  for (int64_t budget = 10; budget <= 100; ++budget) {
    size_t expected = 0;
    while (expected < all && floors[expected] > budget) ++expected;
    EXPECT_EQ(fewestAway(all, budget, floorWith), expected) << budget;
  }
  EXPECT_EQ(fewestAway(0, 1, floorWith), 0U);
}

TEST(Away, MoreUntilThereIsNoMore) {
  for (const size_t all : {1, 2, 7, 100}) {
    int tries = 0;
    for (size_t count = 0; count < all; ++tries) {
      const size_t next = moreAway(count, all);
      ASSERT_GT(next, count);
      ASSERT_LE(next, all);
      count = next;
    }
    EXPECT_LE(tries, 4);
  }
}

TEST(Away, TheFirstOfThemAscend) {
  const std::vector<ValueId> values = {ValueId(5), ValueId(2), ValueId(9)};
  EXPECT_EQ(firstOf(values, 2), (std::vector<ValueId>{ValueId(2), ValueId(5)}));
  EXPECT_TRUE(firstOf(values, 0).empty());
}

// Two frozen weights that one op reads, beside something that an earlier op needs much memory for.
struct FrozenWeights {
  testing::GraphBuilder builder;
  Graph graph = build();

 private:
  Graph build() {
    testing::GraphBuilder& g = builder;
    const ValueId x = g.input(10), first = g.parameter(100), second = g.parameter(100);
    testing::OpHandle begin = g.op("aten::mm").reads({x}).seconds(1000).notReplayable();
    const ValueId small = begin.makes(1), large = begin.makes(50);
    g.diesAfter(small, begin.id());
    g.diesAfter(x, begin.id());
    const ValueId y = g.op("aten::mm").reads({large}).seconds(1000).notReplayable().makes(1);
    const ValueId loss = g.op("aten::mm").reads({y, first, second}).seconds(1000).makes(4);
    for (const ValueId v : {first, second, loss}) g.outlives(v);
    return g.build();
  }
};

SolveOptions within(int64_t budget_bytes) {
  SolveOptions options;
  options.ram_budget_bytes = budget_bytes;
  options.minimize = Objective::kTime;
  options.time_limit_seconds = 10;
  options.paging = options.away_between_steps = options.parameters_away = true;
  return options;
}

// What is only read and away costs one transfer a step, what leaves and returns two.
TEST(Away, MoreIsAwayThanMustBeWhereThatCostsLess) {
  const FrozenWeights weights;
  const DeviceProfile device = deviceWithStore();
  const Schedule tight = solve(weights.graph, device, within(209));
  const Schedule wide = solve(weights.graph, device, within(215));
  ASSERT_TRUE(tight.hasPlan() && wide.hasPlan());
  EXPECT_EQ(tight.away_between_steps.size(), 1U);
  EXPECT_LE(wide.makespan_seconds, tight.makespan_seconds);
  for (const Schedule* one : {&tight, &wide}) {
    EXPECT_EQ(one->status, Status::kFeasible) << "other choices of what is away are not refuted";
    ASSERT_TRUE(one->bound_all);
    EXPECT_DOUBLE_EQ(*one->bound_all, weights.graph.plainSeconds());
  }
}

// Whatever is away: that no other choice keeps it either needs no search.
TEST(Away, ADeadlineBelowThePlainStepIsInfeasible) {
  const FrozenWeights weights;
  SolveOptions options = within(209);
  options.runtime_budget_seconds = 0.5 * weights.graph.plainSeconds();
  const Schedule none = solve(weights.graph, deviceWithStore(), options);
  EXPECT_EQ(none.status, Status::kInfeasible);
  EXPECT_NE(none.message.find("plain training alone takes"), std::string::npos) << none.message;
}

TEST(Away, AStartWithSomethingElseAwayIsNotLost) {
  const FrozenWeights weights;
  const DeviceProfile device = deviceWithStore();
  const Schedule start = solve(weights.graph, device, within(209));
  SolveOptions options = within(215);
  options.away_between_steps = false;
  const Schedule alone = solve(weights.graph, device, options);
  ASSERT_TRUE(start.hasPlan() && alone.hasPlan());
  ASSERT_LT(start.makespan_seconds, alone.makespan_seconds);
  options.starts = {start};
  const Schedule best = solve(weights.graph, device, options);
  EXPECT_DOUBLE_EQ(best.makespan_seconds, start.makespan_seconds);
  EXPECT_EQ(best.start, "given; starts: poet");
}

// The planner pages no value between two writes that belong together; a start may.
TEST(Away, AStartThatThePlannerDoesNotModelIsNotLost) {
  testing::GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId v = g.op("aten::a").reads({x}).seconds(1).notReplayable().makes(100);
  g.op("aten::add_").reads({v}).writes({v}).seconds(1).notReplayable();
  g.op("aten::b").reads({x}).workspace(200).seconds(1).notReplayable().makes(1);
  g.op("aten::add_").reads({v}).writes({v}).seconds(1).notReplayable();
  const Graph graph = g.build();
  SolveOptions options = within(210);
  const Schedule start =
      testing::PlanBuilder(graph).before(2).pageOut(v).free(v).before(3).pageIn(v).build();
  options.starts = {start};
  options.time_limit_seconds = 1;
  const Schedule best = solve(graph, deviceWithStore(), options);
  ASSERT_TRUE(best.hasPlan());
  EXPECT_LE(best.peak_bytes, 210);
}

// A page-out right after the last write is the earliest, and may wake the store once more than a
// later one that goes with another transfer.
TEST(Away, WhereWakingTheStoreCostsNothingIsSaidOfEverySchedule) {
  testing::GraphBuilder g;
  const ValueId x = g.input(100);
  const ValueId a = g.op("aten::a").reads({x}).seconds(1).notReplayable().makes(100);
  const ValueId b = g.op("aten::b").workspace(200).seconds(1).notReplayable().makes(1);
  const ValueId loss = g.op("aten::c").reads({x, a, b}).seconds(1).notReplayable().makes(1);
  g.outlives(loss);
  const Graph graph = g.build();
  DeviceProfile device = deviceWithStore();
  device.wake_joules = 5;
  device.compute_watts = 1;
  SolveOptions options = within(310);
  options.minimize = Objective::kEnergy;
  options.away_between_steps = false;
  const Schedule found = solve(graph, device, options);
  ASSERT_TRUE(found.hasPlan());
  EXPECT_GT(simulate(graph, found, device).page_outs, 0);
  EXPECT_EQ(found.status, Status::kFeasible);
  EXPECT_NE(found.bound_scope, "all");
}

}  // namespace
}  // namespace poet::planner
