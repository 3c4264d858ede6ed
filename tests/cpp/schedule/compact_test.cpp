#include "schedule/compact.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "device/profile.h"
#include "graph/error.h"
#include "schedule/byte_io.h"
#include "schedule/schedule.h"
#include "schedule/simulator.h"
#include "support/corruption.h"
#include "support/graph_builder.h"
#include "support/paging_plan.h"
#include "support/plan_builder.h"
#include "support/random_graph.h"
#include "support/random_plan.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The text holds every field, with the ops of recomputes spelled out.
void expectComesBack(const Schedule& schedule, const Graph& graph) {
  const std::string bytes = schedule.toBytes(graph);
  const Schedule again = Schedule::fromBytes(bytes, graph);
  ASSERT_EQ(again.toJson(), schedule.toJson());
  ASSERT_EQ(again.toBytes(graph), bytes);
}

// x 8 | relu: a 10 | relu_(a) | sum(a): s 1
GraphBuilder threeOps() {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  g.op("relu_").writes({a});
  g.op("sum").reads({a}).makes(1);
  return g;
}

Schedule withEveryField(const Graph& graph) {
  Schedule s = PlanBuilder(graph)
                   .awayBetweenSteps(ValueId(0))
                   .before(0)
                   .pageIn(ValueId(0))
                   .before(2)
                   .pageOut(ValueId(1))
                   .free(ValueId(1))
                   .recompute({0, 1})
                   .recompute({0})
                   .recompute({1, 2})
                   .after(2)
                   .retain(ValueId(1))
                   .free(ValueId(2))
                   .pageOut(ValueId(0))
                   .pageIn(ValueId(2))
                   .recompute({0, 1})
                   .before(3)
                   .free(ValueId(1))
                   .retain(ValueId(0))
                   .build();
  s.method = "other";
  s.objective = Objective::kTime;
  s.ram_budget_bytes = (int64_t{1} << 53) + 1;
  s.runtime_budget_seconds = -0.1;
  s.peak_bytes = int64_t{1} << 40;
  s.peak_op = OpId(3);
  s.makespan_seconds = 1.0 / 3;
  s.energy_joules = 1e-300;
  s.bound = 0.3;
  s.gap = 0.25;
  s.bound_scope = "somewhere";
  s.bound_all = 0.125;
  s.believed_peak_bytes = 124;
  s.believed_seconds = 0.25;
  s.solve_seconds = 12.5;
  s.least_ram_budget = 99;
  s.least_ram_op = OpId(1);
  s.energy_budget_joules = 0.7;
  s.least_energy_joules = 1.0 / 7;
  s.message = "two \"words\" \xc3\xa9\n";
  return s;
}

// ---- there and back ---------------------------------------------------------------------------

TEST(CompactSchedule, EveryFieldAndEveryActionComesBack) {
  const Graph graph = threeOps().build();
  const Schedule everything = withEveryField(graph);
  expectComesBack(everything, graph);
  const Schedule again = Schedule::fromBytes(everything.toBytes(graph), graph);
  EXPECT_EQ(again.recipes.size(), 3U) << "equal chains share an entry";
  EXPECT_EQ(again.away_between_steps, everything.away_between_steps);
}

TEST(CompactSchedule, EachFieldAloneComesBack) {
  const Graph graph = threeOps().build();
  const Schedule all = withEveryField(graph);
  const Schedule none = PlanBuilder(graph).build();
  expectComesBack(none, graph);
  const auto with = [&](auto field) {
    Schedule one = none;
    one.*field = all.*field;
    expectComesBack(one, graph);
    Schedule others = all;
    others.*field = none.*field;
    expectComesBack(others, graph);
  };
  with(&Schedule::method);
  with(&Schedule::objective);
  with(&Schedule::ram_budget_bytes);
  with(&Schedule::runtime_budget_seconds);
  with(&Schedule::peak_bytes);
  with(&Schedule::peak_op);
  with(&Schedule::makespan_seconds);
  with(&Schedule::energy_joules);
  with(&Schedule::bound);
  with(&Schedule::gap);
  with(&Schedule::bound_scope);
  with(&Schedule::bound_all);
  with(&Schedule::believed_peak_bytes);
  with(&Schedule::believed_seconds);
  with(&Schedule::solve_seconds);
  with(&Schedule::least_ram_budget);
  with(&Schedule::least_ram_op);
  with(&Schedule::energy_budget_joules);
  with(&Schedule::least_energy_joules);
  with(&Schedule::message);
}

