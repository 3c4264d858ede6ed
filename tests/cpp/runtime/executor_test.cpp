#include "runtime/executor.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "graph/error.h"
#include "support/plan_builder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ------------------------------------------------------------------------------------------------
// whole training steps under random plans

class RandomPlans : public ::testing::TestWithParam<std::tuple<NamedStep, double>> {};

// Under the debug mode: evicted bytes and resident bytes are checked as well.
TEST_P(RandomPlans, KeepEveryBit) {
  const auto& [named, eagerness] = GetParam();
  const bool has_variants = std::string(named.name) == "accumulation";
  const int calls = has_variants ? 15 : 6;
  const Trained plain = trainPlain(named.make(), calls);

  const TorchStep step = named.make();
  LiveStep live(step, /*verify=*/true);
  for (int call = 0; call < calls; ++call) {
    const StepReport report = live.run();
    if (!report.newly_stable) continue;
    const auto graph = live.session().graphOf(report.variant);
    const Schedule plan = eagerness == 1
                              ? greedyPlan(*graph)
                              : validPlan(*graph, 7 + static_cast<uint64_t>(call), eagerness);
    live.session().setPlan(report.variant, std::make_shared<const Schedule>(plan), hostProfile());
  }

  EXPECT_THAT(differences(plain.state, step.state()), IsEmpty());
  for (int call = 0; call < calls; ++call) {
    EXPECT_TRUE(
        sameBits(plain.losses[static_cast<size_t>(call)], live.losses()[static_cast<size_t>(call)]))
        << "loss of call " << call;
  }
  const ExecutorCounters counters = live.session().executorCounters();
  EXPECT_GE(live.session().counters().followed_steps, 3);
  EXPECT_EQ(live.session().counters().departures, 0) << live.session().lastDeparture();
  if (counters.switches == 0) {  // a change of plans brings back what the other plan wants
    EXPECT_EQ(counters.unplanned_recomputes, 0) << counters.first_unplanned;
  }
  EXPECT_EQ(counters.switches > 0, has_variants);
  EXPECT_GT(counters.evictions, 0);
  EXPECT_GT(counters.planned_recomputes, 0);
  EXPECT_GE(counters.replayed_ops, counters.planned_recomputes);
}

INSTANTIATE_TEST_SUITE_P(Executor, RandomPlans,
                         ::testing::Combine(::testing::ValuesIn(allSteps()),
                                            ::testing::Values(0.1, 0.4, 1.0)),
                         [](const ::testing::TestParamInfo<RandomPlans::ParamType>& one) {
                           return std::string(std::get<0>(one.param).name) + "_" +
                                  std::to_string(static_cast<int>(std::get<1>(one.param) * 100));
                         });

// ------------------------------------------------------------------------------------------------
// small steps, plans by hand

class ExecutorTest : public ::testing::Test {
 protected:
  ExecutorTest() {
    at::set_num_threads(1);
    at::manual_seed(3);
    x_ = at::randn({64, 64});
    w_ = at::randn({64, 64});
  }

  at::Tensor x_, w_;
  std::function<void()> probe_ = [] {};
};

