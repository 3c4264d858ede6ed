#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/executor.h"
#include "support/fails_once.h"
#include "support/plan_builder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A step that keeps some of what it makes, and that can be told to depart at op 4, when under the
// greedy plan everything that may be is away.
class DepartureTest : public ::testing::Test {
 protected:
  DepartureTest()
      : x_((at::set_num_threads(1), at::manual_seed(8), at::randn({40, 40}))),
        w_(at::randn({40, 40})),
        live_([this] { body(); }, /*verify=*/true) {
    live_.trace();
    expected_ = {a_.clone(), b_.clone(), c_.clone(), result_.clone()};
    letGo();
    live_.plan(greedyPlan(live_.graph()));
    EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
    expectAllReadable();
    EXPECT_GT(live_.session().executorCounters().evictions, 2);
    letGo();
  }

  void letGo() {
    for (at::Tensor* t : {&a_, &b_, &c_, &result_}) t->reset();
  }

  void body() {
    a_ = x_.mul(w_);
    b_ = a_.tanh();
    b_.add_(1);
    c_ = b_.sin();
    midway_();
    result_ = c_.mul(a_).add(b_);
    last_();
  }

  void expectAllReadable() {
    const std::vector<at::Tensor> now = {a_, b_, c_, result_};
    for (size_t i = 0; i < now.size(); ++i) {
      ASSERT_TRUE(now[i].defined());
      EXPECT_TRUE(sameBits(now[i], expected_[i])) << "tensor " << i;
    }
  }

  // How many of a, b, c are away at this point.
  int64_t evictedNow() {
    int64_t away = 0;
    for (const at::Tensor* t : {&a_, &b_, &c_}) {
      try {
        t->data_ptr();
      } catch (const c10::Error&) {
        ++away;
      }
    }
    return away;
  }

  at::Tensor x_, w_, a_, b_, c_, result_;
  std::vector<at::Tensor> expected_;
  std::function<void()> midway_ = [] {}, last_ = [] {};
  LiveStep live_;
};

TEST_F(DepartureTest, AnExtraOpBringsEverythingBack) {
  int64_t away = 0;
  at::Tensor extra;
  midway_ = [&] {
    away = evictedNow();
    extra = w_.neg();
    EXPECT_EQ(evictedNow(), 0);
  };
  const StepReport report = live_.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_GT(away, 0) << "nothing was away: the test tests nothing";
  EXPECT_TRUE(sameBits(extra, w_.neg()));
  EXPECT_THAT(live_.session().lastDeparture(), HasSubstr("aten::neg came"));
  EXPECT_EQ(report.num_ops, live_.graph().numOps() + 1);
  expectAllReadable();
}

TEST_F(DepartureTest, OtherShapesAreADeparture) {
  at::Tensor extra;
  midway_ = [&] { extra = c_.slice(0, 0, 7).mul(2); };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(sameBits(extra, expected_[2].slice(0, 0, 7).mul(2)));
  expectAllReadable();
}

TEST_F(DepartureTest, OtherShapesOfTheSameOpAreADeparture) {
  x_.resize_({30, 40});
  w_.resize_({30, 40});
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  EXPECT_THAT(live_.session().lastDeparture(), HasSubstr("op 0"));
  EXPECT_THAT(live_.session().lastDeparture(), HasSubstr("other shapes"));
  EXPECT_TRUE(sameBits(a_, x_.mul(w_)));
}

TEST_F(DepartureTest, FewerOpsAreADeparture) {
  int64_t away = 0;
  const StepReport report = live_.runOnce([&] {
    a_ = x_.mul(w_);
    b_ = a_.tanh();
    b_.add_(1);
    c_ = b_.sin();
    away = evictedNow();
    result_ = expected_[3];
  });
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_GT(away, 0);
  EXPECT_EQ(report.num_ops, 4);
  EXPECT_THAT(live_.session().lastDeparture(), HasSubstr("ended after 4 of"));
  expectAllReadable();
}

