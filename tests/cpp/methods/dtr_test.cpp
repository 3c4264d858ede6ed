// What DTR's score evicts first: worked by hand from h = cost / (bytes x staleness).
#include <gtest/gtest.h>

#include <set>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

// Ops that a plan runs again.
std::set<int> replayed(const Graph& graph, const char* method, int64_t budget) {
  SolveOptions options;
  options.ram_budget_bytes = budget;
  options.method = method;
  const Schedule schedule = planWith(graph, smallProfile(), options);
  EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
  std::set<int> ops;
  for (const auto& recipe : schedule.recipes) {
    for (const OpId op : recipe) ops.insert(op.index);
  }
  return ops;
}

// a (10 s) and b (1 s) are made, five seconds pass, then 100 bytes are needed; a and b are read
// later. So a has been stale for 6 s and b for 5 s.
Graph twoCandidates(int64_t a_bytes, int64_t b_bytes) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("a").phase(Phase::kForward).reads({x}).seconds(10).makes(a_bytes);
  const ValueId b = g.op("b").phase(Phase::kForward).reads({x}).seconds(1).makes(b_bytes);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(5).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
  const ValueId first = g.op("read_a").phase(Phase::kBackward).reads({a}).seconds(1).makes(1);
  g.op("read_b").phase(Phase::kBackward).reads({b, first}).seconds(1).makes(1);
  return g.build();
}

TEST(Dtr, EvictsTheLeastCostForBytesAndStaleness) {
  for (const char* method : {"dtr", "dtr_eq", "dtr_local"}) {
    SCOPED_TRACE(method);
    // h(a) = 10 / (20 * 6) = 0.083, h(b) = 1 / (20 * 5) = 0.01.
    EXPECT_EQ(replayed(twoCandidates(20, 20), method, 125), (std::set<int>{1}));
    // h(a) = 10 / (400 * 6) = 0.0042, h(b) = 1 / (20 * 5) = 0.01.
    EXPECT_EQ(replayed(twoCandidates(400, 20), method, 425), (std::set<int>{0}));
  }
}

// a -> b -> c, d apart; b is evicted first. Bringing c back would then need b too: its own cost
// says c, its neighbourhood's says d.
Graph neighbourhood() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto forward = [&](const char* name, ValueId from, double seconds, int64_t bytes) {
    return g.op(name).phase(Phase::kForward).reads({from}).seconds(seconds).makes(bytes);
  };
  const ValueId b = forward("b", x, 5, 40);
  const ValueId c = forward("c", b, 3, 20);
  const ValueId d = forward("d", x, 4, 20);
  const ValueId wait = forward("wait", x, 1000, 1);
  forward("large", wait, 1, 100);   // b goes: 5 / 40 is below 3 / 20 and 4 / 20
  forward("larger", wait, 1, 120);  // one of c and d goes
  ValueId gradient = wait;
  for (const ValueId v : {d, c, b})
    gradient = g.op("read").phase(Phase::kBackward).reads({v, gradient}).seconds(1).makes(1);
  return g.build();
}

TEST(Dtr, CountsWhatMustComeBackWithAValue) {
  const Graph graph = neighbourhood();
  // After "large" b is away. At "larger": c alone costs 3 and d 4; with b around it c costs 8.
  EXPECT_EQ(replayed(graph, "dtr_local", 143), (std::set<int>{0, 1}));
  EXPECT_EQ(replayed(graph, "dtr", 143), (std::set<int>{0, 2}));
  EXPECT_EQ(replayed(graph, "dtr_eq", 143), (std::set<int>{0, 2}));
}

}  // namespace
}  // namespace poet::testing
