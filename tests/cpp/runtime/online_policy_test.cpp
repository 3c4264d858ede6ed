#include "runtime/online_policy.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "methods/method.h"
#include "schedule/simulator.h"
#include "support/fails_once.h"
#include "support/page_everything.h"
#include "support/plan_builder.h"
#include "support/temporary_folder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;

// Under a budget of one byte everything that may leave does, before every allocation.
void squeeze(Session& session, int64_t bytes = 1, Strictness strictness = Strictness::kNever,
             const methods::LivePolicy& policy = {}) {
  OnlineOptions options;
  options.budget_bytes = bytes;
  options.policy = policy;
  options.profile = hostProfile();
  session.setBudget(options, strictness);
}

// Likewise, with a store in that folder.
void squeezeAndPage(Session& session, const std::string& folder, int64_t bytes = 1) {
  OnlineOptions options;
  options.budget_bytes = bytes;
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

TEST_P(EveryStep, KeepsItsBitsWhateverIsGoneForGood) {
  constexpr int kCalls = 3;
  const Trained plain = trainPlain(GetParam().make(), kCalls);
  const TorchStep step = GetParam().make();
  LiveStep live(step, /*verify=*/true);
  squeeze(live.session(), 1, Strictness::kNever, *methods::livePolicy("dtr_banish"));
  for (size_t call = 0; call < kCalls; ++call) {
    live.run();
    EXPECT_TRUE(sameBits(live.losses()[call], plain.losses[call])) << "call " << call;
  }
  EXPECT_THAT(differences(plain.state, step.state()), ::testing::IsEmpty());
  EXPECT_GT(live.session().onlineCounters().evictions, 0);
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

// Every other one of six neighbours in memory has just been touched when room for two is needed.
std::vector<bool> whatLeavesOfSix(const methods::LivePolicy& policy) {
  StepArena::useForGood();
  const at::Tensor x = at::rand({256, 256}), y = at::rand({64, 64});
  std::vector<bool> away;
  LiveStep live([&] {
    std::vector<at::Tensor> six;
    for (int i = 0; i < 6; ++i) six.push_back(x.add(i));
    for (size_t i = 0; i + 1 < six.size(); ++i)
      EXPECT_EQ(StepArena::gapBetween(six[i].data_ptr(), six[i + 1].data_ptr()), 0);
    for (int i = 0; i < 200; ++i) y.matmul(y);  // time goes by, and nothing must leave for it
    for (const size_t i : {1, 3, 5}) six[i].sum();
    const at::Tensor large = at::cat({x, x});
    away.clear();
    for (const at::Tensor& t : six) away.push_back(isAway(t));
  });
  const auto graph = live.session().graphOf(live.run().variant);
  OnlineOptions options;
  options.budget_bytes = simulatePlain(*graph, hostProfile()).peak_bytes -
                         2 * static_cast<int64_t>(x.nbytes()) + 65536;
  options.profile = hostProfile();
  options.policy = policy;
  live.session().setBudget(options, Strictness::kNever);
  live.run();
  return away;
}

TEST(LivePolicies, DtrLetsGoWhatWasNotTouchedLately) {
  const std::vector<bool> away = whatLeavesOfSix(*methods::livePolicy("dtr_local"));
  EXPECT_EQ(std::count(away.begin(), away.end(), true), 2);
  EXPECT_FALSE(away[1] || away[3] || away[5]);
}

TEST(LivePolicies, CoopLetsGoNeighbours) {
  const std::vector<bool> away = whatLeavesOfSix(*methods::livePolicy("coop"));
  ASSERT_EQ(std::count(away.begin(), away.end(), true), 2);
  const auto first = std::find(away.begin(), away.end(), true);
  EXPECT_TRUE(*std::next(first)) << ::testing::PrintToString(away);
}

TEST(LivePolicies, CoopPlacesWhatIsCheapApartFromWhatIsDear) {
  const at::Tensor x = at::rand({256, 256});
  std::vector<const void*> cheap, dear;
  LiveStep live([&] {
    cheap.clear();
    dear.clear();
    std::vector<at::Tensor> kept;
    for (int i = 0; i < 4; ++i) {
      cheap.push_back(kept.emplace_back(x.neg()).const_data_ptr());
      dear.push_back(kept.emplace_back(x.mm(x)).const_data_ptr());
    }
  });
  OnlineOptions options;
  options.budget_bytes = 1 << 30;
  options.profile = hostProfile();
  options.policy = *methods::livePolicy("coop");
  live.session().setBudget(options, Strictness::kNever);
  live.run();  // tells what they take
  live.run();
  EXPECT_LT(*std::max_element(cheap.begin(), cheap.end()),
            *std::min_element(dear.begin(), dear.end()));
}

// Whether b, made of a, leaves under pressure when a has died: while b was there, or while it was
// away, so that a could not yet be gone for good.
std::vector<bool> whatLeavesAfterItsInput(const char* method) {
  const at::Tensor x = at::rand({64, 64});
  std::vector<bool> away;
  std::vector<at::Tensor> kept;
  LiveStep live(
      [&] {
        at::Tensor a = x.mul(2);
        const at::Tensor b = a.tanh();
        a.reset();
        x.neg();
        away.push_back(isAway(b));
        at::Tensor c = x.mul(3);
        const at::Tensor d = c.tanh();
        x.neg();
        const bool was_away = isAway(d);
        c.reset();
        x.neg();
        away.push_back(was_away && isAway(d));
        kept = {b.add(1), d.add(1)};
      },
      /*verify=*/true);
  squeeze(live.session(), 1, Strictness::kNever, *methods::livePolicy(method));
  live.run();
  EXPECT_TRUE(sameBits(kept[0], x.mul(2).tanh().add(1)));
  EXPECT_TRUE(sameBits(kept[1], x.mul(3).tanh().add(1)));
  return away;
}

TEST(LivePolicies, WhatIsBanishedKeepsWhatWasMadeOfIt) {
  EXPECT_EQ(whatLeavesAfterItsInput("dtr"), (std::vector<bool>{true, true}));
  EXPECT_EQ(whatLeavesAfterItsInput("dtr_banish"), (std::vector<bool>{false, true}));
}

TEST(LivePolicies, OthersTrainWithPlansAlone) {
  EXPECT_FALSE(methods::livePolicy("rotor"));
  EXPECT_FALSE(methods::livePolicy("capuchin"));
  for (const Method& method : allMethods()) {
    const bool has_one = methods::livePolicy(method.name).has_value();
    EXPECT_EQ(has_one, method.traits.live || method.name == "poet") << method.name;
  }
}

// A layer that is frozen midway: its state is away between the plan's steps and never shown again.
TEST(Departing, BringsBackWhatTheStepNeverShowedWhereThereIsRoom) {
  const TemporaryFolder folder;
  for (const int64_t budget : {int64_t{1} << 30, int64_t{1}}) {
    const at::Tensor weight = at::ones({64, 64}), state = at::ones({64, 64});
    bool frozen = false;
    LiveStep live([&] {
      weight.add_(1);
      if (!frozen) state.add_(1);
    });
    live.trace();
    squeezeAndPage(live.session(), folder.path(), budget);
    live.plan(pageEverything(live.graph(), /*away=*/true));
    live.run();
    EXPECT_TRUE(isAway(state));
    frozen = true;
    live.run();
    EXPECT_EQ(live.session().counters().departures, 1);
    EXPECT_EQ(isAway(state), budget == 1);
    live.session().bringBack();
    EXPECT_TRUE(sameBits(state, at::full({64, 64}, 4.0f)));
  }
}

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

// Note [Deep replays]: in stages, and each operator but once. A call within a call for each took
// the 8 MiB of a stack at 7,000.
TEST_F(OnlinePolicyTest, WhatIsThousandsOfReplaysDeepComesBackByEachOnce) {
  constexpr int kDepth = 50 * OnlinePolicy::kDeepest + 7;
  bool away = false;
  expectSameBits([&] {
    at::Tensor h = x_;
    for (int i = 0; i < kDepth; ++i) h = h.sin();
    w_.neg();
    away = isAway(h);
    return std::vector<at::Tensor>{h.add(1)};
  });
  EXPECT_TRUE(away);
  EXPECT_GE(counters_.recomputes, kDepth);
  EXPECT_LE(counters_.recomputes, kDepth + 4);
}

// What later stages are made from is held, though it is no stage's last value.
TEST_F(OnlinePolicyTest, DeepReplaysWithShortcutsComeBack) {
  constexpr int kDepth = 3 * OnlinePolicy::kDeepest;
  expectSameBits([&] {
    at::Tensor h = x_, shortcut = x_.cos();
    for (int i = 0; i < kDepth; ++i) {
      h = h.sin().add(shortcut);
      if (i % 97 == 0) shortcut = h;
    }
    w_.neg();
    return std::vector<at::Tensor>{h.add(1)};
  });
  EXPECT_GE(counters_.recomputes, kDepth);
}

// As many gradients are summed: not all of what was added has to be there at once.
TEST_F(OnlinePolicyTest, ASumInPlaceComesBackPieceByPiece) {
  const auto tensor = static_cast<int64_t>(x_.nbytes());
  bool away = false;
  expectSameBits([&] {
    at::Tensor sum = x_.mul(2);
    for (int i = 0; i < 24; ++i) sum.add_(x_.add(i).sin());
    w_.neg();
    away = isAway(sum);
    return std::vector<at::Tensor>{sum.add(1)};
  });
  EXPECT_TRUE(away);
  EXPECT_LE(counters_.most_over_bytes, 6 * tensor);
}

// Though what was added was made from what is gone as soon as nothing away is made from it.
TEST_F(OnlinePolicyTest, WhatASumIsMadeFromStaysUntilTheLastPiece) {
  const auto tensor = static_cast<int64_t>(x_.nbytes());
  constexpr int kPieces = 24;
  bool away = false;
  expectSameBits([&] {
    std::vector<at::Tensor> rows;
    at::Tensor sum = x_.mul(2);
    for (int i = 0; i < kPieces; ++i) {
      // Written together: neither can be computed again.
      rows.push_back(x_.select(0, i).mul(2));
      at::_foreach_add_(at::TensorList({rows.back(), x_.select(0, i).mul(3)}), 1);
      sum.add_(x_.add(rows.back()));
    }
    w_.neg();
    rows.clear();
    away = isAway(sum);
    return std::vector<at::Tensor>{sum.add(1)};
  });
  EXPECT_TRUE(away);
  EXPECT_LE(counters_.most_over_bytes, 6 * tensor + kPieces * tensor / 16);
}

// A generator's state is 5 KB: those of draws that are smaller would fill the budget.
TEST_F(OnlinePolicyTest, SmallDrawsKeepNoStates) {
  constexpr int kDraws = 100;
  expectSameBits([&] {
    at::manual_seed(11);
    at::Tensor sum = x_.mul(2);
    for (int i = 0; i < kDraws; ++i) sum = sum.add(at::rand({1}));
    return std::vector<at::Tensor>{sum, at::dropout(w_.expand({8, 32, 32}), 0.5, true)};
  });
  EXPECT_LT(counters_.most_over_bytes, kDraws * 5'056);
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

using View = at::Tensor (*)(const at::Tensor&);
struct NamedView {
  const char* name;
  View of;
};

const std::vector<NamedView>& allViews() {
  static const std::vector<NamedView> all = {
      {"view", [](const at::Tensor& t) { return t.view({-1}); }},
      {"slice", [](const at::Tensor& t) { return t.slice(0, 1, 3); }},
      {"t", [](const at::Tensor& t) { return t.t(); }},
      {"view_as", [](const at::Tensor& t) { return t.view_as(t); }},
      {"unsqueeze", [](const at::Tensor& t) { return t.unsqueeze(0); }},
      {"expand",
       [](const at::Tensor& t) {
         return t.expand({2, -1, -1});
       }},
      {"select", [](const at::Tensor& t) { return t.select(0, 1); }},
      {"permute", [](const at::Tensor& t) {
         return t.permute({1, 0});
       }}};
  return all;
}

// As native code would, without an operator.
float firstOf(const at::Tensor& t) { return *t.const_data_ptr<float>(); }

TEST_F(OnlinePolicyTest, AViewBringsItsMemoryBackForWhoeverReadsItNext) {
  const at::Tensor wanted = x_.mul(w_);
  for (const NamedView& view : allViews()) {
    SCOPED_TRACE(view.name);
    LiveStep live([&] {
      const at::Tensor a = x_.mul(w_);
      x_.neg();
      ASSERT_TRUE(isAway(a));
      EXPECT_EQ(firstOf(view.of(a)), firstOf(view.of(wanted)));
    });
    squeeze(live.session());
    live.run();
  }
}

TEST_F(OnlinePolicyTest, WhatLooksAtAShapeAloneBringsNothingBack) {
  LiveStep live([&] {
    const at::Tensor a = x_.mul(w_);
    x_.neg();
    at::empty_like(a);
    EXPECT_TRUE(isAway(a));
  });
  squeeze(live.session());
  live.run();
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

// What has to come back then is tried once more: it would be lost.
TEST_F(OnlinePolicyTest, AnAllocationThatFailsAsTheStepEndsLosesNothing) {
  FailsOnce limit;
  at::Tensor a, b;
  // Checked: then everything leaves, whatever ops have taken by then.
  LiveStep live(
      [&] {
        a = x_.mul(w_), b = a.tanh();
        x_.neg();
        EXPECT_TRUE(isAway(b));
        limit.arm(1);
      },
      /*verify=*/true);
  squeeze(live.session());
  const AllocatorTap::LimitGuard guard(limit);
  live.run();
  EXPECT_TRUE(limit.hasFailed());
  EXPECT_FALSE(isAway(a) || isAway(b));
  EXPECT_TRUE(sameBits(b, x_.mul(w_).tanh()));
}

// What needs the old version cannot come back, so the write does not happen, and the step goes on.
TEST_F(OnlinePolicyTest, AWriteForWhichNothingComesBackHasNotHappened) {
  FailsOnce limit;
  at::Tensor a, b;
  LiveStep live(
      [&] {
        a = x_.mul(w_), b = a.tanh();
        x_.neg();
        EXPECT_TRUE(isAway(b));
        limit.arm(1);
        EXPECT_THROW(a.add_(1), c10::OutOfMemoryError);
        x_.neg();
      },
      /*verify=*/true);
  squeeze(live.session());
  const AllocatorTap::LimitGuard guard(limit);
  live.run();
  EXPECT_TRUE(sameBits(a, x_.mul(w_)));
  EXPECT_TRUE(sameBits(b, x_.mul(w_).tanh()));
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
// what leaves first: by h = cost / (bytes x staleness), the cost being that of the neighbourhood

at::Tensor made(const at::Tensor& from, int64_t floats, int64_t milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
  return at::full({floats}, from.flatten()[0].item<float>() + 1);
}

// Ops whose costs are as told, and ten times what a busy machine adds to them or more.
class LeastScore : public ::testing::Test {
 protected:
  LeastScore() {
    library_.def("poet_test_made(Tensor from, int floats, int milliseconds) -> Tensor");
    library_.impl("poet_test_made", c10::DispatchKey::CPU, TORCH_FN(made));
    op_.emplace(c10::Dispatcher::singleton().findSchemaOrThrow("aten::poet_test_made", ""));
  }

  at::Tensor make(const at::Tensor& from, int64_t floats, int64_t milliseconds) const {
    return op_->typed<at::Tensor(const at::Tensor&, int64_t, int64_t)>().call(from, floats,
                                                                              milliseconds);
  }
  // Takes what `leaving` gives back, and never leaves itself: it is a factory's.
  static at::Tensor takeRoomOf(const at::Tensor& leaving) { return at::zeros({leaving.numel()}); }

  // With room for that many floats beside x and a few numbers.
  void run(int64_t floats, const std::function<void()>& body) const {
    LiveStep live(body);
    squeeze(live.session(), 4 * (x_.numel() + floats) + 400);
    live.run();
    EXPECT_EQ(live.session().onlineCounters().steps_over_budget, 0);
  }

  const at::Tensor x_ = at::ones({4});

 private:
  torch::Library library_{torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__};
  std::optional<c10::OperatorHandle> op_;
};

TEST_F(LeastScore, TheCheapOneLeavesThoughTheOtherIsOlder) {
  run(2000, [&] {
    const at::Tensor a = make(x_, 1000, 200), b = make(x_, 1000, 0);
    make(x_, 1, 100);  // both are stale
    const at::Tensor large = takeRoomOf(b);
    EXPECT_FALSE(isAway(a));
    EXPECT_TRUE(isAway(b));
  });
}

TEST_F(LeastScore, TheLargeOneLeavesThoughTheOtherIsOlder) {
  run(201000, [&] {
    const at::Tensor a = make(x_, 1000, 50), b = make(x_, 200000, 50);
    make(x_, 1, 50);  // both are stale
    const at::Tensor large = takeRoomOf(b);
    EXPECT_FALSE(isAway(a));
    EXPECT_TRUE(isAway(b));
  });
}

TEST_F(LeastScore, TheStaleOneLeavesThoughTheOtherIsCheaper) {
  run(2000, [&] {
    const at::Tensor a = make(x_, 1000, 20), b = make(x_, 1000, 100);
    make(x_, 1, 400);
    make(a, 1, 0);  // a is touched
    const at::Tensor large = takeRoomOf(a);
    EXPECT_FALSE(isAway(a));
    EXPECT_TRUE(isAway(b));
  });
}

// c is made from b, d from x. Once b is away c takes 20 ms and b's 400, and d takes 100.
TEST_F(LeastScore, CountsWhatMustComeBackWithAValue) {
  run(102000, [&] {
    const at::Tensor b = make(x_, 100000, 400), c = make(b, 1000, 20), d = make(x_, 1000, 100);
    make(x_, 1, 1000);  // all are stale
    const at::Tensor large = takeRoomOf(b);
    EXPECT_TRUE(isAway(b));
    const at::Tensor small = takeRoomOf(d);
    EXPECT_FALSE(isAway(c)) << "its own cost alone is the least";
    EXPECT_TRUE(isAway(d));
  });
}

// e is made from c, and away: it could not come back before c has, if that left too.
TEST_F(LeastScore, CountsWhatCouldNotComeBackWithoutAValue) {
  run(102000, [&] {
    const at::Tensor c = make(x_, 1000, 20), e = make(c, 100000, 400), d = make(x_, 1000, 100);
    make(x_, 1, 1000);
    const at::Tensor large = takeRoomOf(e);
    EXPECT_TRUE(isAway(e));
    const at::Tensor small = takeRoomOf(d);
    EXPECT_FALSE(isAway(c)) << "its own cost alone is the least";
    EXPECT_TRUE(isAway(d));
  });
}

TEST_F(LeastScore, SmallValuesAreLeftAlone) {
  const int64_t least = OnlinePolicy::kLeastBytes / 4;
  run(2 * least, [&] {
    const at::Tensor a = make(x_, least - 1, 0), b = make(x_, least, 200);
    const at::Tensor more = takeRoomOf(b);
    EXPECT_FALSE(isAway(a));
    EXPECT_TRUE(isAway(b));
  });
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

class UnforeseenView : public OnlineDeparture,
                       public ::testing::WithParamInterface<std::tuple<NamedView, bool>> {};

TEST_P(UnforeseenView, BringsItsMemoryBack) {
  const NamedView view = std::get<0>(GetParam());
  if (std::get<1>(GetParam())) squeeze(live_.session());
  bool away = false;
  midway_ = [&] {
    away = isAway(a_);
    EXPECT_EQ(firstOf(view.of(a_)), firstOf(view.of(expected_[0])));
  };
  EXPECT_EQ(live_.run().mode, StepReport::Mode::kDeparted);
  EXPECT_TRUE(away);
}

INSTANTIATE_TEST_SUITE_P(OnlinePolicy, UnforeseenView,
                         ::testing::Combine(::testing::ValuesIn(allViews()), ::testing::Bool()),
                         [](const auto& one) {
                           return std::string(std::get<0>(one.param).name) +
                                  (std::get<1>(one.param) ? "Online" : "");
                         });

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
