#include "runtime/online_policy.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <thread>
#include <utility>

#include "support/plan_builder.h"
#include "support/temporary_folder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;

// Under a budget of one byte everything that may leave does, before every allocation.
void squeeze(Session& session, int64_t bytes = 1, Strictness strictness = Strictness::kNever) {
  OnlineOptions options;
  options.budget_bytes = bytes;
  options.profile = hostProfile();
  session.setBudget(options, strictness);
}

// Likewise, with a store in that folder.
void squeezeAndPage(Session& session, const std::string& folder) {
  OnlineOptions options;
  options.budget_bytes = 1;
  options.paging = true;
  options.profile = hostProfile();
  options.profile.store_read_rate = options.profile.store_write_rate = 1e9;
  session.setStore(folder);
  session.setBudget(options, Strictness::kNever);
}

bool isAway(const at::Tensor& t) {
  try {
    t.data_ptr();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

class EveryStep : public ::testing::TestWithParam<NamedStep> {};

TEST_P(EveryStep, KeepsItsBitsAndItsRecordingsWhateverLeaves) {
  constexpr int kCalls = 6;
  const Trained plain = trainPlain(GetParam().make(), kCalls);
  const TorchStep free_step = GetParam().make();
  LiveStep free(free_step, /*verify=*/true);
  std::vector<std::shared_ptr<const Graph>> wanted;
  for (int call = 0; call < kCalls; ++call)
    wanted.push_back(free.session().graphOf(free.run().variant));

  const TorchStep step = GetParam().make();
  LiveStep live(step, /*verify=*/true);
  squeeze(live.session());
  for (size_t call = 0; call < kCalls; ++call) {
    const StepReport report = live.run();
    EXPECT_EQ(report.mode, StepReport::Mode::kTraced);
    const auto graph = live.session().graphOf(report.variant);
    EXPECT_EQ(graph->signature(), wanted[call]->signature());
    EXPECT_EQ(graph->values(), wanted[call]->values());
    ASSERT_EQ(graph->numOps(), wanted[call]->numOps());
    for (int64_t k = 0; k < graph->numOps(); ++k) {
      EXPECT_EQ(graph->op(OpId(k)).workspace_bytes, wanted[call]->op(OpId(k)).workspace_bytes)
          << graph->op(OpId(k)).name;
    }
    EXPECT_TRUE(sameBits(live.losses()[call], plain.losses[call])) << "call " << call;
  }
  EXPECT_THAT(differences(plain.state, step.state()), ::testing::IsEmpty());
  const OnlineCounters counters = live.session().onlineCounters();
  EXPECT_GT(counters.evictions, 0);
  EXPECT_GT(counters.recomputes, 0);
  EXPECT_EQ(counters.steps, kCalls);
  EXPECT_EQ(counters.steps_over_budget, kCalls);
}

INSTANTIATE_TEST_SUITE_P(OnlinePolicy, EveryStep, ::testing::ValuesIn(allSteps()),
                         [](const auto& step) { return std::string(step.param.name); });

class OnlinePolicyTest : public ::testing::Test {
 protected:
  OnlinePolicyTest()
      : x_((at::set_num_threads(1), at::manual_seed(4), at::randn({32, 32}))),
        w_(at::randn({32, 32})) {}

  // Runs the function once plainly and once under the policy.
  void expectSameBits(const std::function<std::vector<at::Tensor>()>& step) {
    const std::vector<at::Tensor> plain = step();
    std::vector<at::Tensor> kept;
    LiveStep live([&] { kept = step(); }, /*verify=*/true);
    squeeze(live.session());
    live.run();
    for (size_t i = 0; i < plain.size(); ++i) {
      EXPECT_FALSE(isAway(kept[i])) << "tensor " << i;
      EXPECT_TRUE(sameBits(plain[i], kept[i])) << "tensor " << i;
    }
    counters_ = live.session().onlineCounters();
    EXPECT_GT(counters_.evictions, 0);
  }

  at::Tensor x_, w_;
  OnlineCounters counters_;
};

TEST_F(OnlinePolicyTest, BeforeAWriteComesBackWhatNeedsTheOldVersion) {
  bool away_before = false, away_after = true;
  expectSameBits([&] {
    at::Tensor a = x_.mul(w_);
    at::Tensor b = a.tanh();
    at::Tensor c = x_.neg();
    away_before = isAway(b);
    a.add_(1);
    away_after = isAway(b);
    return std::vector<at::Tensor>{a, b, c};
  });
  EXPECT_TRUE(away_before);
  EXPECT_FALSE(away_after);
}

TEST_F(OnlinePolicyTest, BeforeAWriteComesBackWhatNeedsTheOldVersionByWayOfOthers) {
  bool away_before = false, away_after = true;
  expectSameBits([&] {
    at::Tensor a = x_.mul(w_);
    at::Tensor d;
    {
      const at::Tensor b = a.tanh();
      const at::Tensor c = b.sin();
      d = c.exp();
    }
    x_.neg();
    away_before = isAway(d);
    a.add_(1);
    away_after = isAway(d);
    return std::vector<at::Tensor>{a, d};
  });
  EXPECT_TRUE(away_before);
  EXPECT_FALSE(away_after);
}

TEST_F(OnlinePolicyTest, MemoryThatOthersNeedOutlivesItsStorage) {
  bool away = false;
  expectSameBits([&] {
    at::Tensor a = x_.mul(w_), z = w_.mul(2);
    // Written together with another value: neither can be computed again.
    at::_foreach_add_(at::TensorList({a, z}), 1);
    at::Tensor b = a.tanh();
    x_.neg();
    away = isAway(b);
    a.reset();
    const at::Tensor c = x_.neg();
    return std::vector<at::Tensor>{b.add(c), b, z};
  });
  EXPECT_TRUE(away);
}

TEST_F(OnlinePolicyTest, RandomOpsDrawOnceAndComeBackTheSame) {
  at::manual_seed(9);
  const at::Tensor first = at::rand({32, 32});
  at::Tensor again, next;
  LiveStep live([&] {
    at::manual_seed(9);
    again = at::rand({32, 32});
    x_.neg();
    EXPECT_TRUE(isAway(again));
    again.add(1);
    next = at::rand({32, 32});
  });
  at::manual_seed(9);
  at::rand({32, 32});
  const at::Tensor wanted = at::rand({32, 32});
  squeeze(live.session());
  live.run();
  EXPECT_TRUE(sameBits(again, first));
  EXPECT_TRUE(sameBits(next, wanted));
}

TEST_F(OnlinePolicyTest, NothingLeavesWithoutPressure) {
  LiveStep live([&] { x_.mul(w_).tanh(); });
  squeeze(live.session(), int64_t{1} << 40);
  live.run();
  EXPECT_EQ(live.session().onlineCounters().evictions, 0);
  EXPECT_EQ(live.session().onlineCounters().steps, 0);
}

TEST_F(OnlinePolicyTest, AnotherThreadsReadBringsAValueBack) {
  at::Tensor b, read;
  LiveStep live([&] {
    b = x_.mul(w_);
    x_.neg();
    EXPECT_TRUE(isAway(b));
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard same(state);
      read = b.clone();
    }).join();
    EXPECT_FALSE(isAway(b));
    x_.neg();
    EXPECT_FALSE(isAway(b)) << "it stays: nobody knows what that thread does with it";
  });
  squeeze(live.session());
  live.run();
  EXPECT_TRUE(sameBits(read, x_.mul(w_)));
}

