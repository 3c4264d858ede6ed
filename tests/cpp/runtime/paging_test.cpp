// Steps that page everything, and a store that fails at every transfer in turn.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <tuple>

#include "runtime/session.h"
#include "store/io_hooks.h"
#include "store/page_store.h"
#include "support/page_everything.h"
#include "support/torch_step.h"
#include "trace/allocator_tap.h"

namespace poet::testing {
namespace {

using ::testing::IsEmpty;

// Pages everything as soon as there is a plan.
void runPaged(LiveStep& live, int calls, bool away) {
  for (int call = 0; call < calls; ++call) {
    const StepReport report = live.run();
    if (!report.newly_stable) continue;
    const auto graph = live.session().graphOf(report.variant);
    live.session().setPlan(report.variant,
                           std::make_shared<const Schedule>(pageEverything(*graph, away)),
                           hostProfile());
  }
}

int callsOf(const NamedStep& named, int calls) {
  return std::string(named.name) == "accumulation" ? 15 : calls;  // it has variants
}

class PagedSteps : public ::testing::TestWithParam<std::tuple<NamedStep, bool>> {};

// Under the debug mode: paged bytes and resident bytes are checked as well.
TEST_P(PagedSteps, KeepEveryBit) {
  const AllocatorTap::Guard tap;  // whatever is released must have been counted
  const auto& [named, away] = GetParam();
  const int calls = callsOf(named, 6);
  const Trained plain = trainPlain(named.make(), calls);

  const TorchStep step = named.make();
  LiveStep live(step, /*verify=*/true);
  runPaged(live, calls, away);

  EXPECT_THAT(differences(plain.state, step.state()), IsEmpty());
  for (size_t call = 0; call < plain.losses.size(); ++call)
    EXPECT_TRUE(sameBits(plain.losses[call], live.losses()[call])) << "loss of call " << call;
  const ExecutorCounters counters = live.session().executorCounters();
  const PagingCounters pages = live.session().pagingCounters();
  EXPECT_GE(live.session().counters().followed_steps, 3);
  EXPECT_EQ(live.session().counters().departures, 0) << live.session().lastDeparture();
  if (counters.switches == 0) {
    EXPECT_EQ(counters.first_unplanned, "");
    EXPECT_EQ(counters.unplanned_recomputes, 0);
  }
  EXPECT_GT(pages.planned_page_outs, 0);
  EXPECT_GT(pages.planned_page_ins, 0);
  EXPECT_EQ(pages.moved_between_steps > 0, away);
  EXPECT_EQ(pages.failed_page_outs + pages.failed_page_ins, 0) << pages.trouble;
}

INSTANTIATE_TEST_SUITE_P(Executor, PagedSteps,
                         ::testing::Combine(::testing::ValuesIn(allSteps()), ::testing::Bool()),
                         [](const ::testing::TestParamInfo<PagedSteps::ParamType>& one) {
                           return std::string(std::get<0>(one.param).name) +
                                  (std::get<1>(one.param) ? "_away" : "_in_step");
                         });

// ------------------------------------------------------------------------------------------------
// transfers that are still under way when something needs them

// Every transfer takes some milliseconds more than the disk does.
class SlowStore final : public PageStore {
 public:
  explicit SlowStore(uint64_t seed) : random_(seed) {}

  void reserve(int64_t bytes) override { disk_->reserve(bytes); }
  int64_t write(const void* data, int64_t bytes) override {
    dawdle();
    return disk_->write(data, bytes);
  }
  void read(int64_t slot, void* data) override {
    dawdle();
    disk_->read(slot, data);
  }
  void release(int64_t slot) override { disk_->release(slot); }
  int64_t bytesOf(int64_t slot) const override { return disk_->bytesOf(slot); }
  int64_t slotsInUse() const override { return disk_->slotsInUse(); }
  int64_t bufferBytes() const override { return disk_->bufferBytes(); }
  double cachedShare() const override { return disk_->cachedShare(); }
  const StoreCounters& counters() const override { return disk_->counters(); }
  const std::string& directory() const override { return disk_->directory(); }

 private:
  void dawdle() { std::this_thread::sleep_for(std::chrono::microseconds(random_() % 2000)); }

