#include "runtime/variants.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/plan_builder.h"
#include "support/random.h"

namespace poet::testing {
namespace {

// A recording of unary ops, one a letter: "rt" is relu, tanh. The signature is the string's.
std::unique_ptr<Recording> recordingOf(const std::string& letters, double seconds = 1,
                                       int64_t workspace = 0) {
  auto recording = std::make_unique<Recording>();
  std::vector<Op> ops;
  std::vector<Value> values(1);
  values[0].bytes = 4;
  values[0].death = OpId(static_cast<int64_t>(letters.size()));
  recording->prefix_hash.push_back(0);
  recording->dead_begin.push_back(0);
  for (size_t k = 0; k < letters.size(); ++k) {
    const char* name = letters[k] == 'r' ? "aten::relu" : "aten::tanh";
    recording->ops.emplace_back(c10::Dispatcher::singleton().findSchemaOrThrow(name, ""));
    ops.emplace_back().name = name;
    ops.back().seconds = seconds;
    ops.back().workspace_bytes = workspace;
    ops.back().inputs = {ValueId(0)};
    recording->prefix_hash.push_back(recording->prefix_hash.back() * 31 +
                                     static_cast<uint64_t>(letters[k]));
    recording->dead_begin.push_back(0);
  }
  recording->first_shown = {OpId(0)};
  recording->graph = std::make_shared<const Graph>(ops, values, 0, recording->prefix_hash.back());
  return recording;
}

std::string lettersOf(int number) {
  std::string letters;
  for (; number > 0; number /= 2) letters += number % 2 == 0 ? 'r' : 't';
  return letters;
}

TEST(Variant, ExpectsGrowthAtThePaceOfTheLastCount) {
  Variant variant;
  EXPECT_FALSE(variant.noteMore(0));
  variant.followed = 4;
  EXPECT_FALSE(variant.noteMore(1001)) << "once is no pace";
  EXPECT_EQ(variant.growthSinceCheck(), 0);
  variant.followed = 6;
  EXPECT_EQ(variant.growthSinceCheck(), 2 * 251);
  EXPECT_TRUE(variant.noteMore(1500));
  variant.followed = 7;
  EXPECT_EQ(variant.growthSinceCheck(), 250);
  EXPECT_FALSE(variant.noteMore(1400)) << "less is no growth";
  variant.followed = 20;
  EXPECT_EQ(variant.growthSinceCheck(), 0);
}

class VariantsTest : public ::testing::Test {
 protected:
  int add(const std::string& letters) {
    bool ignored = false;
    return set_.add(recordingOf(letters), ignored);
  }
  void plan(int id, bool records = false) {
    const std::shared_ptr<const Recording> recording = set_.find(id)->recording;
    auto plan = std::make_shared<CompiledPlan>(
        recording, std::make_shared<const Schedule>(PlanBuilder(*recording->graph).build()),
        hostProfile());
    if (records) plan->recordAlso(0);
    set_.setPlan(id, plan);
  }
  // How many of `steps` are predicted, when step i is of variant next(i).
  template <class Next>
  int predicted(int steps, Next&& next) {
    int right = 0;
    for (int i = 0; i < steps; ++i) {
      const int id = next(i);
      right += set_.predict() == id;
      set_.noteStep(id);
    }
    return right;
  }