// What the next run of its kernel lets go of, as the step's own thread may while another one waits.
at::Tensor*& letsGoOf() {
  static at::Tensor* tensor = nullptr;
  return tensor;
}

at::Tensor doubled(const at::Tensor& x) {
  if (at::Tensor* tensor = std::exchange(letsGoOf(), nullptr)) tensor->reset();
  return x.add(x);
}

TEST_F(OnlinePolicyTest, WhatDiesWhileItComesBackForAnotherThreadIsNotMissed) {
  torch::Library library(torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__);
  library.def("poet_test_doubled(Tensor x) -> Tensor");
  library.impl("poet_test_doubled", c10::DispatchKey::CPU, TORCH_FN(doubled));
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("aten::poet_test_doubled", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  at::Tensor kept;
  LiveStep live([&] {
    at::Tensor a = op.call(w_);
    at::Tensor b = a.tanh();
    kept = a.sin();
    a.reset();
    x_.neg();
    EXPECT_TRUE(isAway(b) && isAway(kept));
    letsGoOf() = &b;
    std::thread([&, state = at::ThreadLocalState()] {
      const at::ThreadLocalStateGuard same(state);
      w_.detach().add_(1);  // what was made of it comes back first
    }).join();
    EXPECT_FALSE(b.defined()) << "nothing was computed again";
    EXPECT_FALSE(isAway(kept));
  });
  squeeze(live.session());
  const at::Tensor wanted = w_.add(w_).sin();
  live.run();
  EXPECT_TRUE(sameBits(kept, wanted));
}

TEST_F(OnlinePolicyTest, PagingMovesWhatCannotBeComputedAgain) {
  const TemporaryFolder folder;
  at::Tensor a, z, b;
  const auto step = [&] {
    a = x_.mul(w_), z = w_.mul(2);
    at::_foreach_add_(at::TensorList({a, z}), 1);
    b = x_.neg();
  };
  step();
  const at::Tensor wanted = a.clone();
  bool away = false;
  at::Tensor read;
  LiveStep live(
      [&] {
        step();
        away = isAway(a);
        read = a.add(0);
      },
      /*verify=*/true);
  squeezeAndPage(live.session(), folder.path());
  live.run();
  EXPECT_TRUE(away);
  EXPECT_GT(live.session().onlineCounters().page_outs, 0);
  EXPECT_GT(live.session().onlineCounters().page_ins, 0);
  EXPECT_TRUE(sameBits(a, wanted));
  EXPECT_TRUE(sameBits(read, wanted.add(0)));
}

// ------------------------------------------------------------------------------------------------
// what is there from before the step

// A step that shows `state_` at its end only; calls after the first know of it.
class FromBefore : public OnlinePolicyTest {
 protected:
  FromBefore()
      : state_(at::ones({64, 64})),
        other_(at::ones({64, 64})),
        wanted_(state_.clone()),
        live_(TorchStep{[this](int, Session*) {
                          if (begin_) begin_();
                          const at::Tensor y = x_.mul(w_).tanh();
                          if (hook_) hook_();
                          return state_.add_(y.sum());
                        },
                        {},
                        [this] {
                          std::vector<KnownStorage> known;
                          for (const at::Tensor& t : {x_, w_, state_, other_})
                            known.push_back({t.storage().getWeakStorageImpl(),
                                             static_cast<int64_t>(t.storage().nbytes())});
                          return known;
                        }},
              /*verify=*/true) {
    squeezeAndPage(live_.session(), folder_.path());
  }

  // A call in which `hook` runs once the state has had reason to leave.
  void run(const std::function<void()>& hook = {}) {
    hook_ = hook;
    ++calls_;
    live_.run();
  }
  void expectBits() {
    for (int call = 0; call < calls_; ++call) wanted_.add_(x_.mul(w_).tanh().sum());
    EXPECT_TRUE(sameBits(state_, wanted_));
  }

  const TemporaryFolder folder_;
  at::Tensor state_, other_, wanted_;
  std::function<void()> begin_, hook_;
  int calls_ = 0;
  LiveStep live_;
};

TEST_F(FromBefore, LeavesUntilAnOpShowsIt) {
  bool first = true, second = false;
  run([&] { first = isAway(state_); });
  run([&] { second = isAway(state_); });
  EXPECT_FALSE(first) << "no call had shown it before";
  EXPECT_TRUE(second);
  expectBits();
}

TEST_F(FromBefore, StaysWhereARawReaderWasGivenItInThisCall) {
  run();
  bool away = true;
  run([&] {
    live_.session().touch(state_);
    x_.mul(w_);
    away = isAway(state_);
  });
  EXPECT_FALSE(away);
  expectBits();
}

TEST_F(FromBefore, StaysWhereItIsLent) {
  run();
  bool away = true;
  run([&] {
    live_.session().onLend(state_);
    x_.mul(w_);
    away = isAway(state_);
    live_.session().onLendingEnds(1);
  });
  EXPECT_FALSE(away);
  expectBits();
}

TEST_F(FromBefore, WhatComesBackForAnOpMovesOutNoOtherOfItsArguments) {
  at::Tensor difference;
  begin_ = [&] { difference = other_.sub(state_); };
  run();
  live_.session().pause({});
  EXPECT_FLOAT_EQ(other_.sum().item<float>(), 64 * 64);  // it is back
  EXPECT_TRUE(isAway(state_));
  run();
  wanted_.add_(x_.mul(w_).tanh().sum());
  EXPECT_TRUE(sameBits(difference, other_.sub(wanted_)));
}

TEST_F(FromBefore, AnotherThreadReadsIt) {
  run();
  at::Tensor sum;
  run([&] {
    EXPECT_TRUE(isAway(state_));
    const at::ThreadLocalState heard;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(heard);
      sum = state_.sum();
    }).join();
  });
  EXPECT_EQ(sum.item<float>(), wanted_.add(x_.mul(w_).tanh().sum()).sum().item<float>());
  expectBits();
}