TEST_F(DepartureTest, AStepOfNoOpIsADeparture) {
  const StepReport report = live_.runOnce([] {});
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_EQ(report.num_ops, 0);
}

TEST_F(DepartureTest, AnOpAfterTheLastIsADeparture) {
  at::Tensor extra;
  last_ = [&] { extra = a_.add(b_); };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  EXPECT_THAT(live_.session().lastDeparture(), HasSubstr("goes on after its last traced op"));
  EXPECT_TRUE(sameBits(extra, expected_[0].add(expected_[1])));
  expectAllReadable();
}

TEST_F(DepartureTest, AnExceptionLeavesEverythingReadableAndTheNextCallWorks) {
  int64_t away = 0;
  midway_ = [&] {
    away = evictedNow();
    throw std::runtime_error("the user's own");
  };
  EXPECT_THROW(live_.run(), std::runtime_error);
  EXPECT_GT(away, 0);
  EXPECT_EQ(evictedNow(), 0);
  result_ = expected_[3];
  expectAllReadable();
  EXPECT_EQ(live_.session().counters().failed_steps, 1);
  midway_ = [] {};
  letGo();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  expectAllReadable();
}

TEST_F(DepartureTest, AnExceptionInsideAnOpIsNoDifferent) {
  midway_ = [&] { c_.mul(at::empty({3, 3})); };  // shapes that do not fit
  EXPECT_THROW(live_.run(), c10::Error);
  EXPECT_EQ(evictedNow(), 0);
  result_ = expected_[3];
  expectAllReadable();
  midway_ = [] {};
  letGo();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  expectAllReadable();
}

// What has to come back then is tried once more: it would be lost.
TEST_F(DepartureTest, AnAllocationThatFailsAsTheStepEndsLosesNothing) {
  const AllocatorTap::Guard tap;
  for (const bool throws : {false, true}) {
    int64_t away = 0;
    FailsOnce limit;
    const AllocatorTap::LimitGuard guard(limit);
    midway_ = [&] {
      away = evictedNow();
      if (!throws) return;
      limit.arm(1);
      throw std::runtime_error("the user's own");
    };
    last_ = [&] {
      away = evictedNow();
      limit.arm(1);
    };
    if (throws) {
      EXPECT_THROW(live_.run(), std::runtime_error);
      result_ = expected_[3];
    } else {
      live_.run();
    }
    EXPECT_GT(away, 0);
    EXPECT_TRUE(limit.hasFailed());
    EXPECT_EQ(evictedNow(), 0);
    expectAllReadable();
    letGo();
  }
}

// An op that throws, and the step goes on.
void fails(const at::Tensor& t) { EXPECT_THROW(t.matmul(t.slice(0, 0, 3)), c10::Error); }

TEST_F(DepartureTest, AnErrorThatTheStepCatchesDepartsOnceAndIsThenPartOfAPlan) {
  midway_ = [&] { fails(x_); };
  for (int i = 0; i < 4; ++i) {  // departs, then is recorded from its first op on, twice
    letGo();
    const StepReport report = live_.run();
    EXPECT_NE(report.mode, StepReport::Mode::kFailed);
    expectAllReadable();
    if (!report.newly_stable) continue;
    const auto graph = live_.session().graphOf(report.variant);
    live_.session().setPlan(report.variant, std::make_shared<const Schedule>(greedyPlan(*graph)),
                            hostProfile());
  }
  const int64_t departures = live_.session().counters().departures;
  letGo();
  live_.run();
  letGo();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  expectAllReadable();
  EXPECT_LE(live_.session().counters().departures, departures + 1);
  midway_ = [] {};  // and without the error the step is the one that it was before
  for (int i = 0; i < 2; ++i) {
    letGo();
    live_.run();
    expectAllReadable();
  }
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
}

TEST_F(DepartureTest, AnErrorInAPlannedOpThatIsCaughtIsADeparture) {
  last_ = [&] { c_.exp(); };
  live_.run();
  midway_ = [&] { fails(b_); };
  letGo();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  expectAllReadable();
}

