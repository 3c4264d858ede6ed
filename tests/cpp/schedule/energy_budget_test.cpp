#include "schedule/energy_budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>

#include "graph/error.h"
#include "planner/planner.h"
#include "support/graph_builder.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A chain whose third op needs the first one's result again; in 20 bytes it must be recomputed.
Graph chain() {
  GraphBuilder g;
  const ValueId x = g.parameter(1);
  const ValueId a = g.op("a").reads({x}).seconds(1).makes(8);
  const ValueId b = g.op("b").reads({a}).seconds(1).makes(8);
  const ValueId c = g.op("c").reads({b}).seconds(1).makes(8);
  const ValueId d = g.op("d").reads({c}).seconds(1).makes(1);
  g.op("e").reads({d, a}).seconds(1).makes(1);
  return g.build();
}

DeviceProfile oneWatt() {
  DeviceProfile device;
  device.name = "one watt";
  device.compute_watts = 1;
  return device;
}

Schedule planned(Objective minimize = Objective::kEnergy) {
  const Graph graph = chain();
  SolveOptions options;
  options.ram_budget_bytes = 20;
  options.minimize = minimize;
  return solve(graph, oneWatt(), options);
}

TEST(EnergyBudget, APlanWithinItStaysAsItIs) {
  const Schedule plan = planned();
  ASSERT_EQ(plan.status, Status::kOptimal);
  ASSERT_GT(plan.energy_joules, 5) << "plain training takes five seconds at one watt";
  Schedule held = withinEnergy(plan, plan.energy_joules);
  EXPECT_EQ(held.energy_budget_joules, plan.energy_joules);
  held.energy_budget_joules.reset();
  EXPECT_EQ(held.toJson(), plan.toJson());
}

TEST(EnergyBudget, ABoundAboveItIsAProof) {
  const Schedule plan = planned();
  const Schedule held = withinEnergy(plan, 5.5);
  EXPECT_EQ(held.status, Status::kInfeasible);
  EXPECT_FALSE(held.hasPlan());
  EXPECT_EQ(held.least_energy_joules, plan.energy_joules);
  EXPECT_THAT(held.message, HasSubstr("an energy budget of 5.5 J a step cannot be met"));
  EXPECT_EQ(Schedule::fromJson(held.toJson()).toJson(), held.toJson());
}

TEST(EnergyBudget, ABoundOverAllBesideTheCandidatesIsOneToo) {
  Schedule plan = planned();
  plan.status = Status::kFeasible;
  plan.bound_all = plan.bound;
  plan.bound_scope = "candidates";
  const Schedule held = withinEnergy(plan, 5.5);
  EXPECT_EQ(held.status, Status::kInfeasible);
  EXPECT_THAT(held.message, HasSubstr("every schedule takes"));
}

TEST(EnergyBudget, WithoutAProofItIsNotCalledInfeasible) {
  for (const bool candidates : {true, false}) {
    Schedule plan = planned();
    plan.status = Status::kFeasible;
    if (candidates) {
      plan.bound_scope = "candidates";
      plan.bound_all.reset();
    } else {
      plan.bound = 5.2;
    }
    const Schedule held = withinEnergy(plan, 5.5);
    EXPECT_EQ(held.status, Status::kTimeLimit);
    EXPECT_EQ(held.least_energy_joules, plan.energy_joules);
    EXPECT_THAT(held.message, HasSubstr("nothing proves"));
  }
}

TEST(EnergyBudget, WhatHasNoPlanAnywayKeepsItsReason) {
  const Graph graph = chain();
  SolveOptions options;
  options.ram_budget_bytes = 1;
  const Schedule none = solve(graph, oneWatt(), options);
  ASSERT_EQ(none.status, Status::kInfeasible);
  const Schedule held = withinEnergy(none, 1e-9);
  EXPECT_EQ(held.message, none.message);
  EXPECT_FALSE(held.least_energy_joules.has_value());
}

TEST(EnergyBudget, RefusesOtherObjectivesAndNoBudgets) {
  EXPECT_THAT([] { withinEnergy(planned(Objective::kTime), 9); },
              ThrowsMessage<ArgumentError>(HasSubstr("minimizes energy")));
  for (const double joules : {0.0, -1.0, std::numeric_limits<double>::infinity(),
                              std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THROW(withinEnergy(planned(), joules), ArgumentError) << joules;
  }
}

}  // namespace
}  // namespace poet::testing
