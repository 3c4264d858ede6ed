// Transfers in the simulator: what they cost, what they wait for, what they bring back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/error.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/plan_builder.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Writes at 100 bytes a second and reads at 200, half a second of latency to write and a quarter to
// read.
DeviceProfile device(int channels = 0) {
  DeviceProfile profile;
  profile.name = "paging";
  profile.compute_watts = 10;
  profile.idle_watts = 2;
  profile.memory_watts = 1;
  profile.store_watts = 4;
  profile.replay_factor = 2;
  profile.replay_fixed_seconds = 0.5;
  profile.generator_state_bytes = 1000;
  profile.store_read_rate = 200;
  profile.store_write_rate = 100;
  profile.store_read_latency_seconds = 0.25;
  profile.store_write_latency_seconds = 0.5;
  profile.wake_joules = 7;
  profile.dma_channels = channels;
  return profile;
}

template <class Matcher>
void expectRefused(const Graph& graph, const Schedule& schedule, const Matcher& says,
                   const DeviceProfile& profile = device()) {
  EXPECT_THAT([&] { simulate(graph, schedule, profile); }, ThrowsMessage<ScheduleError>(says));
}

// Ops of 4 seconds: x 8 | make: a 100 | f: b 50 | g(b): c 20 | h(c): d 10 | last(d, a): e 4
struct ChainOfFive {
  ChainOfFive() {
    x = g.input(8);
    a = g.op("make").reads({x}).seconds(4).makes(100);
    b = g.op("f").reads({a}).seconds(4).makes(50);
    c = g.op("g").reads({b}).seconds(4).makes(20);
    d = g.op("h").reads({c}).seconds(4).makes(10);
    e = g.op("last").reads({d, a}).seconds(4).makes(4);
    g.outlives(e);
  }
  GraphBuilder g;
  ValueId x, a, b, c, d, e;
};

// Out after its last use, free, back before its next.
PlanBuilder aGoesAndComesBack(const ChainOfFive& chain, const Graph& graph) {
  return PlanBuilder(graph).before(2).pageOut(chain.a).free(chain.a).before(4).pageIn(chain.a);
}

// ---- blocking ---------------------------------------------------------------------------------

TEST(SimulatorPaging, BlockingTransfersCostTheirTimeAndTheirEnergy) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  const auto result = simulate(graph, aGoesAndComesBack(chain, graph).build(), device());
  const double out = 0.5 + 100 / 100.0;
  const double in = 0.25 + 100 / 200.0;
  EXPECT_EQ(result.transfer_seconds, out + in);
  EXPECT_EQ(result.hidden_seconds, 0);
  EXPECT_EQ(result.makespan_seconds, 20 + out + in);
  EXPECT_EQ(result.energy_joules, 10 * 20 + 3 * (20 + out + in) + 4 * (out + in) + 7 * 2);
  EXPECT_EQ(result.page_outs, 1);
  EXPECT_EQ(result.page_ins, 1);
  EXPECT_EQ(result.paged_out_bytes, 100);
  EXPECT_EQ(result.paged_in_bytes, 100);
  EXPECT_EQ(result.wake_ups, 2);
  EXPECT_THAT(result.resident_bytes, ElementsAre(108, 158, 78, 38, 122));
  EXPECT_EQ(result.peak_bytes, 158);
}

TEST(SimulatorPaging, TransfersInOneGapWakeTheStoreOnce) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  // After op 1 and before op 2 is one gap.
  const auto result = simulate(graph,
                               PlanBuilder(graph)
                                   .after(1)
                                   .pageOut(chain.a)
                                   .before(2)
                                   .pageOut(chain.x)
                                   .free(chain.a)
                                   .free(chain.x)
                                   .before(4)
                                   .pageIn(chain.a)
                                   .pageIn(chain.x)
                                   .build(),
                               device());
  EXPECT_EQ(result.page_outs, 2);
  EXPECT_EQ(result.page_ins, 2);
  EXPECT_EQ(result.wake_ups, 2);
  const double seconds = (0.5 + 1) + (0.5 + 0.08) + (0.25 + 0.5) + (0.25 + 0.04);
  EXPECT_DOUBLE_EQ(result.transfer_seconds, seconds);
  EXPECT_DOUBLE_EQ(result.energy_joules, 10 * 20 + 3 * (20 + seconds) + 4 * seconds + 7 * 2);
}

