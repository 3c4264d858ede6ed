#include "runtime/training_step.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph/error.h"
#include "runtime/session.h"
#include "support/torch_step.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kCalls = 7;

// As support/torch_step.h makes them, told of the optimizer by the guard instead of a session.
class UnderPoet {
 public:
  UnderPoet(const TorchStep& step, const TrainingStepOptions& options)
      : step_(step), training_([this] { return step_.run(calls_++, nullptr); }, options) {}

  Trained train() {
    Trained result;
    for (int i = 0; i < kCalls; ++i) result.losses.push_back(training_());
    result.state = step_.state();
    return result;
  }
  TrainingStep& training() { return training_; }

 private:
  TorchStep step_;
  int calls_ = 0;
  TrainingStep training_;
};

TrainingStepOptions options(const char* budget) {
  TrainingStepOptions result{.ram_budget = budget};
  result.background = false;
  result.paging = false;
  result.time_limit_seconds = 20;
  result.solver_path = POET_SOLVER_PATH;
  return result;
}

class TrainingStepTest : public ::testing::TestWithParam<NamedStep> {};

TEST_P(TrainingStepTest, TrainsWithTheSameBitsUnderItsPlan) {
  const Trained plain = trainPlain(GetParam().make(), kCalls);
  UnderPoet poet(GetParam().make(), options("85%"));
  const Trained trained = poet.train();
  ASSERT_EQ(trained.losses.size(), plain.losses.size());
  for (int i = 0; i < kCalls; ++i)
    EXPECT_TRUE(sameBits(trained.losses[i], plain.losses[i])) << "loss of call " << i;
  EXPECT_THAT(differences(trained.state, plain.state), ::testing::IsEmpty());
  const StepStats stats = poet.training().stats();
  EXPECT_EQ(stats.steps, kCalls);
  EXPECT_EQ(stats.departures, 0);
  ASSERT_NE(poet.training().schedule(), nullptr);
  if (poet.training().schedule()->hasPlan()) {
    EXPECT_GE(stats.plans, 1);
  } else {
    EXPECT_THAT(stats.message, ::testing::Not(::testing::IsEmpty()));
  }
}

INSTANTIATE_TEST_SUITE_P(Steps, TrainingStepTest, ::testing::ValuesIn(allSteps()),
                         [](const auto& test) { return std::string(test.param.name); });

// A chain of ops whose middle can be computed again: half of its peak is enough.
class ChainTest : public ::testing::Test {
 protected:
  ChainTest() : x_((at::set_num_threads(1), at::manual_seed(4), at::randn({64, 1024}))) {}

  at::Tensor chain() {
    std::vector<at::Tensor> kept = {x_};
    for (int i = 0; i < 8; ++i) kept.push_back(kept.back().sin());
    midway_();
    at::Tensor sum = at::zeros_like(x_);
    for (; !kept.empty(); kept.pop_back()) sum.add_(kept.back());
    return sum;
  }

  at::Tensor x_;
  std::function<void()> midway_ = [] {};
};

TEST_F(ChainTest, ARunInTheBackgroundIsWaitedForAndThenFollowed) {
  TrainingStepOptions wanted = options("70%");
  wanted.background = true;
  TrainingStep step([this] { return chain(); }, wanted);
  const at::Tensor plain = chain();
  EXPECT_EQ(step.graph(), nullptr);
  EXPECT_EQ(step.schedule(), nullptr);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_TRUE(step.waitForPlan());
  EXPECT_FALSE(step.stats().planning);
  EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_EQ(step.stats().followed_steps, 1);
  EXPECT_GT(step.stats().planned_recomputes, 0);
  ASSERT_NE(step.schedule(), nullptr);
  EXPECT_TRUE(step.schedule()->hasPlan());
  EXPECT_EQ(step.schedule()->graph_signature, step.graph()->signature());
  EXPECT_LE(step.schedule()->peak_bytes, *step.schedule()->ram_budget_bytes);
}

TEST_F(ChainTest, MemoryOfTensorsThatAreNamedCounts) {
  const at::Tensor other = at::zeros({100, 1000});
  TrainingStep without([this] { return chain(); }, options("100%"));
  TrainingStep with([this] { return chain(); }, options("100%"));
  with.keepCounted({other, at::Tensor()});
  for (int i = 0; i < 2; ++i) {
    without();
    with();
  }
  EXPECT_EQ(with.graph()->baseBytes() - without.graph()->baseBytes(),
            static_cast<int64_t>(other.nbytes()));
}

