// Tiny graphs whose optimum was worked out by hand. The arithmetic stands in front of each: what is
// resident at every op, what no plan can avoid, and a plan that costs no more.
//
// x is an input of 1 byte that outlives the step, m and u are results of 1 byte. "wide" is the op
// in the middle whose workspace makes the peak.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "planner/planner.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"

namespace poet {
namespace {

using testing::GraphBuilder;

// A second of computation costs 2 + 1 J, one in which the step only waits 1 J. No store.
DeviceProfile plainDevice() {
  DeviceProfile device;
  device.name = "paper";
  device.compute_watts = 2;
  device.idle_watts = 1;
  device.generator_state_bytes = 3;
  return device;
}

// Ten bytes take write_seconds to page out and read_seconds to page in. Transfers block.
DeviceProfile storeOfTimes(double write_seconds, double read_seconds) {
  DeviceProfile device = plainDevice();
  device.store_write_rate = 10 / write_seconds;
  device.store_read_rate = 10 / read_seconds;
  return device;
}

struct Question {
  Graph graph;
  DeviceProfile device = plainDevice();
  int64_t budget_bytes = 0;
  Objective minimize = Objective::kTime;
  std::optional<double> deadline_seconds = {};

  Schedule answer() const {
    SolveOptions options;
    options.ram_budget_bytes = budget_bytes;
    options.minimize = minimize;
    options.runtime_budget_seconds = deadline_seconds;
    // A watchdog: all of these take milliseconds, but for those whose transfers overlap, which
    // search as long as they may where no bound proves the plan.
    options.time_limit_seconds = device.dma_channels > 0 ? 1 : 30;
    options.deterministic = true;
    return solve(graph, device, options);
  }
};

// The simulator's figures are the schedule's own, and the budget holds.
SimulationResult simulated(const Question& question, const Schedule& schedule) {
  const SimulationResult result = simulate(question.graph, schedule, question.device);
  EXPECT_EQ(result.peak_bytes, schedule.peak_bytes);
  EXPECT_EQ(result.makespan_seconds, schedule.makespan_seconds);
  EXPECT_EQ(result.energy_joules, schedule.energy_joules);
  EXPECT_LE(result.peak_bytes, question.budget_bytes);
  return result;
}

// Solves and expects a proven plan that costs `extra` more than plain training, in seconds or
// joules.
SimulationResult expectOptimal(const Question& question, double extra) {
  const Schedule schedule = question.answer();
  // A page-out that waits may share a wake-up: that is no choice of the program.
  const bool provable = question.device.wake_joules == 0;
  EXPECT_EQ(schedule.status, provable ? Status::kOptimal : Status::kFeasible) << schedule.message;
  if (!schedule.hasPlan()) return {};
  EXPECT_EQ(schedule.gap, 0.0);
  EXPECT_EQ(schedule.bound_scope, provable ? "all" : "candidates");
  const SimulationResult plain = simulatePlain(question.graph, question.device);
  const bool joules = question.minimize == Objective::kEnergy;
  EXPECT_NEAR(schedule.objectiveValue(),
              (joules ? plain.energy_joules : plain.makespan_seconds) + extra, 1e-9);
  return simulated(question, schedule);
}

void expectInfeasible(const Question& question, int64_t least_bytes, OpId least_op) {
  const Schedule schedule = question.answer();
  EXPECT_EQ(schedule.status, Status::kInfeasible) << schedule.message;
  EXPECT_EQ(schedule.least_ram_budget, least_bytes);
  EXPECT_EQ(schedule.least_ram_op, least_op);
  EXPECT_NE(schedule.message.find(std::to_string(least_bytes)), std::string::npos)
      << schedule.message;
}

// ---- no pressure ------------------------------------------------------------------------------

// a is held until the end (1 + 10 + 10 + 1 = 22 at most), though nothing reads it after g. That
// costs nothing where it fits, and a free costs nothing where it does not.
TEST(WorkedExamples, NothingLeavesWherePlainTrainingFits) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  const ValueId b = g.op("g").reads({a}).seconds(1).makes(10);
  g.outlives(g.op("h").reads({b}).seconds(1).makes(1));
  g.diesAfter(a, OpId(2));
  const Graph graph = g.build();
  for (const int64_t budget : {22, 21}) {
    const Question question{.graph = graph, .budget_bytes = budget};
    expectOptimal(question, 0);
    size_t actions = 0;
    const Schedule schedule = question.answer();
    for (const auto& at : schedule.before) actions += at.size();
    EXPECT_EQ(actions > 0, budget < 22) << budget;
  }
}

// ---- recompute --------------------------------------------------------------------------------

// a waits for the sum while b and c come and go:
//   op      f      g        h          sum
//   plain   x+a    x+a+b    x+a+b+c    x+a+c+d
//   bytes   11     21       31         22
// h must run without a, so f runs twice (1 s) and nothing else does.
TEST(WorkedExamples, ASkipConnectionIsRecomputedAtItsFarEnd) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  const ValueId b = g.op("g").reads({a}).seconds(2).makes(10);
  const ValueId c = g.op("h").reads({b}).seconds(4).makes(10);
  g.outlives(g.op("sum").reads({a, c}).seconds(1).makes(1));
  const SimulationResult result = expectOptimal({.graph = g.build(), .budget_bytes = 30}, 1);
  EXPECT_EQ(result.peak_bytes, 22);
  EXPECT_EQ(result.recomputed_ops, 1);
}

