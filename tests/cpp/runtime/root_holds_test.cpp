#include "runtime/root_holds.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>

#include "support/plan_builder.h"
#include "support/torch_step.h"

namespace poet::testing {
namespace {

// root -> middle -> leaf, where nothing makes `root` again: what it was made from is written to
// later. The leaf is away between two neg.
class RootHoldsTest : public ::testing::Test {
 protected:
  RootHoldsTest()
      : x_((at::set_num_threads(1), at::manual_seed(4), at::randn({32, 32}))),
        live_([this] { body(); }, /*verify=*/true) {}

  void body() {
    at::Tensor noise = x_.tanh();
    root_ = noise.add(1);
    noise.mul_(2);
    noise.reset();
    middle_ = root_.sin();
    if (root_goes_first_) root_.reset();
    leaf_ = middle_.cos();
    if (middle_goes_first_) middle_.reset();
    x_.neg();
    root_alive_ = root_.defined();
    if (root_.defined()) watched_ = root_.storage().getWeakStorageImpl();
    root_.reset();
    x_.abs();
    midway_();
    x_.neg();
    result_ = leaf_.add(1);
    if (middle_.defined()) result_ = result_.add(middle_);
    for (at::Tensor* t : {&leaf_, &middle_}) t->reset();
  }

  // Frees the leaf before the first neg; before the second it comes back.
  void planToEvictTheLeaf() {
    live_.trace();
    expected_ = result_;
    const Graph& g = live_.graph();
    const OpId first = opNamed(g, "aten::neg", 0), second = opNamed(g, "aten::neg", 1);
    PlanBuilder plan(g);
    plan.before(first.index).free(madeBy(g, opNamed(g, "aten::cos")));
    live_.plan(plan.before(second.index).recompute({opNamed(g, "aten::cos")}).build());
  }

  bool leafIsAway() const {
    try {
      leaf_.data_ptr();
      return false;
    } catch (const c10::Error&) {
      return true;
    }
  }

  ExecutorCounters counters() { return live_.session().executorCounters(); }

  at::Tensor x_, root_, middle_, leaf_, result_, expected_;
  WeakStorage watched_ = x_.storage().getWeakStorageImpl();
  bool root_goes_first_ = false, middle_goes_first_ = false, root_alive_ = false;
  std::function<void()> midway_ = [] {};
  LiveStep live_;
};

TEST_F(RootHoldsTest, WhatWasMadeFromADeadRootStandsInForIt) {
  root_goes_first_ = true;
  planToEvictTheLeaf();
  bool away = false;
  midway_ = [&] { away = leafIsAway(); };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  EXPECT_TRUE(away);
  EXPECT_TRUE(sameBits(result_, expected_));
  EXPECT_EQ(counters().planned_recomputes, 1);
  EXPECT_EQ(counters().unplanned_recomputes, 0);
}

TEST_F(RootHoldsTest, ARootThatDiesIsHeldNoLongerIfAnotherValueCanStandIn) {
  planToEvictTheLeaf();
  bool away = false, root_lives = true;
  midway_ = [&] {
    away = leafIsAway();
    root_lives = static_cast<bool>(watched_.lock());
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  EXPECT_TRUE(root_alive_) << "it had died before the eviction: the test tests nothing";
  EXPECT_TRUE(away);
  EXPECT_FALSE(root_lives);
  EXPECT_TRUE(sameBits(result_, expected_));
  EXPECT_EQ(counters().unplanned_recomputes, 0);
}

TEST_F(RootHoldsTest, WithNothingInItsSteadARootIsHeldUntilTheValueIsBack) {
  middle_goes_first_ = true;
  live_.trace();
  expected_ = result_;
  const Graph& g = live_.graph();
  const OpId sin = opNamed(g, "aten::sin"), cos = opNamed(g, "aten::cos");
  const OpId first = opNamed(g, "aten::neg", 0), second = opNamed(g, "aten::neg", 1);
  live_.plan(PlanBuilder(g)
                 .before(first.index)
                 .free(madeBy(g, cos))
                 .after(sin.index)
                 .retain(madeBy(g, opNamed(g, "aten::add.Scalar", 0)))
                 .before(second.index)
                 .recompute({sin})
                 .recompute({cos})
                 .free(madeBy(g, sin))
                 .free(madeBy(g, opNamed(g, "aten::add.Scalar", 0)))
                 .build());
  bool away = false, root_lives = false;
  midway_ = [&] {
    away = leafIsAway();
    root_lives = static_cast<bool>(watched_.lock());
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  EXPECT_TRUE(away);
  EXPECT_TRUE(root_lives);
  EXPECT_FALSE(static_cast<bool>(watched_.lock()));
  EXPECT_TRUE(sameBits(result_, expected_));
  EXPECT_EQ(counters().unplanned_recomputes, 0);
}

TEST_F(RootHoldsTest, ADepartureFindsWhatStoodIn) {
  planToEvictTheLeaf();
  bool away = false;
  at::Tensor extra;
  midway_ = [&] {
    away = leafIsAway();
    extra = x_.exp();
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(away);
  EXPECT_TRUE(sameBits(result_, expected_));
  EXPECT_EQ(counters().unplanned_recomputes, 1);
}

// The value dies while it is away, and its root with it: the memory of both is free for the next
// op.
TEST(RootsThatDie, GoWithTheValueThatTheyAreHeldFor) {
  at::set_num_threads(1);
  const at::Tensor x = at::randn({256, 256});
  LiveStep live(
      [&] {
        at::Tensor noise = x.tanh();
        at::Tensor root = noise.add(1);
        noise.mul_(2);  // nothing makes the root again
        at::Tensor leaf = root.sin();
        x.neg();
        leaf.reset();
        root.reset();
        x.abs();
        noise.reset();
      },
      /*verify=*/true);  // throws where more is resident than the simulator says
  live.trace();
  const Graph& g = live.graph();
  const OpId neg = opNamed(g, "aten::neg");
  live.plan(PlanBuilder(g).before(neg.index).free(madeBy(g, opNamed(g, "aten::sin"))).build());
  EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  EXPECT_EQ(live.session().executorCounters().evictions, 1);
}

}  // namespace
}  // namespace poet::testing
