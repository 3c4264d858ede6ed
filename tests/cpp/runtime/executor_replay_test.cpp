#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "runtime/executor.h"
#include "support/plan_builder.h"
#include "support/torch_step.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;

class ReplayTest : public ::testing::Test {
 protected:
  ReplayTest() {
    at::set_num_threads(1);
    at::manual_seed(5);
    x_ = at::randn({48, 48});
    w_ = at::randn({48, 48});
  }

  // Evicts the first value of op `made` before the op after its last write, and brings it back
  // before `back`.
  static Schedule evict(const Graph& g, OpId made, OpId back) {
    const ValueId v = madeBy(g, made);
    const RecipeTable table(g);
    const Recipe& recipe = table.recipes().at(static_cast<size_t>(table.recipeOf(v)));
    return PlanBuilder(g)
        .before(recipe.lastOp().index + 1)
        .free(v)
        .before(back.index)
        .recompute(recipe.ops)
        .build();
  }

  at::Tensor x_, w_;
};

TEST_F(ReplayTest, RunningStatisticsMoveOnce) {
  at::Tensor mean = at::zeros({4}), var = at::ones({4}), scale = at::ones({4}),
             shift = at::zeros({4});
  const at::Tensor image = at::randn({3, 4, 5, 5});
  at::Tensor result;
  LiveStep live([&] {
    const auto [out, save_mean, save_invstd] =
        at::native_batch_norm(image, scale, shift, mean, var, true, 0.1, 1e-5);
    x_.neg();
    result = out.add(1);
  });
  live.trace();
  const Graph& g = live.graph();
  const OpId norm = opNamed(g, "aten::native_batch_norm");
  live.plan(PlanBuilder(g)
                .before(1)
                .free(madeBy(g, norm))
                .recompute({norm.index})
                .before(2)
                .free(madeBy(g, norm))
                .recompute({norm.index})
                .build());
  at::Tensor mean_plain = mean.clone(), var_plain = var.clone();
  const auto plain =
      at::native_batch_norm(image, scale, shift, mean_plain, var_plain, true, 0.1, 1e-5);
  ASSERT_EQ(live.run().mode, StepReport::Mode::kFollowed);
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 2);
  EXPECT_TRUE(sameBits(mean, mean_plain));
  EXPECT_TRUE(sameBits(var, var_plain));
  EXPECT_TRUE(sameBits(result, std::get<0>(plain).add(1)));
}

