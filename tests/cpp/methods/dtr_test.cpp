// What DTR's score evicts first: worked by hand from h = cost / (bytes x staleness).
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "methods/dtr_score.h"
#include "methods/method.h"
#include "methods/step_that_tells_scores_apart.h"
#include "methods/training_chain.h"
#include "schedule/simulator.h"
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

// A random graph of values, each with a recipe of its own.
struct RandomValues {
  std::vector<double> seconds;
  std::vector<std::vector<int>> inputs, dependents;

  RandomValues(std::mt19937_64& random, int count)
      : inputs(static_cast<size_t>(count)), dependents(static_cast<size_t>(count)) {
    for (int v = 0; v < count; ++v) {
      seconds.push_back(static_cast<double>(1 + random() % 9));
      for (int k = 0; v > 0 && k < 3; ++k)
        read(v, static_cast<int>(random() % static_cast<uint64_t>(v)));
    }
  }
  void read(int v, int u) {
    inputs[static_cast<size_t>(v)].push_back(u);
    dependents[static_cast<size_t>(u)].push_back(v);
  }
  double secondsOf(int v) const { return seconds[static_cast<size_t>(v)]; }
  template <class Visit>
  void forInputs(int v, const Visit& visit) const {
    for (const int u : inputs[static_cast<size_t>(v)]) visit(u);
  }
  template <class Visit>
  void forDependents(int v, const Visit& visit) const {
    for (const int u : dependents[static_cast<size_t>(v)]) visit(u);
  }
};

// Sums that are kept are those that fresh ones come to, whatever has left, come back or changed.
TEST(DtrScores, CountTheNeighbourhoodAsItIs) {
  constexpr int kValues = 30;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    RandomValues values(random, kValues);
    methods::DtrScores<RandomValues> kept(values, methods::DtrCost::kNeighbourhood);
    kept.resize(kValues);
    std::vector<bool> evicted(kValues);
    for (int event = 0; event < 200; ++event) {
      const auto v = random() % kValues;
      const int number = static_cast<int>(v);
      if (random() % 8 == 0) {  // written in place: by more seconds, and by what is there
        const auto u = random() % kValues;
        if (!evicted[v] && !evicted[u] && u < v) {
          values.seconds[v] += 1;
          values.read(number, static_cast<int>(u));
          kept.noteChange(number);
        }
      } else if (evicted[v]) {
        kept.noteReturn(number);
        evicted[v] = false;
      } else {
        kept.noteEviction(number);
        evicted[v] = true;
      }
      methods::DtrScores<RandomValues> fresh(values, methods::DtrCost::kNeighbourhood);
      fresh.resize(kValues);
      for (int w = 0; w < kValues; ++w) {
        if (evicted[static_cast<size_t>(w)]) fresh.noteEviction(w);
      }
      for (int w = 0; w < kValues; ++w) ASSERT_EQ(kept.costOf(w), fresh.costOf(w)) << seed;
    }
  }
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

TEST(Dtr, EachScoreEvictsAnotherValue) {
  const Graph graph = stepThatTellsScoresApart();
  const int64_t budget = kBudgetThatTellsScoresApart;
  EXPECT_EQ(replayed(graph, "dtr_local", budget), (std::set<int>{0, 1, 2, 3, 4}));
  EXPECT_EQ(replayed(graph, "dtr", budget), (std::set<int>{0, 1, 3, 4, 5}));
  EXPECT_EQ(replayed(graph, "dtr_eq", budget), (std::set<int>{0, 1, 3, 4, 6}));
}

// t is for u alone, and dead from there on; w takes longer than both.
Graph deadInput() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId t = g.op("t").phase(Phase::kForward).reads({x}).seconds(1).makes(30);
  const ValueId u = g.op("u").phase(Phase::kForward).reads({t}).seconds(1).makes(20);
  const ValueId w = g.op("w").phase(Phase::kForward).reads({x}).seconds(50).makes(20);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(5).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
  const ValueId first = g.op("read_w").phase(Phase::kBackward).reads({w}).seconds(1).makes(1);
  g.op("read_u").phase(Phase::kBackward).reads({u, first}).seconds(1).makes(1);
  return g.build();
}

// Kirisame et al. 2021, on deallocation: what is banished is gone for good, so what was made from
// it may not go any more.
TEST(Dtr, BanishesWhatIsDeadAndPinsWhatWasMadeFromIt) {
  EXPECT_EQ(replayed(deadInput(), "dtr", 125), (std::set<int>{0, 1}));
  EXPECT_EQ(replayed(deadInput(), "dtr_banish", 125), (std::set<int>{2}));
}