// wide takes x + big + dear + workspace + m = 1 + 20 + 12 + 10 + 1 = 44. Without big 24, without
// dear 32: either will do for 36, and big takes 1 s to make again where dear takes 9. Who frees the
// fewest bytes that suffice pays 9.
TEST(WorkedExamples, OfTwoValuesTheCheapOneGoesThoughItIsLarger) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId big = g.op("cheap").reads({x}).seconds(1).makes(20);
  const ValueId dear = g.op("dear").reads({x}).seconds(9).makes(12);
  const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
  g.outlives(g.op("use").reads({big, dear, m}).seconds(1).makes(1));
  const SimulationResult result = expectOptimal({.graph = g.build(), .budget_bytes = 36}, 1);
  EXPECT_EQ(result.recompute_seconds, 1);
}

// The two are used apart, and cheap (20 bytes, 1 s) must be away while dear (12 bytes, 9 s) is made
// and beside wide: x + dear + workspace + m = 24, of u one more where it lives until the end. The
// last op has x + cheap + n + loss = 23, likewise.
Graph cheapAndDear(bool u_lives) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId cheap = g.op("cheap").reads({x}).seconds(1).makes(20);
  const ValueId u = g.op("first use").reads({cheap}).seconds(1).makes(1);
  const ValueId dear = g.op("dear").reads({x}).seconds(9).makes(12);
  const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
  const ValueId n = g.op("use dear").reads({dear, m}).seconds(1).makes(1);
  auto last = g.op("use cheap").reads({cheap, n}).seconds(1);
  if (u_lives) last.reads({u});
  g.outlives(last.makes(1));
  return g.build();
}

TEST(WorkedExamples, ASmallerBudgetTakesTheDearOneToo) {
  expectOptimal({.graph = cheapAndDear(false), .budget_bytes = 24}, 1);
  expectOptimal({.graph = cheapAndDear(false), .budget_bytes = 23}, 10);
}

// One byte is missing for dear to stay, and u is one byte: from cheap, which comes back anyway, u
// is made again in 1 s. Who counts u as nothing pays the 9 s of dear.
TEST(WorkedExamples, ASingleByteThatIsCheapToMakeAgainSavesADearValue) {
  expectOptimal({.graph = cheapAndDear(true), .budget_bytes = 25}, 1);
  expectOptimal({.graph = cheapAndDear(true), .budget_bytes = 24}, 2);
}

// Forward a1, a2, a3 of 10 bytes, backward in the opposite order. f3 needs x + a2 + a3 = 21, with
// a1 31; b3 needs x + a2 + a3 + g3 = 22 if a2 stays. 22 is met by freeing a1 for f3 and running f1
// again before b1: 1 s.
Graph threeLayers() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a1 = g.op("f1").reads({x}).seconds(1).makes(10);
  const ValueId a2 = g.op("f2").reads({a1}).seconds(1).makes(10);
  const ValueId a3 = g.op("f3").reads({a2}).seconds(1).makes(10);
  const ValueId g3 = g.op("b3").reads({a3}).seconds(1).makes(1);
  const ValueId g2 = g.op("b2").reads({g3, a2}).seconds(1).makes(1);
  g.outlives(g.op("b1").reads({g2, a1}).seconds(1).makes(1));
  return g.build();
}

