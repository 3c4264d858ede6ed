// What Coop's policy evicts: windows of neighbours, worked by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "planner/small_random_graph.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using Ops = std::set<int>;

Schedule planned(const Graph& graph, const char* method, int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = method;
  Schedule schedule = planWith(graph, smallProfile(), options);
  EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
  return schedule;
}

// Ops that a plan runs again.
Ops replayed(const Schedule& schedule) {
  Ops ops;
  for (const auto& recipe : schedule.recipes) {
    for (const OpId op : recipe) ops.insert(op.index);
  }
  return ops;
}

struct Forward {
  double seconds;
  int64_t bytes;
};

// Ops 0, 1, ... make one value each; `wait` seconds pass; then an op needs so many bytes for its
// output, or beside it; then everything is read. The input's one byte lies outside the policy's
// memory.
Graph forwardsThenLarge(const std::vector<Forward>& forwards, double wait, int64_t bytes,
                        int64_t workspace = 0) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  std::vector<ValueId> made;
  for (const Forward& f : forwards)
    made.push_back(g.op("f").phase(Phase::kForward).reads({x}).seconds(f.seconds).makes(f.bytes));
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(wait).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).workspace(workspace).makes(bytes);
  ValueId gradient = x;
  for (const ValueId v : made)
    gradient = g.op("read").phase(Phase::kBackward).reads({v, gradient}).seconds(1).makes(1);
  return g.build();
}

// Three neighbours of 20 bytes, 5 bytes free behind them, and 40 wanted. The cheapest two, the
// first and the last, make no place of 40 bytes: the second goes with the first, which has been
// stale for longer than the last.
TEST(Coop, EvictsNeighbours) {
  for (const auto& [bytes, workspace] : {std::pair{40, 0}, std::pair{1, 40}}) {
    SCOPED_TRACE(workspace);
    const Graph graph = forwardsThenLarge({{1, 20}, {1.5, 20}, {1, 20}}, 1000, bytes, workspace);
    EXPECT_EQ(replayed(planned(graph, "coop", 66)), (Ops{0, 1}));
    EXPECT_EQ(replayed(planned(graph, "dtr_eq", 66)), (Ops{0, 2}));
  }
}

// Of 65 bytes, 40 are asked for and given, one block of 20 stays: 5 are free.
TEST(Coop, TellsTheFragmentation) {
  const Graph graph = forwardsThenLarge({{1, 20}, {1.5, 20}, {1, 20}}, 1000, 40);
  EXPECT_THAT(planned(graph, "coop", 66).message, HasSubstr("7.7 % at worst"));
  EXPECT_EQ(planned(graph, "coop", 200).message, "") << "nothing is evicted";
}

// In running order: dear, cheap, dear, cheap, 20 bytes each. Cheap ones lie at one end, dear ones
// at the other, so 40 bytes are had without a dear one.
TEST(Coop, KeepsCheapAndDearValuesApart) {
  const Graph graph = forwardsThenLarge({{10, 20}, {1, 20}, {10, 20}, {1, 20}}, 10, 40);
  EXPECT_EQ(replayed(planned(graph, "coop", 82)), (Ops{1, 3}));
}

// a, t, b, c lie side by side, t goes, and 60 bytes are wanted: the hole between a and b counts.
TEST(Coop, CountsWhatIsFreeBetween) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto forward = [&](double seconds) {
    return g.op("f").phase(Phase::kForward).reads({x}).seconds(seconds).makes(20);
  };
  const ValueId a = forward(1), t = forward(1), b = forward(1), c = forward(5);
  g.op("last_of_t").phase(Phase::kForward).reads({t}).seconds(1000).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(60);
  ValueId gradient = x;
  for (const ValueId v : {c, b, a})
    gradient = g.op("read").phase(Phase::kBackward).reads({v, gradient}).seconds(1).makes(1);
  const Schedule schedule = planned(g.build(), "coop", 83);
  EXPECT_EQ(replayed(schedule), (Ops{0, 2}));
  EXPECT_THAT(schedule.message, HasSubstr("2.4 % at worst"));
}