TEST(SimulatorPaging, AZeroByteValueCostsTheLatency) {
  GraphBuilder g;
  const ValueId a = g.op("f").seconds(1).makes(0);
  g.op("g").reads({a}).seconds(1).makes(1);
  const Graph graph = g.build();
  const auto result =
      simulate(graph, PlanBuilder(graph).before(1).pageOut(a).free(a).pageIn(a).build(), device());
  EXPECT_EQ(result.transfer_seconds, 0.75);
  EXPECT_EQ(result.paged_out_bytes + result.paged_in_bytes, 0);
  EXPECT_EQ(result.page_outs + result.page_ins, 2);
}

TEST(SimulatorPaging, SizesBeyondFourGigabytesAreExact) {
  const int64_t large = 5'000'000'000;
  GraphBuilder g;
  const ValueId x = g.input(large);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(large);
  g.op("g").seconds(1).makes(1);
  g.op("h").reads({a}).seconds(1).makes(1);
  const Graph graph = g.build();
  const auto result = simulate(
      graph, PlanBuilder(graph).before(1).pageOut(a).free(a).before(2).pageIn(a).build(), device());
  EXPECT_EQ(result.paged_out_bytes, large);
  EXPECT_EQ(result.peak_bytes, 2 * large + 1);
  EXPECT_EQ(result.transfer_seconds, (0.5 + 5e9 / 100) + (0.25 + 5e9 / 200));
}

// ---- memory -----------------------------------------------------------------------------------

TEST(SimulatorPaging, MemoryIsTakenFromTheStartOfAPageIn) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  for (const int channels : {0, 1, 2}) {
    auto plan = PlanBuilder(graph);
    plan.before(2).pageOut(chain.a).free(chain.a).before(3).pageIn(chain.a);
    const auto result = simulate(graph, plan.build(), device(channels));
    EXPECT_THAT(result.resident_bytes, ElementsAre(108, 158, 78, 138, 122)) << channels;
  }
}

TEST(SimulatorPaging, APageInCanBeThePeak) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  const auto result = simulate(graph,
                               PlanBuilder(graph)
                                   .before(2)
                                   .pageOut(chain.a)
                                   .free(chain.a)
                                   .before(3)
                                   .pageIn(chain.a)
                                   .free(chain.a)
                                   .before(4)
                                   .pageIn(chain.a)
                                   .build(),
                               device());
  EXPECT_THAT(result.resident_bytes, ElementsAre(108, 158, 78, 38, 122));
  GraphBuilder g;
  const ValueId x = g.input(300);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(1);
  g.op("g").reads({a}).seconds(1).makes(1);
  const Graph small = g.build();
  const auto start = simulate(small,
                              PlanBuilder(small)
                                  .before(0)
                                  .pageOut(x)
                                  .free(x)
                                  .pageIn(x)
                                  .before(1)
                                  .free(x)
                                  .before(2)
                                  .pageIn(x)
                                  .build(),
                              device());
  EXPECT_EQ(start.peak_bytes, 301);
  EXPECT_THAT(start.resident_bytes, ElementsAre(301, 2));
}

TEST(SimulatorPaging, WhatIsPagedOutBeforeTheFirstOpWasThere) {
  GraphBuilder g;
  const ValueId x = g.input(300);
  g.op("f").seconds(1).makes(1);
  g.op("g").reads({x}).seconds(1).workspace(-0).makes(1);
  g.diesAfter(x, OpId(1));
  const Graph graph = g.build();
  const auto result = simulate(
      graph, PlanBuilder(graph).before(0).pageOut(x).free(x).before(1).pageIn(x).build(), device());
  EXPECT_EQ(result.resident_bytes[0], 1);
  EXPECT_EQ(result.peak_op, OpId(1));
  EXPECT_EQ(result.peak_bytes, 301) << "at op 1; the page_out saw 300";
}