TEST_F(ChainTest, WhatIsNamedLaterCountsInAPlanThatHoldsAllTheSame) {
  const at::Tensor other = at::zeros({100, 1000});
  TrainingStep step([this] { return chain(); }, options("64MiB"));
  step.keepCounted({x_});
  for (int i = 0; i < 4; ++i) step();
  ASSERT_NE(step.schedule(), nullptr);
  const int64_t before = step.schedule()->peak_bytes;
  step.keepCounted({other});
  for (int i = 0; i < 8; ++i) step();  // counted after 1, 2, 4 and 8 of them
  EXPECT_EQ(step.schedule()->peak_bytes - before, static_cast<int64_t>(other.nbytes()));
  EXPECT_EQ(step.graph()->baseBytes(), static_cast<int64_t>(other.nbytes()));
  EXPECT_EQ(step.stats().plans, 1);
}

TEST_F(ChainTest, WhatIsNamedLaterMakesAnotherPlanWhereTheBudgetIsTooSmall) {
  const at::Tensor other = at::zeros({100, 1000});
  const auto chain_bytes = static_cast<int64_t>(11 * x_.nbytes());
  TrainingStep step([this] { return chain(); }, options(std::to_string(chain_bytes + 100).c_str()));
  step.keepCounted({x_});
  for (int i = 0; i < 4; ++i) step();
  ASSERT_NE(step.schedule(), nullptr);
  EXPECT_EQ(step.schedule()->countActions(ActionKind::kRecompute), 0);
  step.keepCounted({other});
  for (int i = 0; i < 12; ++i) step();
  EXPECT_EQ(step.graph()->baseBytes(), static_cast<int64_t>(other.nbytes()));
  EXPECT_GT(step.schedule()->countActions(ActionKind::kRecompute), 0);
  EXPECT_LE(step.schedule()->peak_bytes, chain_bytes + 100);
}

TEST_F(ChainTest, WhatTheStepThrowsComesOutAndThePlanGoesOn) {
  TrainingStep step([this] { return chain(); }, options("70%"));
  const at::Tensor plain = chain();
  for (int i = 0; i < 3; ++i) step();
  midway_ = [] { throw std::domain_error("midway"); };
  EXPECT_THROW(step(), std::domain_error);
  midway_ = [] {};
  EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_EQ(step.stats().failed_steps, 1);
  EXPECT_EQ(step.stats().departures, 0);
}

TEST_F(ChainTest, AStepWithinAStepBelongsToTheOuterOne) {
  TrainingStep inner([this] { return chain(); }, options("70%"));
  TrainingStep outer([&] { return inner(); }, options("70%"));
  for (int i = 0; i < 3; ++i) outer();
  EXPECT_EQ(inner.stats().steps, 0);
  EXPECT_EQ(outer.stats().followed_steps, 1);
}

TEST_F(ChainTest, WithoutAPlanThereIsAWarningAndTrainingGoesOn) {
  class Collector : public c10::WarningHandler {
   public:
    void process(const c10::Warning& warning) override { text += warning.msg(); }
    std::string text;
  } collector;
  const c10::WarningUtils::WarningHandlerGuard guard(&collector);
  TrainingStepOptions wanted = options("1kB");
  wanted.strict = Strictness::kNever;
  TrainingStep step([this] { return chain(); }, wanted);
  const at::Tensor plain = chain();
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_THAT(collector.text, HasSubstr("poet found no plan within 1000 bytes (1000 B), status "
                                        "infeasible"));
  EXPECT_THAT(collector.text, HasSubstr("The least budget that has a plan is "));
  EXPECT_EQ(step.stats().followed_steps, 0);
  EXPECT_EQ(step.stats().plans, 0);
}

TEST_F(ChainTest, AFirstCallThatCannotFitIsAnErrorThatSaysSo) {
  TrainingStep step([this] { return chain(); }, options("1kB"));
  EXPECT_THROW(step(), BudgetError);
  EXPECT_EQ(step.stats().failed_steps, 1);
}

