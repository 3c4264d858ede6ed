#include "runtime/compiled_plan.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/error.h"
#include "support/plan_builder.h"
#include "support/recording.h"
#include "support/torch_step.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class CompiledPlanTest : public ::testing::Test {
 protected:
  CompiledPlanTest()
      : x_((at::set_num_threads(1), at::manual_seed(2), at::randn({40, 40}))),
        w_(at::randn({40, 40})) {}

  void record(const std::function<void()>& step) { recording_ = recordStep(step); }
  const Graph& graph() const { return *recording_->graph; }
  CompiledPlan compile(const Schedule& schedule) const {
    return CompiledPlan(recording_, std::make_shared<const Schedule>(schedule), hostProfile());
  }
  std::string refusal(const Schedule& schedule) const {
    try {
      compile(schedule);
      return "accepted";
    } catch (const ScheduleError& e) {
      return e.what();
    }
  }
  ValueId made(int64_t op) const { return madeBy(graph(), OpId(op)); }

  at::Tensor x_, w_;
  std::shared_ptr<const Recording> recording_;
};

TEST_F(CompiledPlanTest, AScheduleOfAnotherGraphIsRefusedByItsSignature) {
  record([&] { x_.neg().abs(); });
  const Schedule other = PlanBuilder(graph()).build();
  record([&] { x_.abs().neg(); });
  EXPECT_THAT(refusal(PlanBuilder(graph()).build()), "accepted");
  EXPECT_THAT(refusal(other), HasSubstr("graph"));
}

TEST_F(CompiledPlanTest, AScheduleWithoutAPlanIsRefusedWithItsReason) {
  record([&] { x_.neg(); });
  Schedule none = PlanBuilder(graph()).build();
  none.status = Status::kInfeasible;
  none.message = "not in a thousand years";
  none.before.clear();
  none.after.clear();
  EXPECT_THAT(refusal(none), HasSubstr("infeasible: not in a thousand years"));
}

TEST_F(CompiledPlanTest, AScheduleThatCannotBeCarriedOutIsRefused) {
  record([&] {
    const at::Tensor a = x_.neg();
    a.abs();
  });
  EXPECT_NE(refusal(PlanBuilder(graph()).before(1).free(made(0)).build()), "accepted");
  // Only half of an in-place chain.
  record([&] {
    const at::Tensor a = x_.neg();
    a.add_(1);
    x_.exp();
    a.abs();
  });
  EXPECT_NE(refusal(PlanBuilder(graph()).before(2).free(made(0)).before(3).recompute({0}).build()),
            "accepted");
  EXPECT_EQ(
      refusal(PlanBuilder(graph()).before(2).free(made(0)).before(3).recompute({0, 1}).build()),
      "accepted");
}

TEST_F(CompiledPlanTest, RecordsWhatBringingBackMayNeedAndNothingElse) {
  record([&] {
    const at::Tensor a = x_.mul(w_);  // 0
    const at::Tensor b = a.tanh();    // 1: needs a
    x_.neg();                         // 2
    w_.exp();                         // 3
    b.add(1);                         // 4
  });
  const CompiledPlan plan =
      compile(PlanBuilder(graph()).before(2).free(made(1)).before(4).recompute({1}).build());
  std::vector<bool> recorded;
  for (size_t k = 0; k < plan.numOps(); ++k) recorded.push_back(plan.hot(k).record);
  EXPECT_THAT(recorded, ElementsAre(true, true, false, false, false));
  EXPECT_TRUE(plan.hot(2).has_before);
  EXPECT_FALSE(plan.hot(3).has_before);
}

TEST_F(CompiledPlanTest, WhatIsAwayIsRescuedBeforeWhatItNeedsIsOverwritten) {
  // a can be recomputed from w only until w is written; the program holds it longer.
  record([&] {
    {
      const at::Tensor a = w_.mul(2);  // 0
      x_.neg();                        // 1
      w_.add_(1);                      // 2
      x_.exp();                        // 3
    }
    x_.abs();  // 4
  });
  const CompiledPlan plan = compile(PlanBuilder(graph()).before(1).free(made(0)).build());
  EXPECT_THAT(plan.rescuesBefore(2), ElementsAre(made(0)));
  EXPECT_TRUE(plan.hot(2).has_rescue);
  for (size_t k : {0, 1, 3, 4, 5}) EXPECT_THAT(plan.rescuesBefore(k), IsEmpty()) << k;
}