TEST(SimulatorPaging, AValueThatComesBackAfterItsLastShowingIsRetained) {
  GraphBuilder g;
  const ValueId a = g.op("f").seconds(1).makes(100);
  g.op("g").reads({a}).seconds(1).makes(1);
  g.op("h").seconds(1).makes(1);
  g.op("i").seconds(1).makes(1);
  g.op("j").seconds(1).makes(1);
  g.diesAfter(a, OpId(3));
  const Graph graph = g.build();
  auto away = PlanBuilder(graph).before(1).pageOut(a).before(2).free(a).build();
  EXPECT_EQ(simulate(graph, away, device()).resident_bytes[2], 1);
  auto back = PlanBuilder(graph).before(1).pageOut(a).before(2).free(a).pageIn(a).build();
  EXPECT_EQ(simulate(graph, back, device()).resident_bytes[4], 101) << "nothing lets it die";
}

// ---- versions ---------------------------------------------------------------------------------

// make: a | write into a | read a
struct Written {
  Written() {
    a = g.op("make").seconds(1).makes(100);
    other = g.op("other").seconds(1).makes(10);
    g.op("add_").writes({a}).seconds(1);
    loss = g.op("read").reads({a, other}).seconds(1).makes(1);
    g.outlives(loss);
  }
  GraphBuilder g;
  ValueId a, other, loss;
};

TEST(SimulatorPaging, AStaleCopyIsRefusedWithBothVersions) {
  const Written step;
  const Graph graph = step.g.build();
  expectRefused(
      graph,
      PlanBuilder(graph).before(1).pageOut(step.a).before(3).free(step.a).pageIn(step.a).build(),
      AllOf(HasSubstr("before op 3 (read)"), HasSubstr("page_in of value 0 in version 1"),
            HasSubstr("the store holds version 0")));
  EXPECT_NO_THROW(simulate(graph,
                           PlanBuilder(graph)
                               .before(1)
                               .pageOut(step.a)
                               .before(3)
                               .pageOut(step.a)
                               .free(step.a)
                               .pageIn(step.a)
                               .build(),
                           device()))
      << "another page_out replaces it";
}

TEST(SimulatorPaging, ACopyStaysGoodForTheVersionThatItWasMadeOf) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  const auto result = simulate(graph,
                               PlanBuilder(graph)
                                   .before(2)
                                   .pageOut(chain.a)
                                   .free(chain.a)
                                   .before(3)
                                   .pageIn(chain.a)
                                   .free(chain.a)
                                   .before(4)
                                   .pageIn(chain.a)
                                   .build(),
                               device());
  EXPECT_EQ(result.page_outs, 1);
  EXPECT_EQ(result.page_ins, 2);
}

TEST(SimulatorPaging, AReplayFindsWhatAPageInBrought) {
  GraphBuilder g;
  const ValueId x = g.input(100);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(10);
  g.op("g").reads({a}).seconds(1).makes(1);
  g.op("h").reads({a}).seconds(1).makes(1);
  const Graph graph = g.build();
  const auto plan = [&] { return PlanBuilder(graph).before(1).pageOut(x).free(x); };
  expectRefused(graph, plan().before(2).free(a).recompute({0}).build(),
                AllOf(HasSubstr("recompute of op 0 (f) needs value 0 in version 0"),
                      HasSubstr("was freed before op 1 (g)")));
  EXPECT_NO_THROW(
      simulate(graph, plan().before(2).free(a).pageIn(x).recompute({0}).build(), device()));
}

// ---- refusals ---------------------------------------------------------------------------------

