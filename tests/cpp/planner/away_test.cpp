// What may stay in the store between steps, and how much of it does.
#include "planner/away.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/random_graph.h"
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

TEST(Away, OnlyWhatTheStepGetsAndKeepsLargestFirst) {
  int some = 0;
  for (int i = 0; i < testing::propertyCases(50); ++i) {
    SCOPED_TRACE(i);
    const Graph graph = testing::randomGraph(91000 + static_cast<uint64_t>(i));
    SolveOptions options;
    options.paging = options.away_between_steps = options.parameters_away = true;
    const std::vector<ValueId> found = mayBeAway(graph, deviceWithStore(), options);
    for (const ValueId v : found) {
      EXPECT_EQ(graph.value(v).producer, kNoOp);
      EXPECT_TRUE(graph.value(v).evictable);
      EXPECT_EQ(graph.value(v).death, graph.endOfStep());
    }
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end(), [&](ValueId a, ValueId b) {
      return graph.value(a).bytes > graph.value(b).bytes;
    }));
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
    const Graph random = testing::randomGraph(92000 + static_cast<uint64_t>(i));
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

}  // namespace
}  // namespace poet::planner