TEST_F(DepartureTest, ADepartedStepIsAVariantLikeATracedOne) {
  // Twice the same departure makes a stable variant; with a plan it is followed.
  midway_ = [&] { w_.neg(); };
  const StepReport first = live_.run();
  const StepReport second = live_.run();
  EXPECT_EQ(first.variant, second.variant);
  EXPECT_TRUE(second.newly_stable);
  const auto graph = live_.session().graphOf(second.variant);
  live_.session().setPlan(second.variant, std::make_shared<const Schedule>(greedyPlan(*graph)),
                          hostProfile());
  letGo();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  expectAllReadable();
}

TEST_F(DepartureTest, ChangesOverToAVariantThatStartsAlike) {
  midway_ = [&] { w_.neg(); };
  live_.run();
  letGo();
  const int variant = live_.run().variant;
  const auto graph = live_.session().graphOf(variant);
  for (const bool greedy : {true, false}) {
    // The other plan has its values elsewhere when the streams part.
    const Schedule plan = greedy ? greedyPlan(*graph) : PlanBuilder(*graph).build();
    live_.session().setPlan(variant, std::make_shared<const Schedule>(plan), hostProfile());
    for (const bool extra : {false, true, true, false, false, true}) {
      midway_ = extra ? std::function<void()>([&] { w_.neg(); }) : [] {};
      letGo();
      EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
      expectAllReadable();
    }
  }
  EXPECT_GT(live_.session().executorCounters().switches, 0);
  EXPECT_EQ(live_.session().counters().departures, 2);
}

TEST_F(DepartureTest, AfterAChangeOfPlansValuesAreWhereTheOtherPlanHasThem) {
  const int plain = 0;  // the variant of the fixture
  const auto graph = live_.session().graphOf(plain);
  int64_t before = 0, after = 0;
  const std::function<void()> extra = [&] {
    before = evictedNow();
    w_.neg();
    after = evictedNow();
  };
  midway_ = extra;
  live_.run();
  const int other = live_.run().variant;
  const auto other_graph = live_.session().graphOf(other);
  const auto setPlans = [&](const Schedule& ours, const Schedule& others) {
    live_.session().setPlan(plain, std::make_shared<const Schedule>(ours), hostProfile());
    live_.session().setPlan(other, std::make_shared<const Schedule>(others), hostProfile());
  };
  const auto changeOver = [&] {
    const int64_t switches = live_.session().executorCounters().switches;
    for (int call = 0; call < 20; ++call) {
      midway_ = [] {};
      for (int quiet = 0; quiet <= call % 3; ++quiet) {
        letGo();
        live_.run();
      }
      midway_ = extra;
      letGo();
      const int64_t already = live_.session().executorCounters().switches;
      EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
      expectAllReadable();
      if (live_.session().executorCounters().switches > already) return true;
    }
    return live_.session().executorCounters().switches > switches;
  };
  setPlans(PlanBuilder(*graph).build(), greedyPlan(*other_graph));
  ASSERT_TRUE(changeOver());
  EXPECT_EQ(before, 0);
  EXPECT_EQ(after, 3) << "the other plan has them away here";
  setPlans(greedyPlan(*graph), PlanBuilder(*other_graph).build());
  ASSERT_TRUE(changeOver());
  EXPECT_GT(before, 0);
  EXPECT_EQ(after, 0) << "the other plan has them here";
}

