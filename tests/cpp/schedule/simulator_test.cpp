#include "schedule/simulator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Round figures, so that results can be worked out by hand.
DeviceProfile profile() {
  DeviceProfile device;
  device.name = "test";
  device.compute_watts = 10;
  device.idle_watts = 2;
  device.memory_watts = 1;
  device.replay_factor = 1.5;
  device.replay_fixed_seconds = 0.25;
  device.generator_state_bytes = 1000;
  return device;
}

template <class Matcher>
void expectStepRefused(const Graph& graph, const Schedule& schedule, const Matcher& says) {
  EXPECT_THAT([&] { simulate(graph, schedule, profile()); }, ThrowsMessage<ScheduleError>(says));
}

// base 1, x 8 | relu: a 100 | f: b 50, workspace 7 | g: c 20 | h(c, a): loss 4
struct Chain {
  Chain() {
    g.base(1);
    x = g.input(8);
    a = g.op("relu").reads({x}).seconds(1).makes(100);
    b = g.op("f").reads({a}).seconds(2).workspace(7).makes(50);
    c = g.op("g").reads({b}).seconds(4).makes(20);
    loss = g.op("h").reads({c, a}).seconds(8).makes(4);
    g.outlives(loss);
  }
  GraphBuilder g;
  ValueId x, a, b, c, loss;
};

// ---- bytes, seconds, joules -------------------------------------------------------------------

TEST(Simulator, CountsThePlainStep) {
  const SimulationResult result = simulatePlain(Chain().g.build(), profile());
  EXPECT_THAT(result.resident_bytes, ElementsAre(109, 166, 179, 133));
  EXPECT_EQ(result.peak_bytes, 179);
  EXPECT_EQ(result.peak_op, OpId(2));
  EXPECT_DOUBLE_EQ(result.makespan_seconds, 15);
  EXPECT_DOUBLE_EQ(result.energy_joules, 15 * 13);
  EXPECT_EQ(result.recomputed_ops, 0);
  EXPECT_EQ(result.recompute_seconds, 0);
}

TEST(Simulator, AnEmptyPlanIsThePlainStep) {
  const Graph graph = Chain().g.build();
  EXPECT_EQ(simulate(graph, PlanBuilder(graph).build(), profile()).resident_bytes,
            simulatePlain(graph, profile()).resident_bytes);
  EXPECT_EQ(simulate(graph, Schedule{}, profile()).peak_bytes, 179);
}

TEST(Simulator, AFreedValueIsAwayUntilItIsRecomputed) {
  const Chain chain;
  const Graph graph = chain.g.build();
  const auto schedule = PlanBuilder(graph).before(2).free(chain.a).before(3).recompute({0}).build();
  const SimulationResult result = simulate(graph, schedule, profile());
  EXPECT_THAT(result.resident_bytes, ElementsAre(109, 166, 79, 133));
  EXPECT_EQ(result.peak_bytes, 166);
  EXPECT_EQ(result.peak_op, OpId(1));
  EXPECT_DOUBLE_EQ(result.recompute_seconds, 1.75);
  EXPECT_DOUBLE_EQ(result.makespan_seconds, 16.75);
  EXPECT_DOUBLE_EQ(result.energy_joules, 16.75 * 13);
  EXPECT_EQ(result.recomputed_ops, 1);
}

TEST(Simulator, ARecomputeCanBeThePeakAndIsNamedAfterTheOpThatFollows) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const auto made = g.op("two").reads({x}).workspace(30).makes({10, 100});
  const ValueId b = g.op("f").reads({made[1]}).makes(60);
  g.op("h").reads({made[0], b}).makes(1);
  const Graph graph = g.build();
  // op 0: 1 + 110 + 30. op 1: 1 + 110 + 60. made[1] dies with op 1. Before op 2: 1 + 60 + (110 +
  // 30).
  const auto schedule = PlanBuilder(graph).before(2).free(made[0]).recompute({0}).build();
  const SimulationResult result = simulate(graph, schedule, profile());
  EXPECT_EQ(result.peak_bytes, 201);
  EXPECT_EQ(result.peak_op, OpId(2));
  // made[1] came back after its last showing: it is retained.
  EXPECT_THAT(result.resident_bytes, ElementsAre(141, 171, 172));
}