TEST_F(FromBefore, NothingLeavesAnyMoreOnceItWasReadUnannounced) {
  run();
  EXPECT_THROW(run([&] {
                 try {
                   state_.data_ptr();
                 } catch (const c10::Error& error) {
                   EXPECT_TRUE(live_.session().keepNamed(error.what()));
                   throw;
                 }
               }),
               c10::Error);
  --calls_;
  bool away = true;
  run([&] { away = isAway(state_); });
  EXPECT_FALSE(away);
  expectBits();
}

// What an earlier call has made and left: an optimizer's state of the first.
TEST_F(OnlinePolicyTest, WhatACallHasLeftLeavesInTheNext) {
  const TemporaryFolder folder;
  at::Tensor state;
  bool away = false;
  LiveStep live(
      [&] {
        const at::Tensor y = x_.mul(w_).tanh();
        if (state.defined()) away = isAway(state);
        state = state.defined() ? state.add_(1) : y.exp();
      },
      /*verify=*/true);
  squeezeAndPage(live.session(), folder.path());
  live.run();
  live.run();
  EXPECT_TRUE(away);
  EXPECT_TRUE(sameBits(state, x_.mul(w_).tanh().exp().add(1)));
}

// ------------------------------------------------------------------------------------------------
// budgets that cannot be met