TEST(SimulatorPaging, RefusalsNameTheOpAndTheValue) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  const auto plan = [&] { return PlanBuilder(graph); };
  expectRefused(
      graph, plan().before(2).pageIn(chain.a).build(),
      AllOf(HasSubstr("before op 2 (g)"), HasSubstr("page_in of value 1, which is resident")));
  expectRefused(graph, plan().before(2).free(chain.a).pageIn(chain.a).build(),
                HasSubstr("page_in of value 1, which was not paged out"));
  expectRefused(graph, plan().before(2).free(chain.a).pageOut(chain.a).build(),
                AllOf(HasSubstr("page_out of value 1"), HasSubstr("was freed before op 2 (g)")));
  expectRefused(graph, plan().before(0).pageOut(chain.a).build(),
                AllOf(HasSubstr("page_out of value 1"), HasSubstr("not made before op 0 (make)")));
  expectRefused(graph, plan().before(2).pageOut(chain.a).free(chain.a).build(),
                AllOf(HasSubstr("op 4 (last) needs value 1 in version 0"),
                      HasSubstr("freed before op 2 (g)")));
  expectRefused(graph, plan().before(1).pageOut(chain.x).free(chain.x).build(),
                HasSubstr("value 0 outlives the step and is missing at its end in version 0"));
}

TEST(SimulatorPaging, WhatIsNotTheFrameworksIsNotPaged) {
  ChainOfFive chain;
  chain.g.notEvictable(chain.a);
  const Graph graph = chain.g.build();
  expectRefused(graph, PlanBuilder(graph).before(2).pageOut(chain.a).build(),
                HasSubstr("page_out of value 1, which is not evictable"));
}

TEST(SimulatorPaging, ADeviceWithoutAStorePagesNothing) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  DeviceProfile none = device();
  none.store_read_rate = 0;
  expectRefused(graph, aGoesAndComesBack(chain, graph).build(),
                AllOf(HasSubstr("page_out of value 1"), HasSubstr("\"paging\" has no store")),
                none);
  expectRefused(graph, PlanBuilder(graph).before(1).free(chain.x).pageIn(chain.x).build(),
                AllOf(HasSubstr("page_in of value 0"), HasSubstr("\"paging\" has no store")), none);
}

// ---- beside ops -------------------------------------------------------------------------------

TEST(SimulatorPaging, WithDmaATransferRunsBesideTheOps) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  // Out: 8 to 9.5 beside op 2. Free before op 3 at 12: done. In: 12 to 12.75 beside op 3.
  const auto result = simulate(
      graph,
      PlanBuilder(graph).before(2).pageOut(chain.a).before(3).free(chain.a).pageIn(chain.a).build(),
      device(1));
  EXPECT_EQ(result.makespan_seconds, 20);
  EXPECT_EQ(result.transfer_seconds, 2.25);
  EXPECT_EQ(result.hidden_seconds, 2.25);
  EXPECT_EQ(result.energy_joules, 13 * 20 + 4 * 2.25 + 7 * 2);
}

TEST(SimulatorPaging, AFreeWaitsForThePageOut) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  // Out: 8 to 9.5; the free waits. In: 17.5 (before op 4) to 18.25; op 4 waits.
  const auto result = simulate(graph, aGoesAndComesBack(chain, graph).build(), device(1));
  EXPECT_EQ(result.makespan_seconds, 20 + 1.5 + 0.75);
  EXPECT_EQ(result.hidden_seconds, 0);
}

TEST(SimulatorPaging, ANaturalDeathWaitsForThePageOut) {
  ChainOfFive chain;
  chain.g.values[0].bytes = 800;  // x
  chain.g.diesAfter(chain.x, OpId(1));
  const Graph graph = chain.g.build();
  // Out: 4 to 12.5, while op 1 is done at 8 and x dies then.
  const auto result =
      simulate(graph, PlanBuilder(graph).before(1).pageOut(chain.x).build(), device(1));
  EXPECT_EQ(result.makespan_seconds, 12.5 + 12);
  EXPECT_EQ(result.hidden_seconds, 4);
}