TEST(CompactSchedule, TheUsualScopesAndAGapThatFollowsTakeNoBytes) {
  const Graph graph = threeOps().build();
  Schedule plan = PlanBuilder(graph).build();
  plan.energy_joules = 3;
  plan.bound = 2.9;
  plan.gap = 0.5;
  const size_t spelled_out = plan.toBytes(graph).size();
  plan.gap = (3 - 2.9) / 3;
  EXPECT_EQ(plan.toBytes(graph).size(), spelled_out - 8);
  expectComesBack(plan, graph);
  for (const char* scope : {"all", "candidates", "", "al"}) {
    plan.bound_scope = scope;
    expectComesBack(plan, graph);
  }
  const size_t without = plan.toBytes(graph).size();
  plan.bound_all = plan.bound;
  EXPECT_LE(plan.toBytes(graph).size(), without + 1) << "flags alone";
  expectComesBack(plan, graph);
}

TEST(CompactSchedule, StatusesWithoutAPlanComeBack) {
  const Graph graph = threeOps().build();
  for (const Status status : {Status::kInfeasible, Status::kTimeLimit}) {
    Schedule none;
    none.graph_signature = graph.signature();
    none.num_ops = graph.numOps();
    none.status = status;
    none.message = "no plan below 5 bytes";
    none.least_ram_budget = 5;
    none.least_ram_op = OpId(2);
    expectComesBack(none, graph);
    EXPECT_FALSE(Schedule::fromBytes(none.toBytes(graph), graph).hasPlan());
  }
}

TEST(CompactSchedule, AStepWithoutOpsComesBack) {
  GraphBuilder g;
  const Graph nothing = g.build();
  expectComesBack(PlanBuilder(nothing).build(), nothing);
  GraphBuilder one;
  const ValueId x = one.input(8);
  const Graph values_only = one.build();
  expectComesBack(
      PlanBuilder(values_only).awayBetweenSteps(x).before(0).pageIn(x).pageOut(x).free(x).build(),
      values_only);
}

TEST(CompactSchedule, RandomPlansComeBack) {
  int64_t actions = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const Graph graph = randomGraph(seed);
    Random random(seed);
    expectComesBack(randomPlan(graph, RecipeTable(graph), random), graph);
    Schedule plan = validPlan(graph, seed, 0.3);
    finalize(graph, hostProfile(), plan);
    expectComesBack(plan, graph);
    const Schedule paging = pagingPlan(graph, seed);
    expectComesBack(paging, graph);
    actions += paging.countActions(ActionKind::kPageIn);
  }
  EXPECT_GT(actions, 1000);
}

TEST(CompactSchedule, ArbitraryActionsComeBack) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Graph graph = randomGraph(seed);
    Random random(seed);
    PlanBuilder plan(graph);
    for (int64_t left = random.below(30); left > 0; --left) {
      const int64_t at = random.below(graph.numOps() + 1);
      at < graph.numOps() && random.chance(0.5) ? plan.after(at) : plan.before(at);
      const auto kind = static_cast<ActionKind>(random.below(5));
      if (kind != ActionKind::kRecompute) {
        plan.add(kind, static_cast<int32_t>(random.below(graph.numValues())));
        continue;
      }
      std::vector<OpId> chain;
      for (int64_t op = random.below(graph.numOps()); op < graph.numOps();
           op += 1 + random.below(4))
        chain.emplace_back(op);
      plan.recompute(chain);
    }
    expectComesBack(plan.build(), graph);
  }
}

TEST(CompactSchedule, AnActionTakesAboutTwoBytes) {
  RandomGraphOptions options;
  options.forward_ops = 200;
  const Graph graph = randomGraph(5, options);
  const Schedule none = PlanBuilder(graph).build();
  const Schedule plan = pagingPlan(graph, 1, 0.05);
  int64_t actions = 0;
  for (int kind = 0; kind < 5; ++kind) actions += plan.countActions(static_cast<ActionKind>(kind));
  ASSERT_GT(actions, 100);
  const size_t extra = plan.toBytes(graph).size() - none.toBytes(graph).size();
  EXPECT_LT(extra, 3 * static_cast<size_t>(actions));
}