TEST_F(ExecutorTest, AnEvictedTensorHasNoMemoryUntilItsRecompute) {
  at::Tensor result, hidden;
  size_t bytes = 0;
  LiveStep live([&] {
    hidden = x_.mul(w_);
    hidden.tanh();
    bytes = hidden.storage().nbytes();
    probe_();
    result = hidden.add(1);
    hidden.reset();
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  const ValueId v = madeBy(g, opNamed(g, "aten::mul"));
  live.plan(
      PlanBuilder(g).before(1).free(v).recompute({0}).before(2).free(v).recompute({0}).build());
  live.run();
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 2);
  EXPECT_EQ(live.session().executorCounters().evictions, 2);
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_EQ(bytes, 64 * 64 * sizeof(float));
}

TEST_F(ExecutorTest, ARawReadOfAnEvictedTensorFailsWithAClearMessage) {
  at::Tensor result;
  std::string message;
  c10::StorageImpl* address = nullptr;
  LiveStep live([&] {
    const at::Tensor hidden = x_.mul(w_);
    address = hidden.storage().unsafeGetStorageImpl();
    x_.neg();
    probe_ = [&] {
      EXPECT_EQ(hidden.sizes(), at::IntArrayRef({64, 64}));
      EXPECT_EQ(hidden.storage().nbytes(), 64 * 64 * sizeof(float));
      try {
        hidden.data_ptr();
        message = "no error";
      } catch (const c10::Error& e) {
        message = e.what_without_backtrace();
      }
    };
    probe_();
    result = hidden.add(1);
    EXPECT_EQ(hidden.storage().unsafeGetStorageImpl(), address);
    EXPECT_NE(hidden.data_ptr(), nullptr);
  });
  live.trace();
  EXPECT_EQ(message, "no error");
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  const ValueId v = madeBy(g, OpId(0));
  live.plan(PlanBuilder(g).before(1).free(v).before(2).recompute({0}).build());
  live.run();
  EXPECT_THAT(message, HasSubstr("poet: this tensor's memory has been released"));
  EXPECT_THAT(message, HasSubstr("detach()"));
  EXPECT_TRUE(sameBits(result, expected));
}

TEST_F(ExecutorTest, AViewOfAnEvictedTensorNeedsNoMemory) {
  at::Tensor result;
  LiveStep live([&] {
    const at::Tensor a = x_.mul(w_);
    const at::Tensor row = a.view({-1}).slice(0, 64, 128);
    EXPECT_EQ(row.sizes(), at::IntArrayRef({64}));
    x_.abs();
    result = row.clone();
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  const ValueId v = madeBy(g, OpId(0));
  const OpId clone = opNamed(g, "aten::clone");
  live.plan(PlanBuilder(g).before(1).free(v).before(clone.index).recompute({0}).build());
  live.run();
  EXPECT_EQ(live.session().executorCounters().unplanned_recomputes, 0)
      << live.session().executorCounters().first_unplanned;
  EXPECT_TRUE(sameBits(result, expected));
}

TEST_F(ExecutorTest, ARetainedValueOutlivesItsNaturalDeath) {
  // b needs a, which the step lets go of: only the retention lets b come back without replaying a.
  at::Tensor result;
  LiveStep live([&] {
    at::Tensor a = x_.mul(w_);
    const at::Tensor b = a.tanh();
    a.reset();
    x_.neg();
    result = b.add(1);
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  const ValueId a = madeBy(g, OpId(0)), b = madeBy(g, OpId(1));
  ASSERT_EQ(g.value(a).death, OpId(1));
  live.plan(
      PlanBuilder(g).after(1).retain(a).before(2).free(b).before(3).recompute({1}).free(a).build());
  live.run();
  EXPECT_EQ(live.session().executorCounters().replayed_ops, 1);
  EXPECT_EQ(live.session().executorCounters().unplanned_recomputes, 0)
      << live.session().executorCounters().first_unplanned;
  EXPECT_TRUE(sameBits(result, expected));
}

TEST_F(ExecutorTest, AFreeLeavesAloneWhatSomebodyStillHolds) {
  // The plan frees a dead value; in this call the program has kept it.
  at::Tensor kept, result;
  bool keep = false;
  LiveStep live([&] {
    {
      const at::Tensor a = x_.mul(w_);
      const at::Tensor b = a.tanh();
      if (keep) kept = a;
      result = b;
    }
    x_.neg();
    x_.abs();
  });
  live.trace();
  const Graph& g = live.graph();
  const ValueId a = madeBy(g, OpId(0));
  ASSERT_EQ(g.value(a).death, OpId(1));
  live.plan(PlanBuilder(g).after(1).retain(a).before(3).free(a).build());
  live.run();
  EXPECT_EQ(live.session().executorCounters().skipped_frees, 0);
  keep = true;
  live.run();
  EXPECT_TRUE(sameBits(kept, x_.mul(w_)));
  EXPECT_EQ(live.session().executorCounters().evictions, 0);
  EXPECT_EQ(live.session().executorCounters().skipped_frees, 1);
}

TEST_F(ExecutorTest, TheStepEndsWithEverythingBack) {
  at::Tensor a;
  LiveStep live([&] {
    a = x_.mul(w_);
    x_.neg();
  });
  a.reset();
  live.trace();
  const Graph& g = live.graph();
  ASSERT_EQ(g.value(madeBy(g, OpId(0))).death, g.endOfStep());
  live.plan(PlanBuilder(g).before(1).free(madeBy(g, OpId(0))).before(2).recompute({0}).build());
  a.reset();
  live.run();
  EXPECT_TRUE(sameBits(a, x_.mul(w_)));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ExecutorTest, WhatIsAwayComesBackBeforeWhatItIsMadeOfIsOverwritten) {
  // Neither a raw reader nor a departure may find it lost or made of the new version.
  at::Tensor seen;
  bool depart = false;
  LiveStep live([&] {
    {
      const at::Tensor a = w_.mul(x_);
      x_.neg();
      w_.add_(1);
      if (depart) seen = a.add(0);
      x_.exp();
    }
    x_.abs();
  });
  live.trace();
  const Graph& g = live.graph();
  live.plan(PlanBuilder(g).before(1).free(madeBy(g, OpId(0))).build());
  for (const bool departs : {false, true}) {
    depart = departs;
    const at::Tensor expected = w_.mul(x_);
    EXPECT_EQ(live.run().mode, departs ? StepReport::Mode::kDeparted : StepReport::Mode::kFollowed);
    if (departs) {
      EXPECT_TRUE(sameBits(seen, expected.add(0)));
    }
  }
  EXPECT_EQ(live.session().executorCounters().unplanned_recomputes, 2);
}

TEST_F(ExecutorTest, TheSameStorageAsTwoValuesIsAMismatch) {
  at::Tensor result;
  bool same = false;
  LiveStep live([&] {
    const at::Tensor other = same ? x_ : w_;
    result = at::add(x_, other);
    result.mul_(2);
  });
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  ASSERT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  same = true;
  const StepReport report = live.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_THAT(live.session().lastDeparture(), HasSubstr("other tensors"));
  EXPECT_TRUE(sameBits(result, x_.add(x_).mul(2)));
}

TEST_F(ExecutorTest, AKnownStorageInANewValuesPlaceIsAMismatch) {
  at::Tensor result;
  bool same = false;
  LiveStep live([&] {
    x_.neg();
    result = (same ? x_ : w_).abs();
  });
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  ASSERT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  same = true;
  EXPECT_EQ(live.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(sameBits(result, x_.abs()));
}

TEST_F(ExecutorTest, WhatNoRecipeBringsBackIsHeldWhileSomethingAwayIsMadeOfIt) {
  // Integers of one dimension have no recipe, and the step lets go of them.
  at::Tensor seen;
  bool depart = false;
  LiveStep live([&] {
    {
      at::Tensor seed = at::arange(64);
      const at::Tensor a = seed.mul(x_);
      x_.neg();
      seed.reset();
      if (depart) seen = a.add(0);
      x_.exp();
    }
    x_.abs();
  });
  live.trace();
  const Graph& g = live.graph();
  const OpId mul = opNamed(g, "aten::mul");
  const ValueId seed = madeBy(g, opNamed(g, "aten::arange"));
  ASSERT_EQ(g.value(seed).death.index, mul.index + 1);
  live.plan(PlanBuilder(g).before(mul.index + 1).free(madeBy(g, mul)).build());
  EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  EXPECT_EQ(live.session().executorCounters().evictions, 1);
  depart = true;
  EXPECT_EQ(live.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(sameBits(seen, at::arange(64).mul(x_).add(0)));
}

TEST_F(ExecutorTest, TwoStoragesAsOneValueIsAMismatch) {
  at::Tensor result;
  bool same = true;
  LiveStep live([&] { result = at::add(x_, same ? x_ : w_); });
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  ASSERT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  same = false;
  EXPECT_EQ(live.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(sameBits(result, x_.add(w_)));
}

TEST_F(ExecutorTest, AKnownValueInAnotherPlaceIsAMismatch) {
  at::Tensor result;
  bool swapped = false;
  LiveStep live([&] {
    const at::Tensor a = x_.mul(w_), b = x_.add(w_);
    result = swapped ? b.sub(a) : a.sub(b);
  });
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  ASSERT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  swapped = true;
  EXPECT_EQ(live.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(sameBits(result, x_.add(w_).sub(x_.mul(w_))));
}

TEST_F(ExecutorTest, ScalarsAreThisStepsOwn) {
  // A replay takes the number of this call, not the one that was traced.
  double number = 1;
  at::Tensor result;
  LiveStep live([&] {
    const at::Tensor a = x_.mul(number);
    x_.neg();
    result = a.add(1);
  });
  live.trace();
  const Graph& g = live.graph();
  live.plan(PlanBuilder(g)
                .before(1)
                .free(madeBy(g, opNamed(g, "aten::mul")))
                .before(2)
                .recompute({0})
                .build());
  for (number = 2; number < 5; ++number) {
    EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
    EXPECT_TRUE(sameBits(result, x_.mul(number).add(1))) << number;
  }
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 3);
}

}  // namespace
}  // namespace poet::testing
