#include "runtime/residency.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/version.h>

#include "graph/error.h"
#include "support/graph_builder.h"
#include "trace/allocator_tap.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResidencyTest : public ::testing::Test {
 protected:
  ResidencyTest() {
    GraphBuilder g;
    const ValueId in = g.input(4);
    for (int i = 0; i < 4; ++i) g.op("op").reads({in}).makes(400);
    residency_.begin(g.build());
    a_ = at::arange(100, at::kFloat);
    b_ = at::arange(100, at::kFloat).mul(2);
    EXPECT_TRUE(residency_.bind(kA, a_));
    EXPECT_TRUE(residency_.bind(kB, b_));
  }

  static c10::StorageImpl& storageOf(const at::Tensor& t) {
    return *t.storage().unsafeGetStorageImpl();
  }
  static std::string readError(const at::Tensor& t) {
    try {
      t.const_data_ptr();
      return "no error";
    } catch (const c10::Error& e) {
      return e.what_without_backtrace();
    }
  }

  static constexpr ValueId kA{1}, kB{2}, kC{3};
  Residency residency_;
  at::Tensor a_, b_;
};

TEST_F(ResidencyTest, EvictedBytesAreGivenBackAndTheTensorKeepsItsShape) {
  const AllocatorTap::Guard tap;
  const at::Tensor c = at::zeros({1000});
  ASSERT_TRUE(residency_.bind(kC, c));
  const int64_t before = AllocatorTap::liveBytes();
  EXPECT_TRUE(residency_.evict(kC));
  EXPECT_EQ(AllocatorTap::liveBytes(), before - 4000);
  EXPECT_FALSE(residency_.isAvailable(kC));
  EXPECT_TRUE(residency_[kC].away);
  EXPECT_EQ(c.sizes(), at::IntArrayRef({1000}));
  EXPECT_EQ(storageOf(c).nbytes(), 4000u);
}

TEST_F(ResidencyTest, ARawReadOfAnEvictedTensorSaysWhatToDo) {
  const at::Tensor view = a_.view({10, 10}).t();
  ASSERT_TRUE(residency_.evict(kA));
  for (const at::Tensor& t : {a_, view}) {
    EXPECT_THAT(readError(t), HasSubstr("poet: this tensor's memory has been released"));
    EXPECT_THAT(readError(t), HasSubstr("poet.keep(tensor)"));
    EXPECT_THAT(readError(t), HasSubstr("detach(), or any operator that reads the tensor"));
  }
  EXPECT_THROW(a_.mutable_data_ptr(), c10::Error);
  EXPECT_EQ(readError(b_), "no error");
}

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR > 12

int& materialized() {
  static int times = 0;
  return times;
}
void countOnly(c10::StorageImpl*) { ++materialized(); }

// What PyTorch has to fill a storage with when it is first written to would find no memory there.
TEST_F(ResidencyTest, TheMessageWinsOverAMaterializer) {
  materialized() = 0;
  storageOf(a_).set_materializer(&countOnly);
  ASSERT_TRUE(residency_.evict(kA));
  ASSERT_TRUE(residency_.evict(kB));
  storageOf(b_).set_materializer(&countOnly);
  for (const at::Tensor& t : {a_, b_}) {
    EXPECT_THAT(readError(t), HasSubstr("poet.keep(tensor)"));
    EXPECT_THROW(t.mutable_data_ptr(), c10::Error);
    EXPECT_THROW(storageOf(t).mutable_data_ptr(), c10::Error);
  }
  residency_.install(kA, storageOf(at::arange(100, at::kFloat)), false);
  EXPECT_EQ(readError(a_), "no error");
  EXPECT_EQ(materialized(), 0);
  a_.mutable_data_ptr();
  EXPECT_EQ(materialized(), 1) << "it is PyTorch's own again";
}

#endif

TEST_F(ResidencyTest, InstallPutsDataIntoTheSameStorage) {
  c10::StorageImpl* const before = &storageOf(a_);
  const at::Tensor view = a_.slice(0, 10, 20);
  ASSERT_TRUE(residency_.evict(kA));
  const at::Tensor fresh = at::arange(100, at::kFloat).add(5);
  const void* const data = fresh.const_data_ptr();
  residency_.install(kA, storageOf(fresh), false);
  EXPECT_EQ(&storageOf(a_), before);
  EXPECT_EQ(a_.const_data_ptr(), data) << "moved, not copied";
  EXPECT_EQ(view[3].item<float>(), 18);
  EXPECT_TRUE(residency_.isAvailable(kA));
  EXPECT_FALSE(residency_[kA].away);
  EXPECT_FALSE(residency_[kA].hold);
  EXPECT_EQ(residency_.valueOf(before), kA);
  a_.mutable_data_ptr();
}