TEST(Simulator, AnOutputThatIsResidentCountsTwiceWhileItsRecomputeRuns) {
  const Chain chain;
  const Graph graph = chain.g.build();
  const auto schedule = PlanBuilder(graph).before(3).recompute({0}).build();
  const SimulationResult result = simulate(graph, schedule, profile());
  EXPECT_EQ(result.peak_bytes, 1 + 8 + 100 + 20 + 100);
  EXPECT_EQ(result.peak_op, OpId(3));
  EXPECT_EQ(result.resident_bytes[3], 133) << "the second copy is dropped";
}

TEST(Simulator, AChainCountsItsLargestWorkspaceAndAllItsSeconds) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("conv").reads({x}).seconds(4).workspace(5).makes(100);
  g.op("bias_").writes({a}).seconds(2).workspace(50);
  g.op("other").reads({a}).makes(1);
  g.op("sum").reads({a}).makes(1);
  const Graph graph = g.build();
  const auto schedule = PlanBuilder(graph).before(3).free(a).recompute({0, 1}).build();
  const SimulationResult result = simulate(graph, schedule, profile());
  EXPECT_EQ(result.peak_bytes, 1 + 100 + 50);
  EXPECT_EQ(result.peak_op, OpId(1)) << "the first of two equal peaks";
  EXPECT_DOUBLE_EQ(result.recompute_seconds, 1.5 * 6 + 2 * 0.25);
  EXPECT_EQ(result.recomputed_ops, 2);
}

TEST(Simulator, ARandomOpThatIsReplayedKeepsItsGeneratorFromItsFirstRunToTheEnd) {
  GraphBuilder g;
  const ValueId x = g.input(1);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  const ValueId b = g.op("dropout").reads({a}).random().makes(10);
  g.op("dropout").reads({a}).random().makes(10);
  g.op("sum").reads({b}).makes(1);
  g.op("sum").reads({b}).makes(1);
  g.outlives(a);
  const Graph graph = g.build();
  const auto plain = simulatePlain(graph, profile()).resident_bytes;
  const auto twice =
      PlanBuilder(graph).before(3).free(b).recompute({1}).before(4).free(b).recompute({1}).build();
  EXPECT_THAT(
      simulate(graph, twice, profile()).resident_bytes,
      ElementsAre(plain[0], plain[1] + 1000, plain[2] + 1000, plain[3] + 1000, plain[4] + 1000));
  Schedule unused = PlanBuilder(graph).build();
  unused.recipes = {{OpId(1)}};
  EXPECT_EQ(simulate(graph, unused, profile()).resident_bytes, plain)
      << "no action runs that recipe";
}

TEST(Simulator, AValueFromOutsideIsThereFromTheStartToItsDeath) {
  GraphBuilder g;
  const ValueId early = g.input(100);
  const ValueId never = g.input(7);
  const ValueId x = g.input(10);
  g.op("a").reads({early, x}).makes(1);
  g.op("b").reads({x}).makes(1);
  g.op("c").reads({x}).makes(1);
  g.diesAfter(early, OpId(1));
  g.diesAfter(never, kNoOp);
  EXPECT_THAT(simulatePlain(g.build(), profile()).resident_bytes, ElementsAre(111, 111, 11));
}

TEST(Simulator, AnEmptyStepHoldsWhatIsThere) {
  GraphBuilder g;
  g.base(3);
  g.input(5);
  const SimulationResult result = simulatePlain(g.build(), profile());
  EXPECT_EQ(result.peak_bytes, 8);
  EXPECT_EQ(result.peak_op, OpId(0));
  EXPECT_EQ(result.makespan_seconds, 0);
}