TEST(WorkedExamples, AUShapeRecomputesItsFirstLayer) {
  const SimulationResult result = expectOptimal({.graph = threeLayers(), .budget_bytes = 22}, 1);
  EXPECT_EQ(result.peak_bytes, 22);
}

// For 21 b3 must run without a2 (x + a3 + g3 = 12), and a2 comes back from a1: x + g3 + a1 + a2 =
// 22. So 22 is the least, and it is b3 or the replay before b2 that needs it.
TEST(WorkedExamples, AUShapeBelowTwoLayersIsInfeasibleAndSaysItsLeastBudget) {
  const Question question{.graph = threeLayers(), .budget_bytes = 21};
  const Schedule schedule = question.answer();
  EXPECT_EQ(schedule.status, Status::kInfeasible);
  EXPECT_EQ(schedule.least_ram_budget, 22);
  EXPECT_TRUE(schedule.least_ram_op == OpId(3) || schedule.least_ram_op == OpId(4));
}

// Four layers: f4 needs a3 and a4 and nothing more fits, so a1 and a2 run again: at least 2 s. a2
// comes back from a1, and a1 may stay for b1: b2 then has x + g3 + g2 + a1 + a2 = 23.
TEST(WorkedExamples, ADeeperUShapeRecomputesAChain) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a1 = g.op("f1").reads({x}).seconds(1).makes(10);
  const ValueId a2 = g.op("f2").reads({a1}).seconds(1).makes(10);
  const ValueId a3 = g.op("f3").reads({a2}).seconds(1).makes(10);
  const ValueId a4 = g.op("f4").reads({a3}).seconds(1).makes(10);
  const ValueId g4 = g.op("b4").reads({a4}).seconds(1).makes(1);
  const ValueId g3 = g.op("b3").reads({g4, a3}).seconds(1).makes(1);
  const ValueId g2 = g.op("b2").reads({g3, a2}).seconds(1).makes(1);
  g.outlives(g.op("b1").reads({g2, a1}).seconds(1).makes(1));
  const Graph graph = g.build();
  expectOptimal({.graph = graph, .budget_bytes = 23}, 2);
  // For 22 a1 cannot stay for b1 and runs a third time.
  expectOptimal({.graph = graph, .budget_bytes = 22}, 3);
}

// a is written in place once (2 s) after it was made (1 s). To have it back both ops must run.
TEST(WorkedExamples, AnInPlaceChainIsReplayedFromItsProducer) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  g.op("relu_").writes({a}).seconds(2);
  const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
  g.outlives(g.op("use").reads({a, m}).seconds(1).makes(1));
  // wide: x + a + workspace + m = 22, without a 12; use: x + a + m + loss = 13.
  const SimulationResult result = expectOptimal({.graph = g.build(), .budget_bytes = 13}, 3);
  EXPECT_EQ(result.recomputed_ops, 2);
}

// split makes p and q, 10 bytes each, in 2 s. wide has x + workspace + m = 17 and leaves 9 of 26,
// for neither. One replay brings both back: 2 s, not 4.
Graph splitAndTwoUses() {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const std::vector<ValueId> pq = g.op("split").reads({x}).seconds(2).makes({10, 10});
  const ValueId m = g.op("wide").reads({x}).workspace(15).seconds(1).makes(1);
  const ValueId u = g.op("use p").reads({pq[0], m}).seconds(1).makes(1);
  g.outlives(g.op("use q").reads({pq[1], u}).seconds(1).makes(1));
  return g.build();
}

TEST(WorkedExamples, OneReplayBringsBackAllOutputs) {
  const SimulationResult result =
      expectOptimal({.graph = splitAndTwoUses(), .budget_bytes = 26}, 2);
  EXPECT_EQ(result.recomputed_ops, 1);
}

// A replay makes all outputs afresh, also those that nobody wants: x + m + p + q = 22 is the least,
// though wide needs 17 and each use 13.
TEST(WorkedExamples, AReplayNeedsRoomForAllOutputs) {
  expectInfeasible({.graph = splitAndTwoUses(), .budget_bytes = 21}, 22, OpId(2));
}