// What may not leave is made between two values that may, and lies at the other end all the same.
TEST(Coop, KeepsWhatMayNotLeaveOutOfTheWay) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto forward = [&](const char* name, double seconds) {
    return g.op(name).phase(Phase::kForward).reads({x}).seconds(seconds);
  };
  const ValueId a = forward("a", 1).makes(20);
  const ValueId stays = forward("stays", 1).notReplayable().makes(20);
  const ValueId b = forward("b", 1).makes(20);
  forward("dear", 1000).makes(1);
  forward("large", 1).makes(40);
  g.op("read").phase(Phase::kBackward).reads({a, stays, b}).seconds(1).makes(1);
  EXPECT_EQ(replayed(planned(g.build(), "coop", 64)), (Ops{0, 2}));
}

// A gradient is the cheapest value there is when 20 bytes are wanted, and everything wants it at
// the end: it stays, and dtr, which drops it, makes it again then.
TEST(Coop, KeepsWhatOutlivesTheStep) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("a").phase(Phase::kForward).reads({x}).seconds(50).makes(20);
  g.outlives(g.op("gradient")
                 .phase(Phase::kBackward)
                 .reads({x})
                 .seconds(1)
                 .makes(20, ValueKind::kGradient));
  g.op("wait").phase(Phase::kBackward).reads({x}).seconds(1000).makes(1);
  g.op("large").phase(Phase::kBackward).reads({x}).seconds(1).makes(20);
  g.op("read").phase(Phase::kBackward).reads({a}).seconds(1).makes(1);
  const Graph graph = g.build();
  EXPECT_EQ(replayed(planned(graph, "coop", 42)), (Ops{0}));
  EXPECT_EQ(replayed(planned(graph, "dtr_placed", 42)), (Ops{0}));
  EXPECT_EQ(replayed(planned(graph, "dtr_eq", 42)), (Ops{1}));
}

// As in EvictsNeighbours, and the cheapest two make no place: DTR evicts the third as well.
TEST(Coop, DtrInTheSameMemoryEvictsUntilThereIsAPlace) {
  const Graph graph = forwardsThenLarge({{1, 20}, {1.5, 20}, {1, 20}}, 1000, 40);
  const Schedule schedule = planned(graph, "dtr_placed", 66);
  EXPECT_EQ(replayed(schedule), (Ops{0, 1, 2}));
  EXPECT_THAT(schedule.message, HasSubstr("38.5 % at worst"));
}

// Two holes of 20 bytes beside what is being read, and 40 are wanted: no window. With more memory
// there is a place, and the plan needs no more than the budget.
TEST(Coop, PlansWithMoreMemoryWhereHolesMakeItFail) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto forward = [&](double seconds, int64_t bytes) {
    return g.op("f").phase(Phase::kForward).reads({x}).seconds(seconds).makes(bytes);
  };
  const ValueId a = forward(1, 20), t = forward(1, 20), b = forward(1, 20);
  g.op("last_of_t").phase(Phase::kForward).reads({t}).seconds(1000).makes(1);
  g.op("large").phase(Phase::kForward).reads({a, b}).seconds(1).makes(40);
  const Schedule schedule = planned(g.build(), "coop", 81);
  EXPECT_EQ(replayed(schedule), Ops{});
  EXPECT_EQ(schedule.peak_bytes, 81);
  EXPECT_EQ(schedule.message, "");
}

// Some plans are come to in this way alone; the least budget that is told does.
TEST(Coop, LaysInPiecesWhatNoMemoryHasAPlaceFor) {
  int in_pieces = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    const Graph graph = smallRandomGraph(seed);
    SolveOptions options;
    options.ram_budget_bytes = 1;
    options.method = "coop";
    options.ram_budget_bytes = planWith(graph, smallProfile(), options).least_ram_budget.value();
    const Schedule schedule = planned(graph, "coop", options.ram_budget_bytes);
    EXPECT_EQ(schedule.peak_bytes, options.ram_budget_bytes);
    in_pieces += schedule.message.find("times in pieces") != std::string::npos;
  }
  EXPECT_GT(in_pieces, 0);
}

}  // namespace
}  // namespace poet::testing