TEST(Simulator, FinalizeWritesTheFigures) {
  const Chain chain;
  const Graph graph = chain.g.build();
  Schedule schedule = PlanBuilder(graph).before(2).free(chain.a).before(3).recompute({0}).build();
  finalize(graph, profile(), schedule);
  EXPECT_EQ(schedule.peak_bytes, 166);
  EXPECT_EQ(schedule.peak_op, OpId(1));
  EXPECT_DOUBLE_EQ(schedule.makespan_seconds, 16.75);
  EXPECT_DOUBLE_EQ(schedule.energy_joules, 16.75 * 13);
  schedule.objective = Objective::kMemory;
  EXPECT_EQ(schedule.objectiveValue(), 166);
  schedule.objective = Objective::kTime;
  EXPECT_EQ(schedule.objectiveValue(), 16.75);
  schedule.objective = Objective::kEnergy;
  EXPECT_EQ(schedule.objectiveValue(), schedule.energy_joules);
}

// ---- lifetimes and retention ------------------------------------------------------------------

// a dies with op 1; b, c and d only fill the time.
struct Lifetimes {
  Lifetimes() {
    x = g.input(1);
    a = g.op("a").reads({x}).makes(100);
    b = g.op("b").reads({a}).makes(10);
    c = g.op("c").reads({b}).makes(10);
    d = g.op("d").reads({b}).makes(10);
  }
  GraphBuilder g;
  ValueId x, a, b, c, d;
};

TEST(Simulator, ANaturalDeathAfterAnOpIsThereUntilTheNextOne) {
  const Lifetimes l;
  const Graph graph = l.g.build();
  EXPECT_NO_THROW(simulate(graph, PlanBuilder(graph).after(1).recompute({1}).build(), profile()))
      << "a, which op 1 reads, is still there right after op 1";
  expectStepRefused(graph, PlanBuilder(graph).before(2).recompute({1}).build(),
                    AllOf(HasSubstr("before op 2 (c)"),
                          HasSubstr("recompute of op 1 (b) needs value 1 in version 0"),
                          HasSubstr("which died before op 2 (c)")));
}

TEST(Simulator, ARetainedValueSurvivesItsNaturalDeathUntilItIsFreed) {
  const Lifetimes l;
  const Graph graph = l.g.build();
  const auto kept = PlanBuilder(graph).after(1).retain(l.a).build();
  EXPECT_THAT(simulate(graph, kept, profile()).resident_bytes, ElementsAre(101, 111, 121, 121));
  const auto freed = PlanBuilder(graph).after(1).retain(l.a).before(3).free(l.a).build();
  EXPECT_THAT(simulate(graph, freed, profile()).resident_bytes, ElementsAre(101, 111, 121, 21));
}

TEST(Simulator, ARecomputeAfterTheLastShowingRetains) {
  Lifetimes l;
  l.g.diesAfter(l.a, OpId(2));  // plain training holds it a little longer
  const Graph graph = l.g.build();
  const auto dead = PlanBuilder(graph).before(3).recompute({0}).build();
  EXPECT_EQ(simulate(graph, dead, profile()).resident_bytes[3], 121);
  const auto between = PlanBuilder(graph).before(2).free(l.a).recompute({0}).build();
  EXPECT_EQ(simulate(graph, between, profile()).resident_bytes[3], 121)
      << "it no longer dies on its own";
  const auto right_after = PlanBuilder(graph).after(1).free(l.a).recompute({0}).build();
  EXPECT_EQ(simulate(graph, right_after, profile()).resident_bytes[3], 121);
  const auto before = PlanBuilder(graph).before(1).free(l.a).recompute({0}).build();
  EXPECT_EQ(simulate(graph, before, profile()).resident_bytes[3], 21)
      << "before the last showing nothing is retained";
}

TEST(Simulator, AFreeEndsRetention) {
  const Lifetimes l;
  const Graph graph = l.g.build();
  const auto schedule = PlanBuilder(graph).after(1).retain(l.a).free(l.a).build();
  EXPECT_EQ(simulate(graph, schedule, profile()).resident_bytes[2], 21);
}