// wide has x + workspace + m = 52 whatever is freed; a comes back for 1 s.
TEST(WorkedExamples, TheWorkspaceSetsTheLeastBudget) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  const ValueId m = g.op("wide").reads({x}).workspace(50).seconds(1).makes(1);
  g.outlives(g.op("use").reads({a, m}).seconds(1).makes(1));
  const Graph graph = g.build();
  expectOptimal({.graph = graph, .budget_bytes = 52}, 1);
  expectInfeasible({.graph = graph, .budget_bytes = 51}, 52, OpId(1));
}

// As above with a random op. To draw the same numbers again its generator's state (3 bytes) stays
// from its first run on: 55.
TEST(WorkedExamples, ARandomOpKeepsTheBytesOfItsGenerator) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("dropout").reads({x}).random().seconds(1).makes(10);
  const ValueId m = g.op("wide").reads({x}).workspace(50).seconds(1).makes(1);
  g.outlives(g.op("use").reads({a, m}).seconds(1).makes(1));
  const Graph graph = g.build();
  const SimulationResult result = expectOptimal({.graph = graph, .budget_bytes = 55}, 1);
  EXPECT_EQ(result.peak_bytes, 55);
  expectInfeasible({.graph = graph, .budget_bytes = 54}, 55, OpId(1));
}

// ---- paging -----------------------------------------------------------------------------------

// x + a + workspace + m = 22 at wide, 12 without a. f takes f_seconds, a transfer each way what the
// device says.
Graph oneValueBesideAWideOp(double f_seconds, bool replayable = true) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  auto f = g.op("f").reads({x}).seconds(f_seconds);
  if (!replayable) f.notReplayable();
  const ValueId a = f.makes(10);
  const ValueId m = g.op("wide").reads({x}).workspace(10).seconds(1).makes(1);
  g.outlives(g.op("use").reads({a, m}).seconds(1).makes(1));
  return g.build();
}

// 2 s out and 1 s in against 1 s and 9 s of recompute.
TEST(WorkedExamples, RecomputeIsChosenWhereItIsCheaperThanPaging) {
  const SimulationResult result = expectOptimal(
      {.graph = oneValueBesideAWideOp(1), .device = storeOfTimes(2, 1), .budget_bytes = 20}, 1);
  EXPECT_EQ(result.page_ins, 0);
}

TEST(WorkedExamples, PagingIsChosenWhereItIsCheaperThanRecompute) {
  const SimulationResult result = expectOptimal(
      {.graph = oneValueBesideAWideOp(9), .device = storeOfTimes(2, 1), .budget_bytes = 20}, 3);
  EXPECT_EQ(result.recomputed_ops, 0);
  EXPECT_EQ(result.page_outs, 1);
}

// f may not run twice: without a store there is no plan, with one it takes 3 s.
TEST(WorkedExamples, SomeValuesOnlyPagingCanBringBack) {
  const Graph graph = oneValueBesideAWideOp(1, false);
  expectInfeasible({.graph = graph, .budget_bytes = 20}, 22, OpId(1));
  expectOptimal({.graph = graph, .device = storeOfTimes(2, 1), .budget_bytes = 20}, 3);
}

// f takes 4 s: recomputed for 4 x 3 = 12 J, or paged for 2 s at 1 + 9 W = 20 J. The plain step
// takes 6 s. With a deadline of 9 s there is no time for f.
TEST(WorkedExamples, ADeadlineForcesPaging) {
  Question question{.graph = oneValueBesideAWideOp(4),
                    .device = storeOfTimes(1, 1),
                    .budget_bytes = 20,
                    .minimize = Objective::kEnergy};
  question.device.store_watts = 9;
  EXPECT_EQ(expectOptimal(question, 12).page_ins, 0);
  question.deadline_seconds = 9;
  const SimulationResult result = expectOptimal(question, 20);
  EXPECT_EQ(result.recomputed_ops, 0);
  EXPECT_DOUBLE_EQ(result.makespan_seconds, 8);
  question.deadline_seconds = 7.9;  // 2 s of transfers do not fit either
  EXPECT_FALSE(question.answer().hasPlan());
}

