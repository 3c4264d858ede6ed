// Session::pause: everything that can be paged is in the store until something needs it.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "graph/error.h"
#include "runtime/session.h"
#include "store/io_hooks.h"
#include "support/page_everything.h"
#include "support/torch_step.h"
#include "trace/allocator_tap.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr int64_t kWeight = 64 * 64 * 4;

bool isAway(const at::Tensor& t) {
  try {
    static_cast<void>(t.data_ptr());
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

class PausedSteps : public ::testing::TestWithParam<std::tuple<NamedStep, bool>> {};

// After every call, without a plan and with one that has values away by itself.
TEST_P(PausedSteps, KeepEveryBit) {
  const AllocatorTap::Guard tap;  // whatever is released must have been counted
  const auto& [named, planned] = GetParam();
  const int calls = std::string(named.name) == "accumulation" ? 12 : 6;
  const Trained plain = trainPlain(named.make(), calls);

  const TorchStep step = named.make();
  LiveStep live(step, /*verify=*/true);
  live.session().setStore(std::string());
  int64_t released = 0;
  for (int call = 0; call < calls; ++call) {
    const StepReport report = live.run();
    if (planned && report.newly_stable) {
      const auto graph = live.session().graphOf(report.variant);
      live.session().setPlan(report.variant,
                             std::make_shared<const Schedule>(pageEverything(*graph, true)),
                             hostProfile());
    }
    released += live.session().pause({});
    EXPECT_EQ(live.session().pause({}), 0) << "everything is away already";
  }

  EXPECT_THAT(differences(plain.state, step.state()), IsEmpty());
  for (size_t call = 0; call < plain.losses.size(); ++call)
    EXPECT_TRUE(sameBits(plain.losses[call], live.losses()[call])) << "loss of call " << call;
  EXPECT_EQ(live.session().counters().departures, 0) << live.session().lastDeparture();
  if (named.name == std::string("perceptron")) {
    EXPECT_GT(released, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Session, PausedSteps,
                         ::testing::Combine(::testing::ValuesIn(allSteps()), ::testing::Bool()),
                         [](const ::testing::TestParamInfo<PausedSteps::ParamType>& one) {
                           return std::string(std::get<0>(one.param).name) +
                                  (std::get<1>(one.param) ? "_planned" : "_plain");
                         });

// A weight with a gradient, both 16 KiB, and an optimizer's state that is made in the first call.
class Pause : public ::testing::Test {
 protected:
  Pause()
      : w_(at::full({64, 64}, 2.0f).requires_grad_()),
        momentum_(at::zeros({64, 64})),
        live_([this] { train(); }) {}

  void train() {
    w_.mutable_grad().reset();
    (w_ * w_).sum().backward();
    const at::NoGradGuard no_grad;
    momentum_.mul_(0.5).add_(w_.grad());
    w_.sub_(momentum_, 0.25);
  }

  void traced() {
    live_.session().setStore(std::string());
    live_.trace();
    expected_ = w_.detach().clone();
  }

  at::Tensor w_, momentum_, expected_;
  LiveStep live_;
};

TEST_F(Pause, ReleasesWeightsStateAndGradientsUntilTheyAreTouched) {
  traced();
  const at::Tensor gradient = w_.grad().clone();
  EXPECT_EQ(live_.session().pause({w_}), 3 * kWeight);
  EXPECT_TRUE(isAway(w_) && isAway(momentum_) && isAway(w_.grad()));
  EXPECT_TRUE(sameBits(w_.grad().clone(), gradient));
  EXPECT_FALSE(isAway(w_.grad()));
  EXPECT_TRUE(isAway(w_) && isAway(momentum_)) << "one touch brings one value back";
  EXPECT_EQ(live_.session().pause({w_}), kWeight);
  live_.session().bringBack();
  EXPECT_FALSE(isAway(w_) || isAway(momentum_) || isAway(w_.grad()));
  EXPECT_TRUE(sameBits(w_.detach(), expected_));
}

TEST_F(Pause, LeavesGradientsOfStrangersAlone) {
  traced();
  at::Tensor other = at::ones({64, 64}).requires_grad_();
  other.sum().backward();
  EXPECT_EQ(live_.session().pause({other, at::Tensor()}), 2 * kWeight);
  EXPECT_FALSE(isAway(other.grad()) || isAway(other));
}

TEST_F(Pause, LeavesWhatWasHandedOutAlone) {
  traced();
  live_.session().touch(w_, /*for_good=*/true);
  EXPECT_EQ(live_.session().pause({w_}), 2 * kWeight);
  EXPECT_FALSE(isAway(w_));
}

TEST_F(Pause, WithoutAStoreOrAStepReleasesNothing) {
  EXPECT_EQ(live_.session().pause({w_}), 0);
  live_.trace();
  EXPECT_EQ(live_.session().pause({w_}), 0) << "there is no store";
  EXPECT_FALSE(isAway(w_));
}

TEST_F(Pause, IsRefusedWhileAStepRuns) {
  traced();
  live_.runOnce([this] {
    EXPECT_THAT([this] { live_.session().pause({w_}); },
                ThrowsMessage<Error>(HasSubstr("between two steps")));
  });
}

TEST_F(Pause, AStoreThatFailsCostsNoValue) {
  traced();
  injectStoreFault(StoreFault::kWriteError);
  EXPECT_EQ(live_.session().pause({w_}), 0);
  injectStoreFault(StoreFault::kNone);
  EXPECT_EQ(live_.session().pagingCounters().failed_page_outs, Pager::kFailuresAllowed);
  EXPECT_FALSE(isAway(w_) || isAway(momentum_) || isAway(w_.grad()));
  EXPECT_TRUE(sameBits(w_.detach(), expected_));
  EXPECT_EQ(live_.session().pause({w_}), 0) << "the store has failed too often";
}

TEST_F(Pause, AFullDiskShowsBeforeAnythingIsMoved) {
  traced();
  injectStoreFault(StoreFault::kGrowNoSpace);
  EXPECT_THROW(live_.session().pause({w_}), StoreError);
  injectStoreFault(StoreFault::kNone);
  EXPECT_FALSE(isAway(w_) || isAway(momentum_) || isAway(w_.grad()));
  EXPECT_EQ(live_.session().pause({w_}), 3 * kWeight);
  EXPECT_TRUE(sameBits(w_.detach(), expected_));
}

TEST_F(Pause, WhatTheProgramDropsIsForgotten) {
  traced();
  EXPECT_EQ(live_.session().pause({w_}), 3 * kWeight);
  w_.mutable_grad().reset();
  const int64_t steps = live_.session().counters().steps;
  live_.run();
  EXPECT_EQ(live_.session().counters().steps, steps + 1);
  EXPECT_FALSE(isAway(w_));
}

}  // namespace
}  // namespace poet::testing