TEST_F(ChainTest, AHardBudgetEndsACallThatWouldExceedItAndTheNextOneWorks) {
  const at::Tensor plain = chain();
  const int64_t budget = 8 * static_cast<int64_t>(x_.nbytes());
  TrainingStepOptions wanted = options("1GiB");
  wanted.ram_budget = budget;
  wanted.strict = Strictness::kHard;
  TrainingStep step([this] { return chain(); }, wanted);
  step.keepCounted({x_});
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_EQ(step.stats().followed_steps, 1);
  at::Tensor more;
  midway_ = [&] { more = at::empty({budget}, at::kByte); };
  EXPECT_THROW(step(), std::exception);
  EXPECT_FALSE(more.defined());
  midway_ = [] {};
  EXPECT_TRUE(sameBits(step(), plain));
  EXPECT_EQ(step.stats().failed_steps, 1);
}

TEST_F(ChainTest, AMissingSolverIsAnErrorOfTheNextCall) {
  TrainingStepOptions wanted = options("70%");
  wanted.background = true;
  wanted.solver_path = "/nowhere/poet-solver";
  TrainingStep step([this] { return chain(); }, wanted);
  for (int i = 0; i < 2; ++i) step();
  try {
    step.waitForPlan();
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("The solver program was expected at /nowhere/poet-solver, "
                                        "and there is no executable file."));
  }
  EXPECT_NO_THROW(step());
}

TEST_F(ChainTest, ClosingEndsAPlanThatIsBeingSolvedFor) {
  TrainingStepOptions wanted = options("70%");
  wanted.background = true;
  const std::string mute = ::testing::TempDir() + "poet_mute_solver";
  std::ofstream(mute) << "#!/bin/sh\nexec sleep 60\n";
  std::filesystem::permissions(mute, std::filesystem::perms::owner_all);
  wanted.solver_path = mute;
  TrainingStep step([this] { return chain(); }, wanted);
  for (int i = 0; i < 2; ++i) step();
  const auto begin = std::chrono::steady_clock::now();
  step.close();
  step.close();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
  step();
  EXPECT_EQ(step.stats().steps, 2);  // a closed one runs plainly
}

TEST_F(ChainTest, APausedStepHasItsMemoryInTheStoreUntilItIsNeeded) {
  TrainingStepOptions wanted = options("90%");
  wanted.paging = true;
  TrainingStep step([this] { return chain(); }, wanted);
  step.keepCounted({x_});
  const at::Tensor plain = chain();
  EXPECT_EQ(step.pause(), 0) << "nothing is known of the step yet";
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(sameBits(step(), plain));
    EXPECT_EQ(step.pause(), static_cast<int64_t>(x_.nbytes()));
    EXPECT_THROW(x_.data_ptr(), c10::Error);
  }
  step.bringBack();
  EXPECT_NO_THROW(x_.data_ptr());
}

TEST(TrainingStepErrorsTest, ArgumentsThatMakeNoSense) {
  const auto refusal = [](TrainingStepOptions wanted) {
    try {
      TrainingStep step([] { return at::Tensor(); }, wanted);
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  TrainingStepOptions wanted = options("60%");
  wanted.time_limit_seconds = 0;
  EXPECT_THAT(refusal(wanted), HasSubstr("time_limit_s: expected seconds above 0; got 0."));
  wanted = options("60%");
  wanted.solve_threads = 0;
  EXPECT_THAT(refusal(wanted), HasSubstr("solve_threads: expected a number of threads; got 0."));
  wanted = options("60%");
  wanted.platform = "abacus";
  EXPECT_THAT(refusal(wanted), HasSubstr("abacus"));
  wanted = options("60%");
  wanted.strict = Strictness::kHard;
  EXPECT_THAT(refusal(wanted), HasSubstr("strict=kHard: expected a ram_budget in bytes"));
  wanted = options("1GiB");
  wanted.strict = Strictness::kHard;
  wanted.online = false;
  EXPECT_THAT(refusal(wanted), HasSubstr("strict=kHard: expected the online policy"));
  EXPECT_THROW(TrainingStep(TrainingStep::Body(), options("60%")), ArgumentError);
  EXPECT_THROW(TrainingStep(std::function<at::Tensor()>(), options("60%")), ArgumentError);
}

TEST(TrainingStepErrorsTest, AStepWithoutOperatorsIsRefused) {
  TrainingStep step([] { return at::Tensor(); }, options("60%"));
  EXPECT_THROW(step(), ArgumentError);
}

TEST(BringBackTest, DoesNothingOutsideAStep) {
  bringBack(at::Tensor());
  bringBack(at::ones({2}));
  const OptimizerPhase phase;
}

}  // namespace
}  // namespace poet::testing
