#include "runtime/session.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "device/profile.h"
#include "graph/error.h"
#include "schedule/simulator.h"
#include "support/plan_builder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"
#include "trace/listener.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::SizeIs;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest()
      : x_((at::set_num_threads(1), at::manual_seed(4), at::randn({32, 32}))),
        w_(at::randn({32, 32})),
        live_([this] { body(); }) {}

  // a and b are away in the middle under planAway().
  void body() {
    a_ = x_.mul(w_);
    b_ = a_.tanh();
    x_.neg();
    midway_();
    result_ = a_.add(b_);
  }
  void planAway() {
    const Graph& g = live_.graph();
    live_.plan(PlanBuilder(g)
                   .before(2)
                   .free(madeBy(g, OpId(0)))
                   .free(madeBy(g, OpId(1)))
                   .before(3)
                   .recompute({0})
                   .recompute({1})
                   .build());
  }
  static bool isAway(const at::Tensor& t) {
    try {
      t.data_ptr();
      return false;
    } catch (const c10::Error&) {
      return true;
    }
  }

  at::Tensor x_, w_, a_, b_, result_;
  std::function<void()> midway_ = [] {};
  LiveStep live_;
};

TEST_F(SessionTest, AnOptimizerThatWasEnteredBetweenTheStepsIsNoPartOfTheNextOne) {
  live_.session().enterOptimizer();  // its step raised where no poet step ran
  midway_ = [&] {
    live_.session().enterOptimizer();
    x_.abs();
    live_.session().leaveOptimizer();
  };
  const auto graph = live_.session().graphOf(live_.run().variant);
  ASSERT_NE(graph, nullptr);
  const Graph& g = *graph;
  ASSERT_EQ(g.numOps(), 5);
  EXPECT_EQ(g.op(OpId(3)).phase, Phase::kOptimizer);
  for (const int k : {0, 1, 2, 4}) EXPECT_NE(g.op(OpId(k)).phase, Phase::kOptimizer) << k;
}

TEST_F(SessionTest, AStepWithinItselfIsAnErrorAndTheOuterOneGoesOn) {
  std::string message;
  midway_ = [&] {
    try {
      live_.session().beginStep({});
      message = "no error";
    } catch (const Error& e) {
      message = e.what();
    }
  };
  const StepReport report = live_.run();
  EXPECT_THAT(message, HasSubstr("running already"));
  EXPECT_EQ(report.mode, StepReport::Mode::kTraced);
  EXPECT_EQ(report.num_ops, 4);
  EXPECT_FALSE(isListening());
}

TEST_F(SessionTest, AnotherSessionsStepWithinAStepIsAnErrorAndBothAreUsableAfterwards) {
  LiveStep inner([&] { x_.abs(); });
  bool refused = false;
  midway_ = [&] {
    try {
      inner.run();
    } catch (const Error&) {
      refused = true;
    }
  };
  EXPECT_EQ(live_.run().num_ops, 4);
  EXPECT_TRUE(refused);
  EXPECT_EQ(inner.run().num_ops, 1);
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kTraced);
}

TEST_F(SessionTest, ReportsAndCountersTellWhatHappened) {
  EXPECT_TRUE(live_.session().nextStepIsTraced());
  const StepReport first = live_.run();
  EXPECT_EQ(first.mode, StepReport::Mode::kTraced);
  EXPECT_FALSE(first.newly_stable);
  EXPECT_EQ(first.num_ops, 4);
  const StepReport second = live_.run();
  EXPECT_TRUE(second.newly_stable);
  EXPECT_EQ(second.variant, first.variant);
  EXPECT_FALSE(live_.run().newly_stable) << "only once";
  EXPECT_TRUE(live_.session().nextStepIsTraced());

  const auto graph = live_.session().graphOf(first.variant);
  live_.session().setPlan(first.variant, std::make_shared<const Schedule>(greedyPlan(*graph)),
                          hostProfile());
  EXPECT_FALSE(live_.session().nextStepIsTraced());
  const StepReport followed = live_.run();
  EXPECT_EQ(followed.mode, StepReport::Mode::kFollowed);
  EXPECT_EQ(followed.variant, first.variant);
  EXPECT_EQ(followed.num_ops, 4);

  const SessionCounters counters = live_.session().counters();
  EXPECT_EQ(counters.steps, 4);
  EXPECT_EQ(counters.traced_steps, 3);
  EXPECT_EQ(counters.followed_steps, 1);
  EXPECT_EQ(counters.departures, 0);
  EXPECT_EQ(counters.failed_steps, 0);
  EXPECT_EQ(live_.session().numVariants(), 1);
  EXPECT_EQ(live_.session().lastDeparture(), "");
}