TEST(Simulator, AnEarlyFreeOfADyingValueIsFineWithoutRecompute) {
  Lifetimes l;
  l.g.diesAfter(l.a, OpId(3));
  const Graph graph = l.g.build();
  EXPECT_EQ(
      simulate(graph, PlanBuilder(graph).before(2).free(l.a).build(), profile()).resident_bytes[2],
      21);
}

// ---- versions ---------------------------------------------------------------------------------

TEST(Simulator, AWriteToAnInputMakesTheRecomputeStale) {
  GraphBuilder g;
  const ValueId p = g.parameter(8);
  const ValueId a = g.op("relu").reads({p}).makes(10);
  g.op("sum").reads({a}).makes(1);
  g.op("step_").writes({p});
  g.op("sum").reads({a}).makes(1);
  const Graph graph = g.build();
  EXPECT_NO_THROW(
      simulate(graph, PlanBuilder(graph).before(2).free(a).recompute({0}).build(), profile()));
  expectStepRefused(graph, PlanBuilder(graph).before(2).free(a).before(3).recompute({0}).build(),
                    AllOf(HasSubstr("before op 3 (sum)"), HasSubstr("recompute of op 0 (relu)"),
                          HasSubstr("needs value 0 in version 0 and finds version 1")));
}

TEST(Simulator, AChainThatLeavesOutAWriterIsStale) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("conv").reads({x}).makes(10);
  g.op("bias_").writes({a});
  g.op("relu_").writes({a});
  g.op("sum").reads({a}).makes(1);
  const Graph graph = g.build();
  EXPECT_NO_THROW(simulate(graph, PlanBuilder(graph).before(3).free(a).recompute({0, 1, 2}).build(),
                           profile()));
  expectStepRefused(graph, PlanBuilder(graph).before(3).free(a).recompute({0, 1}).build(),
                    AllOf(HasSubstr("yields value 1 in version 1"), HasSubstr("its version is 2")));
  expectStepRefused(graph, PlanBuilder(graph).before(3).free(a).recompute({0}).build(),
                    HasSubstr("in version 0"));
  expectStepRefused(
      graph, PlanBuilder(graph).before(3).free(a).recompute({0, 2}).build(),
      AllOf(HasSubstr("op 2 (relu_) needs value 1 in version 1 and finds version 0")));
  expectStepRefused(graph, PlanBuilder(graph).before(3).recompute({0}).build(),
                    HasSubstr("leaves out a write"));
}

TEST(Simulator, AValueComesBackInItsLastVersionAlone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("conv").reads({x}).makes(10);
  const ValueId b = g.op("wide").reads({x}).makes(10);
  g.op("add_").writes({a}).reads({b});
  g.outlives(g.op("sum").reads({a, b}).makes(1));
  const Graph graph = g.build();
  EXPECT_NO_THROW(
      simulate(graph, PlanBuilder(graph).before(3).free(a).recompute({0, 2}).build(), profile()));
  expectStepRefused(graph, PlanBuilder(graph).before(1).free(a).before(2).recompute({0}).build(),
                    AllOf(HasSubstr("before op 2 (add_)"), HasSubstr("recompute of op 0 (conv)"),
                          HasSubstr("still to be written by op 2 (add_)")));
  expectStepRefused(graph, PlanBuilder(graph).before(2).recompute({0}).build(),
                    HasSubstr("still to be written"));
}

TEST(Simulator, EachChainOpFindsOutsideInputsAsItReadThem) {
  GraphBuilder
      g;  // a = conv(x); y changes; a += y: the chain reads x in version 0 and y in version 1
  const ValueId x = g.input(8);
  const ValueId y = g.input(8);
  const ValueId a = g.op("conv").reads({x}).makes(10);
  g.op("mul_").writes({y});
  g.op("add_").writes({a}).reads({y});
  g.op("sum").reads({a}).makes(1);
  const Graph graph = g.build();
  EXPECT_NO_THROW(
      simulate(graph, PlanBuilder(graph).before(3).free(a).recompute({0, 2}).build(), profile()));
}