// nonzero's result has as many rows as there are numbers other than zero.
TEST_F(DepartureTest, AnOpWhoseResultIsShapedByDataIsLeftBeforeItAndRunAgain) {
  at::Tensor kept, where, result;
  LiveStep live(
      [&] {
        kept = x_.mul(w_);
        x_.abs();
        where = at::nonzero(x_);
        result = kept.add(1);
      },
      /*verify=*/true);
  const int variant = live.trace();
  live.plan(greedyPlan(live.graph()));
  EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  x_.slice(0, 0, 3).zero_();
  const StepReport report = live.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_GE(report.variant, 0);
  EXPECT_NE(report.variant, variant);
  EXPECT_EQ(report.num_ops, 4);
  EXPECT_THAT(live.session().lastDeparture(), HasSubstr("made other results"));
  const std::shared_ptr<const Graph> recorded = live.session().graphOf(report.variant);
  EXPECT_EQ(recorded->value(recorded->op(OpId(2)).outputs.front()).bytes,
            static_cast<int64_t>(where.storage().nbytes()));
  EXPECT_TRUE(sameBits(kept, x_.mul(w_)));
  EXPECT_TRUE(sameBits(result, kept.add(1)));
  EXPECT_TRUE(sameBits(where, at::nonzero(x_)));
}

TEST_F(DepartureTest, AnOpThatWritesAndMakesOtherResultsThanWereTracedLosesTrack) {
  at::Tensor kept, where, result;
  LiveStep live([&] {
    kept = x_.mul(w_);
    x_.abs();
    where = at::empty({0}, at::kLong);
    at::nonzero_out(where, x_);
    result = kept.add(1);
  });
  live.trace();
  const Graph& g = live.graph();
  live.plan(greedyPlan(g));
  EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  x_.slice(0, 0, 3).zero_();
  const StepReport report = live.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_EQ(report.variant, -1);
  EXPECT_THAT(live.session().lastDeparture(), HasSubstr("made other results"));
  EXPECT_TRUE(sameBits(kept, x_.mul(w_)));
  EXPECT_TRUE(sameBits(result, kept.add(1)));
  EXPECT_TRUE(sameBits(where, at::nonzero(x_)));
}

// A training step with momentum that calls `at(point)` between its ops, in the forward pass, inside
// the backward pass and in the update.
class SteppedTraining {
 public:
  SteppedTraining() {
    at::manual_seed(31);
    x_ = at::randn({24, 24});
    for (int i = 0; i < 3; ++i) {
      weights_.push_back(at::randn({24, 24}).div_(5).requires_grad_());
      momentum_.push_back(at::zeros({24, 24}));
    }
  }

  void run(const std::function<void(int)>& at) {
    int point = 0;
    const auto next = [&] { at(point++); };
    at::Tensor h = x_;
    for (const at::Tensor& weight : weights_) {
      h = h.matmul(weight);
      next();
      h = h.tanh();
      h.register_hook([&next](const at::Tensor& gradient) {
        next();
        return gradient * 0.5;
      });
      next();
      h = h.add(0.1).relu_();
    }
    const at::Tensor loss = h.square().mean();
    next();
    loss.backward();
    next();
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < weights_.size(); ++i) {
      momentum_[i].mul_(0.9).add_(weights_[i].grad());
      next();
      weights_[i].sub_(momentum_[i], 0.1);
      weights_[i].mutable_grad().reset();
    }
    next();
    points_ = point;
  }

  State state() const {
    State found;
    for (size_t i = 0; i < weights_.size(); ++i) {
      found["weight " + std::to_string(i)] = weights_[i].detach().clone();
      found["momentum " + std::to_string(i)] = momentum_[i].clone();
      if (weights_[i].grad().defined())
        found["gradient " + std::to_string(i)] = weights_[i].grad().clone();
    }
    return found;
  }
  int points() const { return points_; }
  void forgetGradients() {
    for (const at::Tensor& weight : weights_) weight.mutable_grad().reset();
  }

 private:
  at::Tensor x_;
  std::vector<at::Tensor> weights_, momentum_;
  int points_ = 0;
};

struct Interrupt {};

class AnyPointTest : public ::testing::TestWithParam<bool> {};