TEST(SimulatorPaging, AWriteWaitsForThePageOutAndAReadDoesNot) {
  GraphBuilder g;
  const ValueId x = g.input(400);
  g.op("read").reads({x}).seconds(1).makes(1);
  g.op("add_").writes({x}).seconds(1);
  const Graph graph = g.build();
  // Out: 0 to 4.5. The read runs 0 to 1, the write waits until 4.5.
  const auto result = simulate(graph, PlanBuilder(graph).before(0).pageOut(x).build(), device(1));
  EXPECT_EQ(result.makespan_seconds, 5.5);
  EXPECT_EQ(result.hidden_seconds, 1);
}

TEST(SimulatorPaging, AnOpAReplayAndAPageOutWaitForThePageIn) {
  const ChainOfFive chain;
  const Graph graph = chain.g.build();
  const auto plan = [&] {
    return PlanBuilder(graph).before(1).pageOut(chain.x).before(2).free(chain.x);
  };
  // x: 8 bytes: out 4 to 4.58. In from 8 to 8.29.
  const double in = 0.25 + 8 / 200.0;
  EXPECT_EQ(simulate(graph, plan().before(2).pageIn(chain.x).build(), device(1)).makespan_seconds,
            20);
  const auto replay =
      simulate(graph, plan().before(2).pageIn(chain.x).recompute({0}).build(), device(1));
  EXPECT_DOUBLE_EQ(replay.makespan_seconds, 8 + in + 8.5 + 12);
  const auto again =
      simulate(graph, plan().before(2).pageIn(chain.x).pageOut(chain.x).build(), device(2));
  EXPECT_DOUBLE_EQ(again.makespan_seconds, 8 + in + 12) << "the second page_out begins at 8.29";
  const auto late = simulate(graph, plan().before(5).pageIn(chain.x).build(), device(1));
  EXPECT_DOUBLE_EQ(late.makespan_seconds, 20 + in) << "the step ends when everything is done";
  const auto freed = simulate(
      graph, plan().before(2).pageIn(chain.x).free(chain.x).before(5).pageIn(chain.x).build(),
      device(1));
  EXPECT_DOUBLE_EQ(freed.makespan_seconds, 20 + 2 * in) << "a free waits for the page_in as well";
}

TEST(SimulatorPaging, APageInWaitsForThePageOut) {
  GraphBuilder g;
  const ValueId x = g.input(100);
  const ValueId a = g.op("f").reads({x}).seconds(1).makes(100);
  g.op("g").seconds(1).makes(1);
  g.op("h").reads({a}).seconds(1).makes(1);
  const Graph graph = g.build();
  // Two channels; a leaves by a recompute-free death? No: by its free, which waits to 2.5.
  const auto result =
      simulate(graph, PlanBuilder(graph).before(1).pageOut(a).free(a).pageIn(a).build(), device(2));
  // Out 1 to 2.5, free at 2.5, in 2.5 to 3.25 beside op 1 (2.5 to 3.5), op 2 to 4.5.
  EXPECT_EQ(result.makespan_seconds, 4.5);
  EXPECT_EQ(result.hidden_seconds, 0.75);
}

TEST(SimulatorPaging, ChannelsWorkSideBySide) {
  GraphBuilder g;
  const ValueId x = g.input(100);
  const ValueId y = g.input(100);
  const ValueId z = g.input(100);
  g.op("f").seconds(1).makes(1);
  const Graph graph = g.build();
  const auto makespan = [&](int channels) {
    return simulate(graph, PlanBuilder(graph).before(0).pageOut(x).pageOut(y).pageOut(z).build(),
                    device(channels))
        .makespan_seconds;
  };
  EXPECT_EQ(makespan(0), 5.5);
  EXPECT_EQ(makespan(1), 4.5);
  EXPECT_EQ(makespan(2), 3);
  EXPECT_EQ(makespan(3), 1.5);
  EXPECT_EQ(makespan(DeviceProfile::kMaxDmaChannels), 1.5);
}