// u goes at "large", before t dies at "late".
Graph deadWhileNeeded() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId t = g.op("t").phase(Phase::kForward).reads({x}).seconds(5).makes(30);
  const ValueId u = g.op("u").phase(Phase::kForward).reads({t}).seconds(1).makes(20);
  g.op("wait").phase(Phase::kForward).reads({x}).seconds(5).makes(1);
  g.op("large").phase(Phase::kForward).reads({x}).seconds(1).makes(100);
  const ValueId late = g.op("late").phase(Phase::kForward).reads({t}).seconds(1).makes(1);
  g.op("read_u").phase(Phase::kBackward).reads({u, late}).seconds(1).makes(1);
  return g.build();
}

TEST(Dtr, BanishesNothingThatAnEvictedValueNeeds) {
  EXPECT_EQ(replayed(deadWhileNeeded(), "dtr", 135), (std::set<int>{0, 1}));
  EXPECT_EQ(replayed(deadWhileNeeded(), "dtr_banish", 135), (std::set<int>{1}));
}

// The authors' chain: n forward ops, each of the one before, then n gradients, each of the one
// before and a value, the first and the last of none; all take 1,000 bytes and a second.
Graph chainWithGradients(int n) {
  GraphBuilder g;
  std::vector<ValueId> made = {g.input(1)};
  const auto op = [&](Phase phase, const std::vector<ValueId>& reads) {
    return g.op("op").phase(phase).reads(reads).seconds(1).makes(1000);
  };
  for (int i = 0; i < n; ++i) made.push_back(op(Phase::kForward, {made.back()}));
  ValueId gradient = op(Phase::kBackward, {made[0]});
  for (int i = n - 2; i > 0; --i)
    gradient = op(Phase::kBackward, {made[static_cast<size_t>(i)], gradient});
  op(Phase::kBackward, {gradient});
  return g.build();
}

// The authors' simulator replays 7, 3, 2 and 1 of them; it counts what nothing reads any more.
TEST(Dtr, WhatAnOpReadsStaysWhileTheRestOfItComesBack) {
  const std::vector<size_t> most = {7, 3, 2, 1};
  for (size_t i = 0; i < most.size(); ++i) {
    SolveOptions options;
    options.ram_budget_bytes = static_cast<int64_t>(4 + i) * 1000 + 1;
    options.method = "dtr_local";
    const Graph graph = chainWithGradients(8);
    const Schedule schedule = planWith(graph, smallProfile(), options);
    ASSERT_TRUE(schedule.hasPlan()) << options.ram_budget_bytes << ": " << schedule.message;
    const int64_t replays = simulate(graph, schedule, smallProfile()).recomputed_ops;
    EXPECT_GE(replays, 1);
    EXPECT_LE(replays, static_cast<int64_t>(most[i])) << options.ram_budget_bytes;
  }
}

// Replays of n links of one size and one second each, within 2 sqrt(n) values and one at work.
int64_t replaysInRootMemory(const char* method, int n) {
  const Graph graph = uniformChain(n, 1000, 0);
  SolveOptions options;
  options.ram_budget_bytes = (2 * std::lround(std::sqrt(n)) + 1) * 1000;
  options.method = method;
  const Schedule schedule = planWith(graph, smallProfile(), options);
  EXPECT_TRUE(schedule.hasPlan()) << schedule.message;
  return simulate(graph, schedule, smallProfile()).recomputed_ops;
}

// Kirisame et al. 2021, abstract: O(n).
TEST(Dtr, ReplaysNoMoreThanAllLinksInTheMemoryOfASquareRoot) {
  for (const char* method : {"dtr", "dtr_eq"}) {
    for (const int n : {16, 36, 64, 100, 256, 400}) {
      SCOPED_TRACE(::testing::Message() << method << ", " << n << " links");
      const int64_t replays = replaysInRootMemory(method, n);
      EXPECT_LE(replays, n);
      EXPECT_GE(replays, n / 2) << "it has to act";
    }
  }
}

// Without evicted neighbourhoods in the score what a value drags along is not seen.
TEST(Dtr, ItsLocalScoreReplaysMoreThanLinearly) {
  const int few = 64, many = 400;
  EXPECT_GT(replaysInRootMemory("dtr_local", many) * few,
            2 * replaysInRootMemory("dtr_local", few) * many);
}

}  // namespace
}  // namespace poet::testing