TEST_P(AnyPointTest, DepartsWithTheSameBitsAsPlainTraining) {
  at::set_num_threads(1);
  const bool throws = GetParam();
  int points = 1;
  int64_t brought_back = 0;
  for (int point = 0; point < points; ++point) {
    const auto depart = [&](int at) {
      if (at != point) return;
      if (throws) throw Interrupt();
      at::ones({5}).exp();
    };
    SteppedTraining plain;
    for (int call = 0; call < 3; ++call) plain.run([](int) {});
    try {
      plain.run(depart);
    } catch (const Interrupt&) {
    }
    const State plain_departed = plain.state();
    plain.forgetGradients();
    plain.run([](int) {});
    points = plain.points();

    SteppedTraining training;
    LiveStep live([&] { training.run([](int) {}); }, /*verify=*/true);
    live.trace();
    live.plan(greedyPlan(live.graph()));
    EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
    try {
      EXPECT_EQ(live.runOnce([&] { training.run(depart); }).mode, StepReport::Mode::kDeparted);
    } catch (const Interrupt&) {
      EXPECT_EQ(live.session().counters().failed_steps, 1);
    }
    EXPECT_THAT(differences(plain_departed, training.state()), IsEmpty()) << "at point " << point;
    training.forgetGradients();
    EXPECT_EQ(live.run().mode, StepReport::Mode::kFollowed);
    EXPECT_THAT(differences(plain.state(), training.state()), IsEmpty()) << "after point " << point;
    brought_back += live.session().executorCounters().unplanned_recomputes;
  }
  EXPECT_GT(points, 12);
  EXPECT_GT(brought_back, points / 2) << "too little was away for this to test anything";
}

INSTANTIATE_TEST_SUITE_P(Departures, AnyPointTest, ::testing::Bool(),
                         [](const auto& one) { return one.param ? "Exception" : "ExtraOp"; });

// What another plan keeps of the dead, for a recompute to come, this one let go of: and what that
// was made from has changed.
TEST(ChangeOfPlans, IsRefusedWhereTheOtherOneLacksWhatItKept) {
  at::manual_seed(3);
  const at::Tensor x = at::randn({40, 40}), w = at::randn({40, 40});
  at::Tensor sine, result;
  bool extra = false;
  LiveStep live(
      [&] {
        at::Tensor a = x.mul(w);
        sine = a.tanh().sin();
        a.add_(1);
        const at::Tensor b = a.cos();
        if (extra) w.neg();
        result = sine.mul(b);
      },
      /*verify=*/true);
  const int plain = live.trace();
  const at::Tensor expected = result.clone();
  extra = true;
  live.run();
  sine.reset();
  result.reset();
  const int other = live.run().variant;
  ASSERT_NE(other, plain);
  const auto graph = live.session().graphOf(other);
  const ValueId tanh = madeBy(*graph, opNamed(*graph, "aten::tanh"));
  const ValueId made = madeBy(*graph, opNamed(*graph, "aten::sin"));
  const Schedule keeps = PlanBuilder(*graph)
                             .after(opNamed(*graph, "aten::sin").index)
                             .retain(tanh)
                             .before(opNamed(*graph, "aten::cos").index)
                             .free(made)
                             .before(opNamed(*graph, "aten::mul.Tensor", 1).index)
                             .recompute({opNamed(*graph, "aten::sin").index})
                             .build();
  live.session().setPlan(
      plain, std::make_shared<const Schedule>(PlanBuilder(*live.session().graphOf(plain)).build()),
      hostProfile());
  live.session().setPlan(other, std::make_shared<const Schedule>(keeps), hostProfile());
  for (int call = 0; call < 40; ++call) {
    extra = call % 10 > 7 || call % 7 == 5;  // at irregular times: no history foretells it
    sine.reset();
    result.reset();
    live.run();
    EXPECT_TRUE(sameBits(result, expected)) << "call " << call;
  }
  EXPECT_GT(live.session().counters().departures, 0);
  EXPECT_GT(live.session().executorCounters().evictions, 0) << "the other plan was followed, too";
}

}  // namespace
}  // namespace poet::testing