TEST(SimulatorPaging, TheChannelThatIsFreeFirstIsTaken) {
  GraphBuilder g;
  const ValueId x = g.input(900);
  const ValueId y = g.input(100);
  const ValueId z = g.input(100);
  g.op("f").seconds(1).makes(1);
  const Graph graph = g.build();
  const auto result = simulate(
      graph, PlanBuilder(graph).before(0).pageOut(x).pageOut(y).pageOut(z).build(), device(2));
  EXPECT_EQ(result.makespan_seconds, 9.5) << "x on one channel, y and z on the other";
  EXPECT_EQ(result.hidden_seconds, 3 + 1);
}

// ---- away between steps -----------------------------------------------------------------------

struct Optimizer {
  Optimizer() {
    weight = g.parameter(50);
    state = g.input(100, ValueKind::kOptimizerState);
    grad = g.op("backward").reads({weight}).seconds(1).makes(50);
    g.op("lerp_").reads({grad}).writes({state}).seconds(1);
    g.op("addcdiv_").reads({state}).writes({weight}).seconds(1);
  }
  GraphBuilder g;
  ValueId weight, state, grad;
};

TEST(SimulatorPaging, WhatIsAwayBetweenStepsBeginsInTheStoreAndMayEndThere) {
  const Optimizer step;
  const Graph graph = step.g.build();
  const auto plan = [&] {
    return PlanBuilder(graph).awayBetweenSteps(step.state).before(1).pageIn(step.state);
  };
  const auto away =
      simulate(graph, plan().before(3).pageOut(step.state).free(step.state).build(), device());
  EXPECT_THAT(away.resident_bytes, ElementsAre(100, 200, 150));
  EXPECT_EQ(away.makespan_seconds, 3 + 0.75 + 1.5);
  EXPECT_NO_THROW(simulate(graph, plan().build(), device())) << "it may also be in memory";
  expectRefused(graph, plan().before(3).free(step.state).build(),
                HasSubstr("value 1 outlives the step and is missing at its end in version 1"));
  expectRefused(graph, plan().before(2).free(step.state).pageIn(step.state).build(),
                HasSubstr("the store holds version 0"));
  expectRefused(graph, PlanBuilder(graph).awayBetweenSteps(step.state).build(),
                AllOf(HasSubstr("op 1 (lerp_) needs value 1"), HasSubstr("freed before op 0")));
}

TEST(SimulatorPaging, WhatNobodyTouchesMayStayAway) {
  Optimizer step;
  const ValueId spare = step.g.input(1000, ValueKind::kOptimizerState);
  const Graph graph = step.g.build();
  const auto result = simulate(graph, PlanBuilder(graph).awayBetweenSteps(spare).build(), device());
  EXPECT_EQ(result.peak_bytes, 200);
  EXPECT_EQ(result.transfer_seconds, 0);
}

TEST(SimulatorPaging, OnlyWhatOutlivesTheStepIsAwayBetweenSteps) {
  const Optimizer step;
  const Graph graph = step.g.build();
  expectRefused(graph, PlanBuilder(graph).awayBetweenSteps(step.grad).build(),
                AllOf(HasSubstr("away_between_steps"), HasSubstr("value 2")));
  Schedule twice =
      PlanBuilder(graph).awayBetweenSteps(step.state).awayBetweenSteps(step.state).build();
  expectRefused(graph, twice, AllOf(HasSubstr("away_between_steps"), HasSubstr("ascending")));
  Schedule no_lists;
  no_lists.graph_signature = graph.signature();
  no_lists.num_ops = graph.numOps();
  no_lists.away_between_steps = {ValueId(99)};
  expectRefused(graph, no_lists, HasSubstr("away_between_steps: expected value indices in [0, 3)"));
}

}  // namespace
}  // namespace poet::testing
