#include "runtime/op_records.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include "support/plan_builder.h"
#include "support/recording.h"
#include "support/torch_step.h"

namespace poet::testing {
namespace {

class OpRecordTest : public ::testing::Test {
 protected:
  OpRecordTest() : x_((at::set_num_threads(1), at::manual_seed(2), at::randn({16, 16}))) {}

  // Runs the step twice: recorded first, then captured op by op.
  void capture(const std::function<void()>& step) {
    recording_ = recordStep(step);
    plan_ = std::make_unique<CompiledPlan>(
        recording_, std::make_shared<const Schedule>(PlanBuilder(*recording_->graph).build()),
        hostProfile());
    records_.clear();
    records_.resize(recording_->ops.size());
    recordStep(step, {},
               [&](size_t op, const c10::IValue* args, size_t count, c10::DispatchKeySet below) {
                 const bool is_tensor = args[0].isTensor();
                 const auto uses = [&] { return is_tensor ? args[0].toTensor().use_count() : 0; };
                 const auto storage_uses = [&] {
                   return is_tensor ? args[0].toTensor().storage().use_count() : 0;
                 };
                 const size_t before = uses(), storage_before = storage_uses();
                 const auto held = [this](ValueId v) { return plan_->isHeldByRecords(v); };
                 records_[op].capture(recording_->ops[op], held,
                                      recording_->graph->ops()[op].random, args, count, below);
                 tensor_uses_grew_.push_back(uses() != before);
                 storage_uses_grew_.push_back(storage_uses() != storage_before);
               });
  }