TEST_F(SessionTest, TheFirstStepsInAPlanTellWhatEachOpTakes) {
  live_.trace();
  planAway();
  Session& session = live_.session();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  EXPECT_THAT(session.opSeconds(0).ops, IsEmpty()) << "too few to tell";
  live_.run();
  const Session::OpSeconds seconds = session.opSeconds(0);
  EXPECT_THAT(seconds.ops, SizeIs(live_.graph().numOps()));
  EXPECT_THAT(seconds.ops, Each(AllOf(Gt(0), Lt(10)))) << "each ran, replays or not";
  EXPECT_THAT(seconds.host, SizeIs(live_.graph().numOps()));
  EXPECT_THAT(seconds.host, Each(AllOf(Gt(0), Lt(10))));
  live_.run();
  EXPECT_EQ(session.opSeconds(0).ops, seconds.ops) << "no more are timed";
  EXPECT_THAT(session.opSeconds(7).ops, IsEmpty()) << "no such variant";
}

TEST_F(SessionTest, WhatTheProgramTakesBetweenOpsIsTheStepsToo) {
  const std::chrono::milliseconds pause(30);
  midway_ = [&] { std::this_thread::sleep_for(pause); };
  live_.trace();
  const double seconds = std::chrono::duration<double>(pause).count();
  std::vector<double> host;
  for (const Op& op : live_.graph().ops()) host.push_back(op.host_seconds);
  EXPECT_EQ(std::count_if(host.begin(), host.end(), [&](double s) { return s >= seconds; }), 1);
  EXPECT_GE(live_.graph().plainSeconds(), seconds);
  EXPECT_GE(simulatePlain(live_.graph(), hostProfile()).makespan_seconds, seconds);
}

TEST_F(SessionTest, AFailedTraceIsForgotten) {
  midway_ = [] { throw std::runtime_error("no"); };
  EXPECT_THROW(live_.run(), std::runtime_error);
  EXPECT_EQ(live_.session().numVariants(), 0);
  EXPECT_EQ(live_.session().counters().failed_steps, 1);
  EXPECT_FALSE(isListening());
  midway_ = [] {};
  EXPECT_EQ(live_.run().num_ops, 4);
}

TEST_F(SessionTest, AnUnplannableVariantIsTracedOn) {
  const int variant = live_.trace();
  live_.session().setUnplannable(variant);
  EXPECT_TRUE(live_.session().nextStepIsTraced());
  const StepReport report = live_.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kTraced);
  EXPECT_EQ(report.variant, variant);
  EXPECT_FALSE(report.newly_stable);
}

TEST_F(SessionTest, UnknownVariants) {
  EXPECT_EQ(live_.session().graphOf(3), nullptr);
  live_.trace();
  EXPECT_EQ(live_.session().graphOf(3), nullptr);
  live_.session().setUnplannable(3);
  live_.session().setPlan(3, std::make_shared<const Schedule>(PlanBuilder(live_.graph()).build()),
                          hostProfile());
  EXPECT_TRUE(live_.session().nextStepIsTraced());
}

TEST_F(SessionTest, AScheduleOfAnotherGraphIsRefusedAndTheStepGoesOnWithout) {
  live_.trace();
  LiveStep other([&] { x_.abs().neg().exp().sin(); });
  other.trace();
  EXPECT_THROW(live_.plan(PlanBuilder(other.graph()).build()), ScheduleError);
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kTraced);
}

TEST_F(SessionTest, WhatRunsBetweenStepsIsNotHeard) {
  live_.trace();
  planAway();
  live_.run();
  x_.abs().neg();
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
}

TEST_F(SessionTest, TouchBringsATensorBackForTheRestOfTheStep) {
  live_.trace();
  const at::Tensor expected = result_.clone();
  const Graph& g = live_.graph();
  const ValueId a = madeBy(g, OpId(0));
  live_.plan(PlanBuilder(g)
                 .before(2)
                 .free(a)
                 .before(3)
                 .recompute({0})
                 .before(4)
                 .free(a)
                 .recompute({0})
                 .build());
  bool was_away = false;
  const at::Tensor a_plain = x_.mul(w_);
  midway_ = [&] {
    was_away = isAway(a_);
    live_.session().touch(a_);
    ASSERT_FALSE(isAway(a_));
    EXPECT_TRUE(sameBits(a_, a_plain));
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
  EXPECT_TRUE(was_away);
  EXPECT_TRUE(sameBits(result_, expected));
  const ExecutorCounters counters = live_.session().executorCounters();
  EXPECT_EQ(counters.evictions, 1) << "it is pinned: the second eviction must not happen";
  EXPECT_EQ(counters.unplanned_recomputes, 1);
  EXPECT_THAT(counters.first_unplanned, HasSubstr("aten::mul"));
}

TEST_F(SessionTest, TouchOutsideAPlannedStepDoesNothing) {
  live_.session().touch(x_);
  midway_ = [&] { live_.session().touch(a_); };
  EXPECT_EQ(live_.run().num_ops, 4);
}

// A thread that inherits the caller's state, as those of the intra-op pool and of autograd do.
void onInheritingThread(const std::function<void()>& work) {
  const at::ThreadLocalState state;
  std::thread thread([&] {
    const at::ThreadLocalStateGuard as_caller(state);
    work();
  });
  thread.join();
}

TEST_F(SessionTest, AForeignThreadThatTouchesAnEvictedValueGetsItBack) {
  live_.trace();
  const at::Tensor expected = result_.clone();
  const at::Tensor plain = x_.mul(w_).tanh().add(1);
  planAway();
  bool was_away = false, other_away = false;
  at::Tensor there;
  midway_ = [&] {
    was_away = isAway(b_);
    onInheritingThread([&] { there = b_.add(1); });
    EXPECT_FALSE(isAway(b_));
    other_away = isAway(a_);
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed) << live_.session().lastDeparture();
  EXPECT_TRUE(was_away);
  EXPECT_TRUE(sameBits(there, plain));
  EXPECT_TRUE(sameBits(result_, expected));
  EXPECT_EQ(live_.session().executorCounters().unplanned_recomputes, other_away ? 1 : 2);
}

TEST_F(SessionTest, ManyForeignThreadsAtOnce) {
  live_.trace();
  const at::Tensor expected = result_.clone();
  const at::Tensor plain_a = x_.mul(w_).add(1), plain_b = x_.mul(w_).tanh().add(1);
  planAway();
  std::vector<at::Tensor> there(8);
  midway_ = [&] {
    const at::ThreadLocalState state;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < there.size(); ++i) {
      threads.emplace_back([&, i] {
        const at::ThreadLocalStateGuard as_caller(state);
        there[i] = (i % 2 == 0 ? a_ : b_).add(1);
      });
    }
    for (std::thread& thread : threads) thread.join();
  };
  for (int call = 0; call < 5; ++call) {
    EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
    for (size_t i = 0; i < there.size(); ++i) {
      EXPECT_TRUE(sameBits(there[i], i % 2 == 0 ? plain_a : plain_b));
    }
    EXPECT_TRUE(sameBits(result_, expected));
  }
}