TEST_F(ReplayTest, RandomOpsRepeatTheirDraws) {
  at::Tensor first, second, after;
  LiveStep live([&] {
    const auto [dropped, mask] = at::native_dropout(x_, 0.5, true);
    x_.neg();
    first = dropped.add(1);
    second = mask.logical_not();
    after = at::rand({8});
  });
  live.trace();
  const Graph& g = live.graph();
  ASSERT_TRUE(g.op(OpId(0)).random);
  const std::span<const ValueId> made = g.madeBy(OpId(0));
  ASSERT_EQ(made.size(), 2u);
  live.plan(PlanBuilder(g).before(1).free(made[0]).free(made[1]).before(2).recompute({0}).build());
  at::manual_seed(77);
  live.run();
  at::manual_seed(77);
  const auto [dropped, mask] = at::native_dropout(x_, 0.5, true);
  EXPECT_TRUE(sameBits(first, dropped.add(1)));
  EXPECT_TRUE(sameBits(second, mask.logical_not()));
  EXPECT_TRUE(sameBits(after, at::rand({8}))) << "a replay must not move the generator";
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, CachedNormalSamplesAreRepeatedToo) {
  // Small normal tensors are drawn in pairs; the second of a pair waits in the generator.
  at::Tensor result, after;
  LiveStep live([&] {
    const at::Tensor a = at::empty({1, 3});
    a.normal_();
    x_.neg();
    result = a.add(1);
    after = at::randn({3});
  });
  live.trace();
  const Graph& g = live.graph();
  const OpId normal = opNamed(g, "aten::normal_");
  const OpId empty = opNamed(g, "aten::empty");
  ASSERT_TRUE(g.op(normal).random);
  live.plan(PlanBuilder(g)
                .before(normal.index + 1)
                .free(madeBy(g, empty))
                .before(normal.index + 2)
                .recompute({empty.index, normal.index})
                .build());
  at::manual_seed(78);
  at::randn({1});
  live.run();
  at::manual_seed(78);
  at::randn({1});
  EXPECT_TRUE(sameBits(result, at::empty({1, 3}).normal_().add(1)));
  EXPECT_TRUE(sameBits(after, at::randn({3})));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, AGeneratorArgumentIsTheOneThatIsPutBack) {
  at::Generator generator = at::detail::createCPUGenerator(9);
  at::Tensor result, after, other;
  LiveStep live([&] {
    const at::Tensor a = x_.bernoulli(0.4, generator);
    other = at::rand({4});  // the default generator has moved on meanwhile
    result = a.add(1);
    after = at::rand({4}, generator);
  });
  live.trace();
  const Graph& g = live.graph();
  const OpId draw = opNamed(g, "aten::bernoulli");
  live.plan(evict(g, draw, opNamed(g, "aten::add")));
  generator.set_current_seed(21);
  at::manual_seed(22);
  live.run();
  at::Generator again = at::detail::createCPUGenerator(21);
  at::manual_seed(22);
  EXPECT_TRUE(sameBits(result, x_.bernoulli(0.4, again).add(1)));
  EXPECT_TRUE(sameBits(other, at::rand({4})));
  EXPECT_TRUE(sameBits(after, at::rand({4}, again)));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, AnInPlaceChainComesBackInItsLastVersion) {
  at::Tensor result;
  LiveStep live([&] {
    at::Tensor a = x_.mul(w_);
    a.add_(1);
    a.slice(0, 0, 5).mul_(3);
    x_.neg();
    result = a.tanh();
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  live.plan(evict(g, OpId(0), opNamed(g, "aten::tanh")));
  live.run();
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_EQ(live.session().executorCounters().replayed_ops, 3) << "mul, add_, mul_";
}

TEST_F(ReplayTest, AChainIsReplayedOnScratchWhileOneOfItsValuesIsThere) {
  // The producer made two values; one is in use, with its in-place writes done: it must not get
  // them twice.
  at::Tensor result, stays, stays_before;
  LiveStep live([&] {
    auto [values, order] = x_.sort(1);
    values.add_(1);
    values.mul_(2);
    x_.neg();
    const void* const data = values.const_data_ptr();
    if (stays_before.defined()) {
      EXPECT_TRUE(sameBits(values, stays_before));
    }
    result = order.add(1);
    EXPECT_EQ(values.const_data_ptr(), data) << "a raw reader may hold the pointer";
    stays = values.tanh();
  });
  live.trace();
  const at::Tensor expected = result, expected_stays = stays;
  const Graph& g = live.graph();
  const std::span<const ValueId> made = g.madeBy(OpId(0));
  ASSERT_EQ(made.size(), 2u);
  const RecipeTable table(g);
  const Recipe& recipe = table.recipes().at(static_cast<size_t>(table.recipeOf(made[1])));
  ASSERT_THAT(recipe.ops, ElementsAre(OpId(0), OpId(1), OpId(2)));
  live.plan(PlanBuilder(g).before(3).free(made[1]).before(4).recompute(recipe.ops).build());
  stays_before = std::get<0>(x_.sort(1)).add(1).mul(2);
  live.run();
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_TRUE(sameBits(stays, expected_stays));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, TensorsInListsAreBuiltAgain) {
  at::Tensor result;
  LiveStep live([&] {
    const at::Tensor a = x_.mul(2), b = w_.mul(3);
    const at::Tensor joined = at::cat({a, x_, b.t(), a}, 0);
    x_.neg();
    result = joined.add(1);
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  live.plan(evict(g, opNamed(g, "aten::cat"), opNamed(g, "aten::add")));
  live.run();
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, OptionalTensorsInListsAreBuiltAgain) {
  at::Tensor result;
  LiveStep live([&] {
    const at::Tensor rows = at::arange(0, 48, 2).add(1);
    const at::Tensor mask = x_.select(0, 0).gt(0);
    c10::List<std::optional<at::Tensor>> where;
    where.push_back(std::nullopt);
    where.push_back(mask);
    const at::Tensor picked = at::index(x_, where);
    x_.neg();
    result = picked.add(rows.sum());
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  live.plan(greedyPlan(g));
  live.run();
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_GE(live.session().executorCounters().planned_recomputes, 1);
}

TEST_F(ReplayTest, MissingInputsAreBroughtBackFirst) {
  // b is away, and so is a, which is dead: the plan only says that b comes back.
  at::Tensor result;
  LiveStep live([&] {
    at::Tensor a = x_.mul(w_);
    at::Tensor b = a.tanh();
    a.reset();
    x_.neg();
    result = b.add(1);
  });
  live.trace();
  const at::Tensor expected = result;
  const Graph& g = live.graph();
  const ValueId a = madeBy(g, OpId(0)), b = madeBy(g, OpId(1));
  live.plan(
      PlanBuilder(g).before(2).free(b).before(3).recompute({0}).recompute({1}).free(a).build());
  live.run();
  EXPECT_TRUE(sameBits(result, expected));
  EXPECT_EQ(live.session().executorCounters().planned_recomputes, 2);
  EXPECT_EQ(live.session().executorCounters().unplanned_recomputes, 0);
}

// ------------------------------------------------------------------------------------------------
// what a kernel may ask for besides its arguments

std::vector<int64_t>& seenByProbe() {
  static auto* seen = new std::vector<int64_t>;
  return *seen;
}

// Notes the thread's settings as a kernel finds them.
at::Tensor probeSettings(const at::Tensor& x) {
  const at::Context& context = at::globalContext();
  seenByProbe() = {at::GradMode::is_enabled(),
                   at::get_num_threads(),
                   context.deterministicAlgorithms(),
                   context.userEnabledMkldnn(),
                   static_cast<int64_t>(at::autocast::get_autocast_dtype(at::kCPU)),
                   c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutocastCPU),
                   c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::AutocastCPU)};
  return at::ones_like(x);
}

TEST_F(ReplayTest, AKernelFindsTheSettingsOfItsFirstRun) {
  torch::Library library(torch::Library::FRAGMENT, "aten", std::nullopt, __FILE__, __LINE__);
  library.def("poet_test_settings(Tensor x) -> Tensor");
  library.impl("poet_test_settings", c10::DispatchKey::CPU, TORCH_FN(probeSettings));
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow("aten::poet_test_settings", "")
                      .typed<at::Tensor(const at::Tensor&)>();
  std::vector<int64_t> first, again, between;
  LiveStep live([&] {
    at::Tensor a;
    {
      const at::AutoGradMode off(false);
      at::set_num_threads(2);
      at::globalContext().setDeterministicAlgorithms(true, false);
      at::globalContext().setUserEnabledMkldnn(false);
      at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
      const c10::impl::IncludeDispatchKeyGuard autocast(c10::DispatchKey::AutocastCPU);
      a = op.call(x_);
      first = seenByProbe();
      seenByProbe().clear();
    }
    at::set_num_threads(1);
    at::globalContext().setDeterministicAlgorithms(false, false);
    at::globalContext().setUserEnabledMkldnn(true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    x_.neg();
    a.add(1);
    again = seenByProbe();
    between = {at::GradMode::is_enabled(), at::get_num_threads(),
               at::globalContext().deterministicAlgorithms(),
               at::globalContext().userEnabledMkldnn(),
               static_cast<int64_t>(at::autocast::get_autocast_dtype(at::kCPU))};
  });
  live.trace();
  ASSERT_TRUE(again.empty());
  const Graph& g = live.graph();
  live.plan(evict(g, opNamed(g, "aten::poet_test_settings"), opNamed(g, "aten::add")));
  live.run();
  ASSERT_EQ(first.size(), 7u);
  EXPECT_EQ(first[0], 0);
  EXPECT_EQ(first[1], 2);
  EXPECT_EQ(again, first);
  EXPECT_THAT(between, ElementsAre(1, 1, 0, 1, static_cast<int64_t>(at::kBFloat16)))
      << "after the replay everything is as the program set it";
}

}  // namespace
}  // namespace poet::testing