TEST_F(ResidencyTest, InstallOfAnotherSizeIsAnInternalError) {
  ASSERT_TRUE(residency_.evict(kA));
  EXPECT_THROW(residency_.install(kA, storageOf(at::zeros({99})), false), Error);
}

TEST_F(ResidencyTest, InstallHoldsADeadValuesNewStorage) {
  c10::StorageImpl* const before = &storageOf(a_);
  ASSERT_TRUE(residency_.evict(kA));
  a_.reset();
  EXPECT_FALSE(residency_.isAvailable(kA));
  at::Tensor fresh = at::arange(100, at::kFloat);
  c10::StorageImpl* const now = &storageOf(fresh);
  residency_.install(kA, *now, false);
  fresh.reset();
  EXPECT_TRUE(residency_.isAvailable(kA));
  EXPECT_EQ(residency_.valueOf(now), kA);
  EXPECT_EQ(residency_.valueOf(before), before == now ? kA : kNoValue);
  residency_[kA].hold.reset();
  EXPECT_FALSE(residency_.isAvailable(kA));
}

TEST_F(ResidencyTest, PinnedValuesStay) {
  residency_[kA].pinned = true;
  EXPECT_FALSE(residency_.evict(kA));
  EXPECT_EQ(readError(a_), "no error");
  EXPECT_TRUE(residency_.isAvailable(kA));
  EXPECT_THAT(residency_.away(), IsEmpty());
}

TEST_F(ResidencyTest, MemoryThatIsNotPyTorchsStays) {
  std::vector<float> memory(100, 7);
  const at::Tensor c = at::from_blob(memory.data(), {100});
  ASSERT_TRUE(residency_.bind(kC, c));
  EXPECT_FALSE(residency_.evict(kC));
  EXPECT_EQ(c.const_data_ptr(), memory.data());
}

TEST_F(ResidencyTest, AStorageIsOneValueOnly) {
  EXPECT_TRUE(residency_.bind(kA, a_.slice(0, 3, 9))) << "a view is the same value";
  EXPECT_FALSE(residency_.bind(kC, a_.view({10, 10})));
  EXPECT_FALSE(residency_[kC].bound);
  EXPECT_EQ(residency_.valueOf(&storageOf(a_)), kA);
  EXPECT_EQ(residency_.valueOf(&storageOf(at::zeros({1}))), kNoValue);
}

TEST_F(ResidencyTest, EvictingADeadValueIsNothingToUndo) {
  a_.reset();
  EXPECT_TRUE(residency_.evict(kA));
  EXPECT_FALSE(residency_[kA].away);
  EXPECT_THAT(residency_.away(), IsEmpty());
}

TEST_F(ResidencyTest, AwayIsInTheOrderOfEvictionWithoutThoseThatAreBack) {
  residency_.evict(kB);
  residency_.evict(kA);
  EXPECT_THAT(residency_.away(), ElementsAre(kB, kA));
  residency_.install(kB, storageOf(at::zeros({100})), false);
  EXPECT_THAT(residency_.away(), ElementsAre(kA));
}

TEST_F(ResidencyTest, ForgettingLetsGoOfDeadValuesOnly) {
  c10::StorageImpl* const address = &storageOf(a_);
  residency_.forgetIfDead(kA);
  EXPECT_EQ(residency_.valueOf(address), kA);
  residency_[kA].hold = residency_[kA].ref.lock();
  a_.reset();
  residency_.forgetIfDead(kA);
  EXPECT_EQ(residency_.valueOf(address), kA) << "it is held";
  residency_[kA].hold.reset();
  residency_.forgetIfDead(kA);
  EXPECT_EQ(residency_.valueOf(address), kNoValue);
  EXPECT_EQ(residency_.weakReferences().size(), residency_.size());
}

TEST_F(ResidencyTest, ADeadStoragesAddressIsNotUsedAgainWhileItIsBound) {
  c10::StorageImpl* const address = &storageOf(a_);
  a_.reset();
  for (int i = 0; i < 100; ++i) EXPECT_NE(&storageOf(at::zeros({100})), address);
}

}  // namespace
}  // namespace poet::testing