TEST_F(OnlinePolicyTest, AStepThatCannotFitLeavesNoTrace) {
  at::Tensor counter = at::zeros({4});
  bool optimized = false;
  LiveStep live([&] {
    counter.add_(1);
    at::rand({4});
    x_.mul(w_).tanh();
    optimized = true;
  });
  squeeze(live.session(), 1 << 10, Strictness::kFirstCall);
  at::manual_seed(5);
  const at::Tensor first = at::rand({4});
  at::manual_seed(5);
  EXPECT_THROW(live.run(), BudgetError);
  EXPECT_FALSE(optimized);
  EXPECT_EQ(counter.sum().item<float>(), 0);
  EXPECT_TRUE(sameBits(at::rand({4}), first)) << "the generator is as it was";
  EXPECT_EQ(live.session().counters().failed_steps, 1);
}

TEST_F(OnlinePolicyTest, TheErrorNamesTheOpAndWhatItNeeds) {
  LiveStep live([&] { x_.mul(w_); });
  squeeze(live.session(), 1 << 10, Strictness::kFirstCall);
  std::string said;
  try {
    live.run();
  } catch (const BudgetError& error) {
    said = error.what();
  }
  EXPECT_THAT(said, HasSubstr("expected the step to fit into 1024 bytes"));
  EXPECT_THAT(said, HasSubstr("op 0 (aten::mul.Tensor) needs 4096 bytes"));
  EXPECT_THAT(said, HasSubstr("No plan could do with less than 12288 bytes"));
}