TEST(Simulator, StatisticsAreNeitherReadNorWrittenByARecompute) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId mean = g.input(4, ValueKind::kBuffer);
  const ValueId a = g.op("batch_norm").reads({x}).updates({mean}).makes(10);
  const ValueId b = g.op("batch_norm").reads({a}).updates({mean}).makes(10);
  g.op("h").reads({a, b}).makes(1);
  const Graph graph = g.build();
  EXPECT_NO_THROW(
      simulate(graph, PlanBuilder(graph).before(2).free(a).recompute({0}).build(), profile()));
}

TEST(Simulator, AnOpThatReadsOnlyShapesRunsWithoutItsInput) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  const ValueId b = g.op("empty_like").reads({a}).shapeOnly().makes(10);
  g.op("fill_").writes({b});
  g.op("h").reads({a, b}).makes(1);
  const Graph graph = g.build();
  const auto schedule =
      PlanBuilder(graph).before(3).free(a).free(b).recompute({1, 2}).recompute({0}).build();
  EXPECT_NO_THROW(simulate(graph, schedule, profile()));
  EXPECT_NO_THROW(simulate(
      graph, PlanBuilder(graph).before(1).free(a).before(3).recompute({0}).build(), profile()));
}

// ---- refused ----------------------------------------------------------------------------------

TEST(Simulator, RejectsAUseOfAnAbsentValue) {
  const Chain chain;
  const Graph graph = chain.g.build();
  expectStepRefused(
      graph, PlanBuilder(graph).before(2).free(chain.a).build(),
      AllOf(HasSubstr("op 3 (h) needs value 1 in version 0"),
            HasSubstr("which was freed before op 2 (g)"), HasSubstr("did not come back")));
}

TEST(Simulator, RejectsAValueThatIsMissingAtTheEnd) {
  const Chain chain;
  const Graph graph = chain.g.build();
  expectStepRefused(
      graph, PlanBuilder(graph).before(4).free(chain.loss).build(),
      AllOf(HasSubstr("value 4 outlives the step and is missing at its end in version 0"),
            HasSubstr("freed before the end of the step")));
  const auto brought_back = PlanBuilder(graph).before(1).free(chain.x).build();
  expectStepRefused(graph, brought_back, HasSubstr("value 0 outlives the step"));
}

TEST(Simulator, RejectsARecomputeWhoseInputsAreAway) {
  const Chain chain;
  const Graph graph = chain.g.build();
  expectStepRefused(graph,
                    PlanBuilder(graph).before(2).free(chain.a).before(3).recompute({1}).build(),
                    HasSubstr("recompute of op 1 (f) needs value 1 in version 0"));
}

TEST(Simulator, RejectsAFreeOfWhatIsNotThere) {
  const Chain chain;
  const Graph graph = chain.g.build();
  expectStepRefused(graph, PlanBuilder(graph).before(2).free(chain.a).free(chain.a).build(),
                    HasSubstr("before op 2 (g): free of value 1, which was freed before op 2 (g)"));
  expectStepRefused(graph, PlanBuilder(graph).before(0).free(chain.a).build(),
                    HasSubstr("free of value 1, which is not made before op 0 (relu)"));
}

TEST(Simulator, RejectsWhatMayNotLeaveOrComeBack) {
  Chain chain;
  chain.g.notEvictable(chain.a);
  const Graph graph = chain.g.build();
  expectStepRefused(graph, PlanBuilder(graph).before(2).free(chain.a).build(),
                    HasSubstr("not evictable"));
  const auto after_death = PlanBuilder(graph).before(4).recompute({0}).build();
  expectStepRefused(graph, after_death, HasSubstr("brings back value 1, which is not evictable"));
}