TEST_F(SessionTest, AThreadThatAsksIsHeardAndMayWriteWhatReplaysRead) {
  const at::Tensor x = x_.clone(), a = x_.mul(w_), expected = a.add(a.tanh());
  live_.trace();
  planAway();
  midway_ = [&] {  // not yet as the step was recorded: the plan does not know
    std::thread([&] {
      hearThisThread();
      x_.mul_(2);
    }).join();
  };
  for (int call = 0; call < 3; ++call) {
    x_.copy_(x);
    EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed) << live_.session().lastDeparture();
    EXPECT_TRUE(sameBits(result_, expected));
  }
}

TEST_F(SessionTest, APlanMayBeSetFromAnotherThreadWhileTheStepRuns) {
  const int variant = live_.trace();
  const at::Tensor expected = result_.clone();
  const auto graph = live_.session().graphOf(variant);
  const auto plan = std::make_shared<const Schedule>(greedyPlan(*graph));
  midway_ = [&] {
    std::thread([&] { live_.session().setPlan(variant, plan, hostProfile()); }).join();
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kTraced);
  for (int call = 0; call < 3; ++call) {  // the plan in force is replaced while it is followed
    EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
    EXPECT_TRUE(sameBits(result_, expected));
  }
}

TEST_F(SessionTest, TheOptimizersOpsAreOnesOwnPhase) {
  const TorchStep step = perceptron();
  LiveStep training(step, false);
  training.trace();
  const Graph& g = training.graph();
  int64_t forward = 0, backward = 0, optimizer = 0;
  for (const Op& op : g.ops()) {
    forward += op.phase == Phase::kForward;
    backward += op.phase == Phase::kBackward;
    optimizer += op.phase == Phase::kOptimizer;
    if (op.name == "aten::addcdiv_") {
      EXPECT_EQ(op.phase, Phase::kOptimizer);
    }
    if (op.name.find("backward") != std::string::npos) {
      EXPECT_EQ(op.phase, Phase::kBackward);
    }
    if (op.name == "aten::addmm") {
      EXPECT_EQ(op.phase, Phase::kForward);
    }
  }
  EXPECT_GT(forward, 5);
  EXPECT_GT(backward, 5);
  EXPECT_GT(optimizer, 20);
}

TEST_F(SessionTest, StepsOfTwoSessionsTakeTurns) {
  at::Tensor result;
  LiveStep other([&] {
    const at::Tensor a = w_.exp();
    w_.neg();
    result = a.mul(x_);
  });
  live_.trace();
  other.trace();
  const at::Tensor expected = result_.clone(), expected_other = result.clone();
  planAway();
  other.plan(greedyPlan(other.graph()));
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
    EXPECT_EQ(other.run().mode, StepReport::Mode::kFollowed);
    EXPECT_TRUE(sameBits(result_, expected));
    EXPECT_TRUE(sameBits(result, expected_other));
  }
}

TEST_F(SessionTest, AStepMayRunOnAnotherThreadThanTheLast) {
  live_.trace();
  const at::Tensor expected = result_.clone();
  planAway();
  StepReport report;
  std::thread([&] { report = live_.run(); }).join();
  EXPECT_EQ(report.mode, StepReport::Mode::kFollowed);
  EXPECT_TRUE(sameBits(result_, expected));
  EXPECT_EQ(live_.session().executorCounters().evictions, 2);
}

}  // namespace
}  // namespace poet::testing
