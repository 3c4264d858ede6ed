#include "runtime/verify.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "graph/error.h"
#include "support/plan_builder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// x + how often it has been called: what nobody can replay. In the namespace of the ops that poet
// believes.
at::Tensor impure(const at::Tensor& x) {
  static int64_t calls = 0;
  return x.add(++calls);
}

at::Tensor needsScratch(const at::Tensor& x, int64_t bytes) {
  const at::Tensor scratch = at::empty({bytes}, at::kByte);
  return x.add(1);
}

class VerifyTest : public ::testing::Test {
 protected:
  VerifyTest() : library_(torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__) {
    at::set_num_threads(1);
    library_.def("poet_test_impure(Tensor x) -> Tensor");
    library_.impl("poet_test_impure", c10::DispatchKey::CPU, TORCH_FN(impure));
    library_.def("poet_test_scratch(Tensor x, int bytes) -> Tensor");
    library_.impl("poet_test_scratch", c10::DispatchKey::CPU, TORCH_FN(needsScratch));
    x_ = at::randn({32, 32});
  }

  static at::Tensor callImpure(const at::Tensor& x) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("aten::poet_test_impure", "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(x);
  }
  static at::Tensor callScratch(const at::Tensor& x, int64_t bytes) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow("aten::poet_test_scratch", "")
        .typed<at::Tensor(const at::Tensor&, int64_t)>()
        .call(x, bytes);
  }
  static std::string errorOf(LiveStep& live) {
    try {
      live.run();
      return "no error";
    } catch (const Error& e) {
      return e.what();
    }
  }

  torch::Library library_;
  at::Tensor x_;
};

TEST_F(VerifyTest, HashesTellEveryByteAndItsPlace) {
  for (int64_t size : {1, 7, 8, 9, 64, 1001}) {
    const at::Tensor t = at::arange(size, at::kByte).clone();
    const uint64_t hash = Verifier::contentHash(*t.storage().unsafeGetStorageImpl());
    const at::Tensor copy = t.clone();
    EXPECT_EQ(Verifier::contentHash(*copy.storage().unsafeGetStorageImpl()), hash);
    for (int64_t i = 0; i < size; ++i) {
      uint8_t* byte = static_cast<uint8_t*>(copy.data_ptr()) + i;
      *byte ^= 0x80;
      EXPECT_NE(Verifier::contentHash(*copy.storage().unsafeGetStorageImpl()), hash)
          << "byte " << i << " of " << size;
      *byte ^= 0x80;
    }
  }
  const at::Tensor a = at::arange(16, at::kLong);
  const at::Tensor b = a.flip(0);
  EXPECT_NE(Verifier::contentHash(*a.storage().unsafeGetStorageImpl()),
            Verifier::contentHash(*b.storage().unsafeGetStorageImpl()));
}

TEST_F(VerifyTest, ARecomputeWithOtherBytesIsFoundAndNamed) {
  for (const bool verify : {true, false}) {
    LiveStep live(
        [&] {
          const at::Tensor a = callImpure(x_);
          x_.neg();
          a.add(1);
        },
        verify);
    live.trace();
    const Graph& g = live.graph();
    ASSERT_TRUE(g.op(OpId(0)).replayable);
    live.plan(PlanBuilder(g).before(1).free(madeBy(g, OpId(0))).before(2).recompute({0}).build());
    const std::string error = errorOf(live);
    if (!verify) {
      EXPECT_EQ(error, "no error") << "only the debug mode sees it";
      continue;
    }
    const std::string value = std::to_string(madeBy(g, OpId(0)).index);
    EXPECT_THAT(error,
                AllOf(HasSubstr("POET_VERIFY"), HasSubstr("before op 2 (aten::add"),
                      HasSubstr("value " + value + " (made by op 0, aten::poet_test_impure)"),
                      HasSubstr("version 0"), HasSubstr("other bytes")));
  }
}

TEST_F(VerifyTest, TheVersionOfAWrittenValueIsNamed) {
  LiveStep live(
      [&] {
        const at::Tensor a = callImpure(x_);
        a.mul_(2);
        a.add_(x_);
        x_.neg();
        a.tanh();
      },
      true);
  live.trace();
  const Graph& g = live.graph();
  live.plan(
      PlanBuilder(g).before(3).free(madeBy(g, OpId(0))).before(4).recompute({0, 1, 2}).build());
  EXPECT_THAT(errorOf(live), HasSubstr("version 2"));
}

TEST_F(VerifyTest, MoreMemoryThanWasPredictedIsFoundAndNamed) {
  // Scalars are no part of the signature, so the op may come with a larger one.
  int64_t bytes = 1000;
  LiveStep live(
      [&] {
        const at::Tensor a = x_.neg();
        callScratch(a, bytes);
      },
      true);
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  EXPECT_EQ(errorOf(live), "no error");
  bytes = 6 << 10;  // below what is tolerated
  EXPECT_EQ(errorOf(live), "no error");
  bytes = 4 << 20;
  EXPECT_THAT(errorOf(live),
              AllOf(HasSubstr("POET_VERIFY"), HasSubstr("op 1 (aten::poet_test_scratch)"),
                    HasSubstr("bytes resident")));
  bytes = 1000;
  EXPECT_EQ(errorOf(live), "no error") << "the next call works";
}

TEST_F(VerifyTest, WhatTheProgramHoldsLongerIsNoFaultAndHidesNone) {
  // A value that lives longer than in the trace is the program's own memory: no fault of the plan.
  const at::Tensor big = at::randn({1 << 20});
  at::Tensor kept;
  bool keep = false;
  int64_t scratch = 1000;
  LiveStep live(
      [&] {
        at::Tensor a = big.neg();
        if (keep) kept = a;
        a.reset();
        callScratch(x_, scratch);
        big.exp();
      },
      true);
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  EXPECT_EQ(errorOf(live), "no error");
  keep = true;
  EXPECT_EQ(errorOf(live), "no error");
  ASSERT_TRUE(kept.defined());
  // What comes on top of it is found.
  kept.reset();
  scratch = 4 << 20;
  EXPECT_THAT(errorOf(live),
              AllOf(HasSubstr("op 1 (aten::poet_test_scratch)"), HasSubstr("bytes resident")));
}

TEST_F(VerifyTest, WhatWasThereBeforeTheStepIsNoFault) {
  const at::Tensor big = at::randn({1 << 18});
  LiveStep live([&] { big.neg().abs(); }, true);
  live.trace();
  live.plan(PlanBuilder(live.graph()).build());
  std::vector<at::Tensor> others;
  for (int call = 0; call < 3; ++call) {
    EXPECT_EQ(errorOf(live), "no error");
    const AllocatorTap::Guard tapped;
    others.push_back(at::zeros({1 << 20}));
  }
}

}  // namespace
}  // namespace poet::testing