  at::Tensor x_;
  std::shared_ptr<const Recording> recording_;
  std::unique_ptr<CompiledPlan> plan_;
  std::vector<OpRecord> records_;
  std::vector<bool> tensor_uses_grew_, storage_uses_grew_;
};

TEST_F(OpRecordTest, HoldsWhatComesFromOutsideAndNothingOfTheStep) {
  capture([&] {
    const at::Tensor a = x_.mul(x_);
    a.tanh();
  });
  ASSERT_EQ(records_.size(), 2u);
  EXPECT_TRUE(storage_uses_grew_[0]);
  ASSERT_EQ(records_[0].held().size(), 2u);
  for (const OpRecord::Held& held : records_[0].held())
    EXPECT_EQ(held.storage.get(), x_.storage().unsafeGetStorageImpl());
  EXPECT_FALSE(storage_uses_grew_[1]);
  EXPECT_TRUE(records_[1].held().empty());
  for (const size_t op : {0, 1}) {
    EXPECT_FALSE(records_[op].args()[0].toTensor().defined());
    EXPECT_FALSE(tensor_uses_grew_[op]) << "autograd decides by use counts what it may steal";
  }
}

TEST_F(OpRecordTest, HoldsNothingOfAListEitherAndLeavesTheCallersListAlone) {
  at::Tensor joined;
  capture([&] {
    const at::Tensor a = x_.mul(2), b = x_.mul(3);
    joined = at::cat({a, x_, b}, 0);
  });
  const OpRecord& cat = records_.back();
  const auto list = cat.args()[0].toList();
  ASSERT_EQ(list.size(), 3u);
  EXPECT_FALSE(list.get(0).toTensor().defined());
  EXPECT_FALSE(list.get(1).toTensor().defined());
  EXPECT_FALSE(list.get(2).toTensor().defined());
  ASSERT_EQ(cat.held().size(), 1u);
  EXPECT_EQ(cat.held()[0].slot, 1u) << "the slot";
  EXPECT_EQ(cat.held()[0].storage.get(), x_.storage().unsafeGetStorageImpl());
  EXPECT_TRUE(sameBits(joined, at::cat({x_.mul(2), x_, x_.mul(3)}, 0)));
}

TEST_F(OpRecordTest, KeepsTheGeneratorOfRandomOpsOnly) {
  at::Generator own = at::detail::createCPUGenerator(5);
  capture([&] {
    x_.neg();
    x_.bernoulli(0.5);
    x_.bernoulli(0.5, own);
  });
  EXPECT_EQ(records_[0].generatorState(), nullptr);
  ASSERT_NE(records_[1].generatorState(), nullptr);
  ASSERT_NE(records_[2].generatorState(), nullptr);
  EXPECT_EQ(generatorOf(records_[1].args()),
            at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator()));
  EXPECT_EQ(generatorOf(records_[2].args()), at::check_generator<at::CPUGeneratorImpl>(own));
}

TEST_F(OpRecordTest, AClearedRecordHoldsNothing) {
  capture([&] { x_.bernoulli(0.5); });
  EXPECT_TRUE(records_[0].isSet());
  const size_t before = x_.storage().use_count();
  records_[0].clear();
  EXPECT_FALSE(records_[0].isSet());
  EXPECT_TRUE(records_[0].args().empty());
  EXPECT_EQ(records_[0].generatorState(), nullptr);
  EXPECT_TRUE(records_[0].held().empty());
  EXPECT_LT(x_.storage().use_count(), before);
}

TEST_F(OpRecordTest, AGeneratorStateIsAllThereIs) {
  at::Generator generator = at::detail::createCPUGenerator(3);
  auto& impl = *at::check_generator<at::CPUGeneratorImpl>(generator);
  at::empty({3}).normal_(0, 1, generator);  // leaves a normal sample for later
  const GeneratorState then = GeneratorState::of(impl);
  const auto draw = [&] {
    return at::cat({at::empty({3}).normal_(0, 1, generator), at::rand({5}, generator)});
  };
  const at::Tensor first = draw();
  const at::Tensor second = draw();
  EXPECT_FALSE(sameBits(first, second));
  {
    const GeneratorGuard guard(impl, then);
    EXPECT_TRUE(sameBits(draw(), first));
  }
  const at::Tensor third = draw();  // as if nothing had been drawn in between
  then.putInto(impl);
  draw();
  draw();
  EXPECT_TRUE(sameBits(draw(), third));
}

TEST_F(OpRecordTest, PlacingIntoAListCopiesItOnce) {
  c10::List<at::Tensor> list({x_, x_});
  torch::jit::Stack stack{list, x_};
  int copied = -1;
  Slot slot;
  slot.arg = 0;
  slot.element = 0;
  const at::Tensor other = at::zeros({1});
  placeTensor(stack, slot, other, copied);
  EXPECT_TRUE(list.get(0).is_same(x_)) << "the caller's list";
  const auto after_first = stack[0].toList();
  EXPECT_TRUE(after_first.get(0).toTensor().is_same(other));
  slot.element = 1;
  placeTensor(stack, slot, other, copied);
  EXPECT_TRUE(stack[0].toList().is(after_first));
  EXPECT_TRUE(stack[0].toList().get(1).toTensor().is_same(other));
  slot.arg = 1;
  slot.element = -1;
  placeTensor(stack, slot, other, copied);
  EXPECT_TRUE(stack[1].toTensor().is_same(other));
}

TEST_F(OpRecordTest, RecordsAreMadeWhereSomethingIsCapturedAndStay) {
  capture([&] {
    x_.neg();
    x_.mul(x_);
    x_.tanh();
  });
  OpRecords all;
  all.resize(3);
  const int64_t before = all.ownBytes();
  const auto captureAll = [&] {
    recordStep(
        [&] {
          x_.neg();
          x_.mul(x_);
          x_.tanh();
        },
        {},
        [&](size_t op, const c10::IValue* args, size_t count, c10::DispatchKeySet below) {
          if (op == 0) return;
          const auto held = [this](ValueId v) { return plan_->isHeldByRecords(v); };
          all.forCapture(op).capture(recording_->ops[op], held, false, args, count, below);
        });
  };
  captureAll();
  EXPECT_FALSE(all[0].isSet());
  EXPECT_TRUE(all[0].held().empty());
  EXPECT_TRUE(all[1].isSet());
  EXPECT_EQ(all[1].held().size(), 2u);
  EXPECT_TRUE(all[2].isSet());
  EXPECT_GT(all.ownBytes(), before + 2 * static_cast<int64_t>(sizeof(OpRecord)));
  const OpRecord* const made = &all[1];
  all.clear();
  EXPECT_FALSE(all[1].isSet() || all[2].isSet());
  captureAll();
  EXPECT_EQ(&all[1], made) << "nothing is allocated for another step's";
  EXPECT_TRUE(all[1].isSet());
  all.resize(2);
  EXPECT_EQ(all.size(), 2u);
  all.clear();
  EXPECT_FALSE(all[1].isSet());
}

}  // namespace
}  // namespace poet::testing