  const std::unique_ptr<PageStore> disk_ = PageStore::open("");
  std::minstd_rand random_;
};

class SlowTransfers : public ::testing::TestWithParam<NamedStep> {};

// The debug mode compares each op's resident bytes with the simulator's: they do not depend on
// time.
TEST_P(SlowTransfers, ChangeNeitherBitsNorMemory) {
  const AllocatorTap::Guard tap;
  const int calls = callsOf(GetParam(), 5);
  const Trained plain = trainPlain(GetParam().make(), calls);

  const TorchStep step = GetParam().make();
  LiveStep live(step, /*verify=*/true);
  live.session().setStore(std::make_shared<SlowStore>(11));
  runPaged(live, calls, false);

  EXPECT_THAT(differences(plain.state, step.state()), IsEmpty());
  const PagingCounters pages = live.session().pagingCounters();
  EXPECT_GT(pages.planned_page_outs, 0);
  EXPECT_GT(pages.waited_seconds, 0);
  EXPECT_EQ(pages.failed_page_outs + pages.failed_page_ins, 0) << pages.trouble;
  const ExecutorCounters counters = live.session().executorCounters();
  if (counters.switches == 0) {
    EXPECT_EQ(counters.first_unplanned, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Executor, SlowTransfers, ::testing::ValuesIn(allSteps()),
                         [](const ::testing::TestParamInfo<NamedStep>& one) {
                           return std::string(one.param.name);
                         });

// Autograd accumulates in place where it has the only reference, and so does whoever asks.
TEST(Paging, AValueOnItsWayOutHasNoMoreReferencesThanBefore) {
  at::Tensor x = at::ones({512, 512}), made;
  size_t references = 0;
  LiveStep live([&] {
    made = x.mul(2);
    at::Tensor other = x.add(1);
    references = made.storage().use_count();
    made = made.mul(other);
  });
  live.session().setStore(std::make_shared<SlowStore>(3));
  live.trace();
  const size_t plain = references;
  live.plan(pageEverything(live.graph(), false));
  live.run();
  EXPECT_EQ(references, plain);
  EXPECT_TRUE(sameBits(made, at::full({512, 512}, 4.0f)));
}

// ------------------------------------------------------------------------------------------------
// faults

// Two layers; every weight is written once, at the end of the step.
class PagingFaults : public ::testing::TestWithParam<StoreFault> {
 protected:
  struct Weights {
    at::Tensor a, b;
  };
  static constexpr int kFollowed = 1;  // steps under the plan before the fault

  PagingFaults() { at::set_num_threads(1); }
  ~PagingFaults() override { injectStoreFault(StoreFault::kNone); }

  static Weights fresh() {
    at::manual_seed(9);
    return {at::randn({48, 48}), at::randn({48, 48})};
  }
  static void step(const Weights& w) {
    const at::Tensor x = at::ones({8, 48});
    const at::Tensor hidden = at::tanh(x.mm(w.a));
    const at::Tensor out = hidden.mm(w.b);
    const at::Tensor gradient_b = hidden.t().mm(out);
    const at::Tensor gradient_a = x.t().mm(out.mm(w.b.t()).mul(hidden));
    w.a.add_(gradient_a, -1e-3);
    w.b.add_(gradient_b, -1e-3);
  }
  static Weights plainAfter(int steps) {
    Weights w = fresh();
    for (int i = 0; i < steps; ++i) step(w);
    return w;
  }

  enum class Outcome { kExact, kError, kLost };
  // Strikes at transfer number `nth` of a step; `struck` tells whether there was one.
  static void strike(StoreFault fault, int64_t nth, bool& struck, Outcome& outcome) {
    const Weights w = fresh();
    LiveStep live([&] { step(w); });
    live.trace();
    live.plan(pageEverything(live.graph(), true));
    const int traced = static_cast<int>(live.session().counters().steps);
    for (int i = 0; i < kFollowed; ++i) live.run();
    const int before = traced + kFollowed;
    injectStoreFault(fault, nth);
    outcome = Outcome::kExact;
    try {
      live.run();
    } catch (const StoreError&) {
      outcome = Outcome::kError;
    }
    struck = storeFaultsStruck() > 0;
    injectStoreFault(StoreFault::kNone);
    for (const auto& [name, member] : {std::pair{"a", &Weights::a}, std::pair{"b", &Weights::b}}) {
      at::Tensor found;
      try {
        found = (w.*member).clone();
      } catch (const StoreError&) {
        EXPECT_EQ(fault, StoreFault::kRuin) << "weight " << name << ", transfer " << nth;
        outcome = Outcome::kLost;
        continue;
      }
      const bool as_after = sameBits(found, plainAfter(before + 1).*member);
      const bool as_before = sameBits(found, plainAfter(before).*member);
      EXPECT_TRUE(as_after || (outcome != Outcome::kExact && as_before))
          << "weight " << name << ", transfer " << nth;
    }
    if (outcome != Outcome::kExact) return;
    live.run();
    EXPECT_TRUE(sameBits(w.a.clone(), plainAfter(before + 2).a)) << "transfer " << nth;
    EXPECT_TRUE(sameBits(w.b.clone(), plainAfter(before + 2).b)) << "transfer " << nth;
  }
};

TEST_P(PagingFaults, AtEveryTransferAreExactOrAnError) {
  const StoreFault fault = GetParam();
  int64_t transfers = 0;
  bool struck = true;
  while (struck && transfers < 200) {
    Outcome outcome;
    strike(fault, ++transfers, struck, outcome);
    const bool mended = fault == StoreFault::kFlipBit || fault == StoreFault::kShortRead ||
                        fault == StoreFault::kShortWrite || fault == StoreFault::kReadErrorOnce ||
                        fault == StoreFault::kWriteErrorOnce;
    const bool of_writing = fault == StoreFault::kWriteError || fault == StoreFault::kWriteNoSpace;
    if (!struck || mended || of_writing) {
      EXPECT_EQ(outcome, Outcome::kExact) << "transfer " << transfers;
    }
  }
  EXPECT_GT(transfers, 6);
  EXPECT_LT(transfers, 200);
}

INSTANTIATE_TEST_SUITE_P(Executor, PagingFaults,
                         ::testing::Values(StoreFault::kWriteNoSpace, StoreFault::kWriteErrorOnce,
                                           StoreFault::kWriteError, StoreFault::kShortWrite,
                                           StoreFault::kReadErrorOnce, StoreFault::kReadError,
                                           StoreFault::kShortRead, StoreFault::kReadNothing,
                                           StoreFault::kFlipBit, StoreFault::kRuin));

// ------------------------------------------------------------------------------------------------
// single things

TEST(Paging, ZeroByteValuesArePaged) {
  const at::Tensor x = at::ones({4, 4});
  at::Tensor result;
  LiveStep live([&] {
    const at::Tensor nothing = x.narrow(0, 0, 0).clone();
    const at::Tensor sums = x.sum(0);
    result = sums.add(nothing.sum());
  });
  live.trace();
  live.plan(pageEverything(live.graph(), true));
  for (int i = 0; i < 3; ++i) live.run();
  EXPECT_TRUE(sameBits(result, at::full({4}, 4.0f)));
  EXPECT_EQ(live.session().counters().followed_steps, 3);
}

TEST(Paging, WhatIsAwayBetweenStepsComesBackWithTheSession) {
  const at::Tensor w = at::ones({64, 64});
  {
    LiveStep live([&] { w.add_(1); });
    live.trace();
    live.plan(pageEverything(live.graph(), true));
    live.run();
    EXPECT_THROW(w.data_ptr(), c10::Error);
    live.session().bringBack();
    EXPECT_NO_THROW(w.data_ptr());
    live.run();
    EXPECT_THROW(w.data_ptr(), c10::Error);
  }
  EXPECT_TRUE(sameBits(w, at::full({64, 64}, 5.0f)));
}

TEST(Paging, AfterFailuresInARowNothingIsPagedAnyMore) {
  const at::Tensor w = at::ones({64, 64});
  LiveStep live([&] { w.add_(1); });
  live.trace();
  live.plan(pageEverything(live.graph(), true));
  injectStoreFault(StoreFault::kWriteError);
  for (int i = 0; i < 5; ++i) live.run();
  injectStoreFault(StoreFault::kNone);
  EXPECT_TRUE(sameBits(w.clone(), at::full({64, 64}, 8.0f)));
  EXPECT_EQ(live.session().pagingCounters().failed_page_outs, Pager::kFailuresAllowed);
  EXPECT_NE(live.session().newTrouble(), "");
  EXPECT_EQ(live.session().newTrouble(), "");
}

}  // namespace
}  // namespace poet::testing