// ---- refusals ---------------------------------------------------------------------------------

template <class Error, class Matcher>
void expectCompactRefused(const std::string& bytes, const Graph& graph, const Matcher& says) {
  EXPECT_THAT([&] { Schedule::fromBytes(bytes, graph); }, ThrowsMessage<Error>(says));
}

TEST(CompactSchedule, AnotherGraphIsRefusedByItsSignature) {
  const Graph graph = threeOps().build();
  GraphBuilder other = threeOps();
  other.values[0].bytes = 9;
  const Graph another = other.build();
  const Schedule plan = withEveryField(graph);
  expectCompactRefused<ScheduleError>(plan.toBytes(graph), another,
                                      HasSubstr("made for another graph"));
  EXPECT_THROW(plan.toBytes(another), ScheduleError);
}

TEST(CompactSchedule, WhatIsNoScheduleIsNotWritten) {
  const Graph graph = threeOps().build();
  Schedule plan = PlanBuilder(graph).build();
  plan.status = Status::kInfeasible;
  EXPECT_THROW(plan.toBytes(graph), ScheduleError) << "actions without a plan";
  EXPECT_THROW(PlanBuilder(graph).before(1).free(ValueId(77)).build().toBytes(graph),
               ScheduleError);
  EXPECT_THROW(PlanBuilder(graph).before(1).recompute({1, 0}).build().toBytes(graph),
               ScheduleError);
  EXPECT_THROW(PlanBuilder(graph).before(1).recompute(std::vector<OpId>{}).build().toBytes(graph),
               ScheduleError);
  Schedule endless = PlanBuilder(graph).build();
  endless.bound = std::numeric_limits<double>::infinity();
  EXPECT_THROW(endless.toBytes(graph), ScheduleError);
}

TEST(CompactSchedule, EveryChangedBitAndEveryCutIsFound) {
  const Graph graph = threeOps().build();
  const std::string bytes = withEveryField(graph).toBytes(graph);
  for (size_t i = 0; i < bytes.size(); ++i) {
    expectCompactRefused<FormatError>(bytes.substr(0, i), graph, HasSubstr("compact schedule"));
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      expectCompactRefused<FormatError>(damaged, graph, HasSubstr("compact schedule"));
    }
  }
  expectCompactRefused<FormatError>(bytes + bytes.substr(bytes.size() - 1), graph,
                                    HasSubstr("checksum"));
  expectCompactRefused<FormatError>("{\"format\": \"poet-schedule\"}", graph, HasSubstr("Poet"));
}

std::string withChecksum(std::string body) {
  bytes::Writer sum;
  sum.fixed(bytes::crc32(body), 4);
  return body + sum.bytes();
}

TEST(CompactSchedule, AnotherVersionIsNamed) {
  const Graph graph = threeOps().build();
  std::string bytes = withEveryField(graph).toBytes(graph);
  bytes.resize(bytes.size() - 4);
  bytes[4] = 9;
  expectCompactRefused<FormatError>(withChecksum(bytes), graph,
                                    AllOf(HasSubstr("expected version 1"), HasSubstr("got 9")));
}

// Damage with a checksum that fits: the reader itself must hold its own.
TEST(CompactSchedule, DamageBehindAGoodChecksumNeverCrashes) {
  int64_t read = 0;
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 150; ++seed) {
    const Graph graph = randomGraph(seed % 40);
    Schedule plan = seed % 3 == 0 ? withEveryField(threeOps().build()) : pagingPlan(graph, seed);
    const Graph& own = seed % 3 == 0 ? threeOps().build() : graph;
    std::string body = plan.toBytes(own);
    body.resize(body.size() - 4);
    Random random(seed);
    for (int round = 0; round < 200; ++round) {
      const std::string damaged = body.substr(0, 13) + corrupted(body.substr(13), random.next());
      try {
        const Schedule again = Schedule::fromBytes(withChecksum(damaged), own);
        ASSERT_EQ(Schedule::fromJson(again.toJson()).toJson(), again.toJson());
        ASSERT_EQ(Schedule::fromBytes(again.toBytes(own), own).toJson(), again.toJson());
        ++read;
      } catch (const FormatError&) {
        ++refused;
      } catch (const ScheduleError&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(read, 500);
  EXPECT_GT(refused, 5000);
}

}  // namespace
}  // namespace poet::testing