// w (10 bytes) is read by the first op and written by the last. wide has x + w + h + workspace + m
// = 23, without w 13, and update x + w + m = 12. w cannot be recomputed: out in 2 s, in in 1 s. At
// the end of the step it is resident, in its new version.
TEST(WorkedExamples, AParameterIsPagedOutUntilItsUpdate) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId w = g.parameter(10);
  const ValueId h = g.op("linear").reads({x, w}).seconds(1).makes(1);
  const ValueId m = g.op("wide").reads({h}).workspace(10).seconds(1).makes(1);
  g.op("update").writes({w}).reads({m}).seconds(1).phase(Phase::kOptimizer);
  const Question question{.graph = g.build(), .device = storeOfTimes(2, 1), .budget_bytes = 13};
  const SimulationResult result = expectOptimal(question, 3);
  EXPECT_EQ(result.page_outs, 1);
  EXPECT_EQ(result.page_ins, 1);
}

// One op makes a and b; wide needs both away; they are used one after the other, and both fit from
// then on. The store sleeps and wakes for 100 J a gap between ops. Out together, in together: two
// wake-ups and 4 s of transfers at 1 + 1 W make 208 J; with b coming in at its own use it would be
// 308 J.
TEST(WorkedExamples, TheCostOfWakingTheStoreMergesTransfers) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const std::vector<ValueId> ab =
      g.op("split").reads({x}).notReplayable().seconds(1).makes({10, 10});
  const ValueId m = g.op("wide").reads({x}).workspace(20).seconds(1).makes(1);
  const ValueId u = g.op("use a").reads({ab[0], m}).seconds(1).makes(1);
  g.outlives(g.op("use b").reads({ab[1], u}).seconds(1).makes(1));
  Question question{.graph = g.build(),
                    .device = storeOfTimes(1, 1),
                    .budget_bytes = 24,
                    .minimize = Objective::kEnergy};
  question.device.store_watts = 1;
  question.device.wake_joules = 100;
  EXPECT_EQ(expectOptimal(question, 208).wake_ups, 2);
  // Where only one of them fits beside m and u (x + a + m + u = 13), a third wake-up is due.
  question.budget_bytes = 22;
  EXPECT_EQ(expectOptimal(question, 308).wake_ups, 3);
}

// ---- transfers beside computation ---------------------------------------------------------------

// f (1 s) makes a, which may not be recomputed. h (1 s) does not mind it, wide (1 s) needs it away,
// k (1 s) does not mind it, use (1 s) reads it.
Question aWindowOfOneSecond(double write_seconds, double read_seconds) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("f").reads({x}).notReplayable().seconds(1).makes(10);
  const ValueId h = g.op("h").reads({x}).seconds(1).makes(1);
  const ValueId m = g.op("wide").reads({h}).workspace(10).seconds(1).makes(1);
  const ValueId k = g.op("k").reads({m}).seconds(1).makes(1);
  g.outlives(g.op("use").reads({a, k}).seconds(1).makes(1));
  Question question{
      .graph = g.build(), .device = storeOfTimes(write_seconds, read_seconds), .budget_bytes = 14};
  question.device.dma_channels = 1;
  return question;
}

// Out beside h, in beside k: the step takes its 5 s.
TEST(WorkedExamples, OverlapHidesATransfer) {
  const SimulationResult result = expectOptimal(aWindowOfOneSecond(1, 1), 0);
  EXPECT_DOUBLE_EQ(result.hidden_seconds, 2);
}

// 3 s out from second 1 on, so wide cannot start before second 4; 2 s in from its end at 5 on, so
// use cannot start before 7: 8 s. No bound of the planner's sees that, so it may not be proven.
TEST(WorkedExamples, AWindowThatIsTooShortMakesTheStepWait) {
  const Question question = aWindowOfOneSecond(3, 2);
  const Schedule schedule = question.answer();
  ASSERT_TRUE(schedule.hasPlan());
  const SimulationResult result = simulated(question, schedule);
  EXPECT_DOUBLE_EQ(result.makespan_seconds, 8);
  EXPECT_LE(*schedule.bound, 8);
}

// ---- none of it -------------------------------------------------------------------------------

// With the plain peak as its budget nothing happens, for every objective of time.
TEST(WorkedExamples, WhatFitsIsLeftAlone) {
  for (const Objective minimize : {Objective::kTime, Objective::kEnergy}) {
    const SimulationResult result =
        expectOptimal({.graph = threeLayers(), .budget_bytes = 32, .minimize = minimize}, 0);
    EXPECT_EQ(result.recomputed_ops, 0);
  }
}

}  // namespace
}  // namespace poet