TEST(Simulator, RejectsARetainAnywhereButAfterTheLastShowing) {
  const Lifetimes l;
  const Graph graph = l.g.build();
  const auto says = HasSubstr("allowed only after op 1 (b), the last op that shows it");
  expectStepRefused(graph, PlanBuilder(graph).after(0).retain(l.a).build(), says);
  expectStepRefused(graph, PlanBuilder(graph).before(1).retain(l.a).build(), says);
  expectStepRefused(graph, PlanBuilder(graph).before(2).retain(l.a).build(), says);
  expectStepRefused(graph, PlanBuilder(graph).after(1).free(l.a).retain(l.a).build(),
                    HasSubstr("retain of value 1"));
}

TEST(Simulator, RejectsChainsThatAreNone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x}).makes(10);             // 0
  g.view(a);                                                       // 1
  const ValueId b = g.op("opaque").notReplayable().makes(10);      // 2
  const ValueId c = g.op("write_and_make").writes({x}).makes(10);  // 3
  const ValueId d = g.op("gelu").reads({x}).makes(10);             // 4
  g.op("both_").writes({a, d});                                    // 5
  g.op("sum").reads({a, b, c, d}).makes(1);                        // 6
  const Graph graph = g.build();
  const auto refused = [&](std::initializer_list<int64_t> ops, int64_t at, const char* says) {
    expectStepRefused(graph, PlanBuilder(graph).before(at).recompute(ops).build(), HasSubstr(says));
  };
  refused({}, 6, "recompute of nothing");
  refused({1}, 6, "op 1 (aten::view), which makes no value");
  refused({2}, 6, "op 2 (opaque), which is not replayable");
  refused({3}, 6, "op 3 (write_and_make), which writes into a value that was there before it");
  refused({0, 4}, 6, "op 4 (gelu) does not just write into what op 0 (relu) makes");
  refused({0, 5}, 6, "op 5 (both_) does not just write into what op 0 (relu) makes");
  refused({0, 1}, 6, "op 1 (aten::view) does not just write");
  refused({0, 0}, 6, "must ascend");
  refused({4}, 4, "op 4 (gelu), which has not run yet");
}

TEST(Simulator, RejectsASecondRunBeforeTheFirstEvenRightAfterAnother) {
  const Chain chain;
  const Graph graph = chain.g.build();
  EXPECT_NO_THROW(simulate(graph, PlanBuilder(graph).after(1).recompute({1}).build(), profile()));
  expectStepRefused(graph, PlanBuilder(graph).after(1).recompute({2}).build(),
                    HasSubstr("has not run yet"));
}

TEST(Simulator, RejectsSchedulesOfOtherGraphs) {
  const Graph graph = Chain().g.build();
  const Graph other = Lifetimes().g.build();
  expectStepRefused(graph, PlanBuilder(other).build(), HasSubstr("made for another graph"));
}

TEST(Simulator, RejectsPagingWithoutAStore) {
  const Chain chain;
  const Graph graph = chain.g.build();
  for (ActionKind kind : {ActionKind::kPageOut, ActionKind::kPageIn}) {
    expectStepRefused(graph, PlanBuilder(graph).before(2).add(kind, chain.a.index).build(),
                      AllOf(HasSubstr("before op 2"), HasSubstr("has no store")));
  }
}

TEST(Simulator, RejectsBytesBeyondAnInt64InsteadOfOverflowing) {
  GraphBuilder g;
  const ValueId a = g.op("a").makes(int64_t{1} << 62);
  g.op("b").reads({a}).makes(1);
  const Graph graph = g.build();
  expectStepRefused(graph, PlanBuilder(graph).before(1).recompute({0}).build(), HasSubstr("2^63"));
}

TEST(Simulator, RejectsANegativeGeneratorState) {
  DeviceProfile bad = profile();
  bad.generator_state_bytes = -1;
  EXPECT_THAT([&] { simulate(Graph({}, {}), Schedule{}, bad); },
              ThrowsMessage<ArgumentError>(HasSubstr("generator_state_bytes")));
}

}  // namespace
}  // namespace poet::testing