TEST_F(OnlinePolicyTest, WhatCannotBePutBackIsNeverUndoneHalf) {
  at::Tensor large = at::zeros({1 << 20});
  LiveStep live([&] {
    large.add_(1);
    x_.mul(w_);
  });
  squeeze(live.session(), 1 << 10, Strictness::kAlways);
  const StepReport report = live.run();
  EXPECT_GT(report.over_bytes, 0);
  EXPECT_THAT(report.over_text, HasSubstr("aten::mul"));
  EXPECT_EQ(large[0].item<float>(), 1);
}

TEST_F(OnlinePolicyTest, OnlyTheFirstCallRaisesUnlessAllAreToDo) {
  bool large = false;
  LiveStep live([&] { large ? at::cat({x_, x_, x_, x_}).mul(2) : x_.mul(w_); });
  squeeze(live.session(), 20000, Strictness::kFirstCall);
  EXPECT_EQ(live.run().over_bytes, 0);
  large = true;
  EXPECT_GT(live.run().over_bytes, 0);
  squeeze(live.session(), 20000, Strictness::kAlways);
  EXPECT_THROW(live.run(), BudgetError);
}

// ------------------------------------------------------------------------------------------------
// departures

// As in executor_departure_test.cpp: at op 4 everything that may be is away.
class OnlineDeparture : public ::testing::Test {
 protected:
  OnlineDeparture()
      : x_((at::set_num_threads(1), at::manual_seed(8), at::randn({40, 40}))),
        w_(at::randn({40, 40})),
        live_([this] { body(); }, /*verify=*/true) {
    live_.trace();
    expected_ = {a_.clone(), b_.clone(), c_.clone(), result_.clone()};
    letGo();
    live_.plan(greedyPlan(live_.graph()));
    live_.run();
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
  }

  int64_t awayNow() const {
    int64_t away = 0;
    for (const at::Tensor* t : {&a_, &b_, &c_}) away += isAway(*t);
    return away;
  }

  at::Tensor x_, w_, a_, b_, c_, result_;
  std::vector<at::Tensor> expected_;
  std::function<void()> midway_ = [] {};
  LiveStep live_;
};

TEST_F(OnlineDeparture, LeavesAwayWhatIsAwayAndGoesOnInsideTheBudget) {
  squeeze(live_.session());
  int64_t before = 0, after = 0;
  midway_ = [&] {
    before = awayNow();
    w_.neg();
    after = awayNow();
  };
  const StepReport report = live_.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_GT(before, 0);
  EXPECT_GE(after, before) << "a departure alone brings nothing back";
  EXPECT_EQ(report.num_ops, live_.graph().numOps() + 1);
  EXPECT_GT(live_.session().onlineCounters().recomputes, 0);
  const std::vector<at::Tensor> now = {a_, b_, c_, result_};
  for (size_t i = 0; i < now.size(); ++i)
    EXPECT_TRUE(sameBits(now[i], expected_[i])) << "tensor " << i;
}

TEST_F(OnlineDeparture, IsRecordedAsWithoutABudget) {
  midway_ = [&] { w_.neg(); };
  const StepReport free = live_.run();
  const auto wanted = live_.session().graphOf(free.variant);
  letGo();
  squeeze(live_.session());
  const StepReport report = live_.run();
  EXPECT_EQ(report.mode, StepReport::Mode::kDeparted);
  EXPECT_EQ(report.variant, free.variant);
  EXPECT_TRUE(report.newly_stable);
  const auto graph = live_.session().graphOf(report.variant);
  EXPECT_EQ(graph->values(), wanted->values());
}

TEST_F(OnlineDeparture, AnErrorMidwayBringsEverythingBack) {
  squeeze(live_.session());
  midway_ = [&] {
    w_.neg();
    throw std::runtime_error("of the user's");
  };
  EXPECT_THROW(live_.run(), std::runtime_error);
  EXPECT_EQ(awayNow(), 0);
  EXPECT_TRUE(sameBits(a_, expected_[0]));
  EXPECT_TRUE(sameBits(b_, expected_[1]));
  EXPECT_TRUE(sameBits(c_, expected_[2]));
  midway_ = [] {};
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kFollowed);
}

}  // namespace
}  // namespace poet::testing