TEST_F(CompiledPlanTest, AValuesLastChanceIsThatOfWhatItIsMadeOf) {
  // b is made of a alone; a comes back from w, which is written.
  record([&] {
    {
      const at::Tensor a = w_.mul(2);  // 0
      const at::Tensor b = a.tanh();   // 1
      w_.add_(1);                      // 2
      x_.exp();                        // 3
    }
    x_.abs();  // 4
  });
  const CompiledPlan plan =
      compile(PlanBuilder(graph()).before(2).free(made(0)).free(made(1)).build());
  EXPECT_THAT(plan.rescuesBefore(2), ElementsAre(made(0), made(1)));
}

TEST_F(CompiledPlanTest, RootsAreWhatHasNoRecipeAndIsOfTheStep) {
  registerListener();
  record([&] {
    const at::Tensor seed = at::arange(40);  // integers of one dimension stay: no recipe
    const at::Tensor a = seed.mul(0.5);
    const at::Tensor b = a.add(x_);
    b.tanh();
  });
  const Graph& g = graph();
  const ValueId seed = madeBy(g, opNamed(g, "aten::arange"));
  const ValueId a = madeBy(g, opNamed(g, "aten::mul")), b = madeBy(g, opNamed(g, "aten::add"));
  const CompiledPlan plan = compile(PlanBuilder(g).build());
  ASSERT_LT(plan.recipes().recipeOf(seed), 0);
  EXPECT_THAT(plan.rootsOf(a), ElementsAre(seed));
  EXPECT_THAT(plan.rootsOf(b), ElementsAre(seed)) << "x is held by the records";
  EXPECT_FALSE(plan.isHeldByRecords(seed));
  for (const Slot& slot : recording_->ops[opNamed(g, "aten::add").index].in()) {
    EXPECT_EQ(plan.isHeldByRecords(slot.value), slot.value != a);
  }
}

TEST_F(CompiledPlanTest, GeneratorStatesAreKeptForWhatThePlanRepeats) {
  record([&] {
    const at::Tensor a = x_.bernoulli(0.5);
    const at::Tensor b = x_.bernoulli(0.5);
    x_.neg();
    a.add(b);
  });
  const CompiledPlan plan =
      compile(PlanBuilder(graph()).before(2).free(made(0)).before(3).recompute({0}).build());
  EXPECT_TRUE(plan.keepsGenerator(0));
  EXPECT_FALSE(plan.keepsGenerator(1));
  EXPECT_FALSE(plan.keepsGenerator(2));
}

TEST_F(CompiledPlanTest, SlotsSayWhatEveryTensorOfAnOpIs) {
  record([&] {
    const at::Tensor a = x_.mul(w_);
    a.view({-1});
    a.add_(x_);
  });
  const CompiledPlan plan = compile(PlanBuilder(graph()).build());
  const auto& mul = plan.hot(0);
  ASSERT_EQ(mul.n_in, 2);
  ASSERT_EQ(mul.n_out, 1);
  const Slot* slots = mul.slots;
  EXPECT_FALSE(slots[0].made_here);
  EXPECT_NE(slots[0].value, slots[1].value);
  EXPECT_TRUE(slots[2].made_here);
  EXPECT_EQ(slots[2].value, made(0));
  EXPECT_TRUE(plan.hot(1).metadata_only);
  EXPECT_FALSE(plan.hot(2).metadata_only);
  EXPECT_FALSE(plan.hot(2).slots[2].made_here) << "an in-place op makes no value";
  EXPECT_EQ(plan.residentBytes().size(), plan.numOps());
}

}  // namespace
}  // namespace poet::testing