  VariantSet set_;
};

TEST_F(VariantsTest, NothingIsExpectedAtFirst) {
  EXPECT_EQ(set_.predict(), -1);
  const int a = add("r");
  EXPECT_EQ(set_.predict(), -1);
  set_.noteStep(a);
  EXPECT_EQ(set_.predict(), a);
}

TEST_F(VariantsTest, TheSecondStepAlikeMakesAVariantStable) {
  bool newly = true;
  const int a = set_.add(recordingOf("rt"), newly);
  EXPECT_FALSE(newly);
  EXPECT_EQ(set_.find(a)->state, VariantState::kSeenOnce);
  EXPECT_EQ(set_.add(recordingOf("rt"), newly), a);
  EXPECT_TRUE(newly);
  EXPECT_EQ(set_.find(a)->state, VariantState::kStable);
  EXPECT_EQ(set_.add(recordingOf("rt"), newly), a);
  EXPECT_FALSE(newly);
  EXPECT_NE(set_.add(recordingOf("rr"), newly), a);
  EXPECT_FALSE(newly);
  EXPECT_EQ(set_.size(), 2u);
}

TEST_F(VariantsTest, StepsAlikeAreMergedToTheLeastSecondsAndTheGreatestWorkspace) {
  bool newly = false;
  const int a = set_.add(recordingOf("r", 3, 100), newly);
  set_.add(recordingOf("r", 2, 50), newly);
  set_.add(recordingOf("r", 5, 70), newly);
  const Op& op = set_.find(a)->recording->graph->op(OpId(0));
  EXPECT_EQ(op.seconds, 2);
  EXPECT_EQ(op.workspace_bytes, 100);
}

TEST_F(VariantsTest, WhatWasSeenOnceMayGoAndIsSeenTwiceAllTheSame) {
  const int once = add("r"), kept = add("t"), planned = add("rt");
  plan(planned);
  const int64_t before = set_.ownBytes();
  set_.letGoOfSeenOnce({kept});
  EXPECT_EQ(set_.find(once)->recording, nullptr);
  EXPECT_NE(set_.find(kept)->recording, nullptr);
  EXPECT_NE(set_.find(planned)->recording, nullptr);
  EXPECT_LT(set_.ownBytes(), before);
  EXPECT_FALSE(set_.keepValue(once, ValueId(0), 0));
  bool newly = false;
  EXPECT_EQ(set_.add(recordingOf("r", 3, 40), newly), once);
  EXPECT_TRUE(newly);
  ASSERT_NE(set_.find(once)->recording, nullptr);
  EXPECT_EQ(set_.find(once)->recording->graph->ops()[0].seconds, 3);
  set_.letGoOfSeenOnce({});
  EXPECT_NE(set_.find(once)->recording, nullptr) << "seen twice";
}

TEST_F(VariantsTest, APlannedVariantsRecordingStays) {
  const int a = add("r");
  add("r");
  const auto recording = set_.find(a)->recording;
  plan(a);
  bool newly = true;
  EXPECT_EQ(set_.add(recordingOf("r", 0.1), newly), a);
  EXPECT_FALSE(newly);
  EXPECT_EQ(set_.find(a)->recording, recording);
  EXPECT_EQ(set_.find(a)->state, VariantState::kPlanned);
}

TEST_F(VariantsTest, TheShapesOfTheBatchChooseAmongTheVariants) {
  const int full = add("r"), last = add("t");
  const auto step = [&](uint64_t batch, int id) {
    set_.expectBatch(batch);
    const int expected = set_.predict();
    set_.noteStep(id);
    return expected;
  };
  EXPECT_EQ(step(8, full), -1);
  EXPECT_EQ(step(8, full), full);
  EXPECT_EQ(step(3, last), full);  // none ran with such a batch: the streams may still be the same
  plan(full);
  plan(last);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(step(8, full), full);  // longer than the history
    EXPECT_EQ(step(3, last), last);
  }
  EXPECT_EQ(step(8, full), full);
  set_.noteStep(last);  // a batch of which nothing is known
  EXPECT_EQ(step(8, full), full);
}

TEST_F(VariantsTest, PeriodicHistoriesArePredictedAfterOnePeriod) {
  const int a = add("r"), b = add("t"), c = add("rt");
  for (const std::vector<int>& period :
       {std::vector<int>{a, a, b}, {a, b, c}, {a, a, a, a, b, a, a, c}}) {
    set_ = VariantSet();
    ASSERT_EQ(add("r"), a);
    ASSERT_EQ(add("t"), b);
    ASSERT_EQ(add("rt"), c);
    const auto next = [&](int i) { return period[static_cast<size_t>(i) % period.size()]; };
    predicted(2 * static_cast<int>(period.size()), next);
    EXPECT_EQ(predicted(10 * static_cast<int>(period.size()), next),
              10 * static_cast<int>(period.size()));
  }
}

TEST_F(VariantsTest, ANoisyHistoryIsPredictedMostly) {
  // Every third step differs, and now and then one of another kind comes between (an evaluation).
  const int a = add("r"), b = add("t"), c = add("rt");
  Random dice(5);
  int phase = 0, strays = 0, most_frequent = 0;
  constexpr int kSteps = 300;
  const int right = predicted(kSteps, [&](int) {
    if (dice.chance(0.05)) {
      ++strays;
      return c;
    }
    const bool last = phase++ % 3 == 2;
    most_frequent += !last;
    return last ? b : a;
  });
  EXPECT_GT(strays, 5);
  EXPECT_GT(right, most_frequent + 20) << "better than always expecting the same";
  EXPECT_GT(right, kSteps * 3 / 4);
}

TEST_F(VariantsTest, ALongerMatchOfTheHistoryCountsMore) {
  // After "a b" comes c; after "c b" comes a.
  const int a = add("r"), b = add("t"), c = add("rt");
  for (int id : {a, b, c, b, a, b}) set_.noteStep(id);
  EXPECT_EQ(set_.predict(), c);
  set_ = VariantSet();
  add("r"), add("t"), add("rt");
  for (int id : {a, b, c, b, a, b, c, b}) set_.noteStep(id);
  EXPECT_EQ(set_.predict(), a);
}

TEST_F(VariantsTest, WithoutAMatchAPlannedVariantIsPreferred) {
  const int a = add("r"), b = add("t");
  set_.noteStep(a);
  plan(a);
  set_.noteStep(b);  // never seen before: nothing followed it
  EXPECT_EQ(set_.predict(), a);
  plan(b);
  EXPECT_EQ(set_.predict(), b);
}

TEST_F(VariantsTest, StepsOfNoKnownVariantPredictNothingOfTheirOwn) {
  const int a = add("r");
  set_.noteStep(a);
  set_.noteStep(-1);
  EXPECT_EQ(set_.predict(), -1);
  plan(a);
  EXPECT_EQ(set_.predict(), a);
}

TEST_F(VariantsTest, TheLeastUsedVariantIsDropped) {
  const int first = add(lettersOf(1)), second = add(lettersOf(2));
  set_.noteStep(second);
  set_.noteStep(first);
  int number = 3;
  while (set_.size() < VariantSet::kMaxVariants) set_.noteStep(add(lettersOf(number++)));
  set_.noteStep(first);
  const int newest = add(lettersOf(number));
  EXPECT_EQ(set_.size(), VariantSet::kMaxVariants);
  EXPECT_EQ(set_.find(second), nullptr);
  EXPECT_NE(set_.find(first), nullptr);
  EXPECT_NE(set_.find(newest), nullptr);
  for (int i = 0; i < 3; ++i) set_.noteStep(second);  // its number is still in the history
  EXPECT_EQ(set_.predict(), -1);
  set_.setPlan(second, nullptr);  // dropped while its plan was being made
  set_.setUnplannable(second);
}

TEST_F(VariantsTest, ContinuationsStartAlikeAndGoOnFitting) {
  const int a = add("rrt"), b = add("rtt"), c = add("rtr"), d = add("r");
  for (int id : {a, b, d}) plan(id);
  const Recording& from = *set_.find(a)->recording;
  const auto any = [](const CompiledPlan&) { return true; };
  const auto none = [](const CompiledPlan&) { return false; };
  EXPECT_EQ(set_.findContinuation(from, 1, a, any), b);
  EXPECT_EQ(set_.findContinuation(from, 1, a, none), -1);
  EXPECT_EQ(set_.findContinuation(from, 2, a, any), -1) << "they part at op 1";
  EXPECT_EQ(set_.findContinuation(from, 1, b, any), a) << "any but the one that is followed";
  plan(c);
  EXPECT_EQ(set_.findContinuation(from, 1, a,
                                  [&](const CompiledPlan& p) {
                                    return &p.recording() == set_.find(c)->recording.get();
                                  }),
            c);
}

TEST_F(VariantsTest, PlansThatStartAlikeRecordForOneAnother) {
  const int a = add("rrt"), b = add("rtt"), c = add("ttt");
  plan(a, /*records=*/true);
  plan(b);
  plan(c);
  EXPECT_TRUE(set_.find(b)->plan->hot(0).record);
  EXPECT_FALSE(set_.find(b)->plan->hot(1).record);
  EXPECT_FALSE(set_.find(c)->plan->hot(0).record);
  const int d = add("rtr");
  plan(d);
  EXPECT_TRUE(set_.find(d)->plan->hot(0).record);
  set_.find(c)->plan->recordAlso(1);
  const int e = add("ttr");
  plan(e, /*records=*/true);
  EXPECT_TRUE(set_.find(e)->plan->hot(1).record);
  EXPECT_TRUE(set_.find(c)->plan->hot(0).record);
}

}  // namespace
}  // namespace poet::testing
