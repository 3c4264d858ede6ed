#include "trace/living_storages.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "trace/allocator_tap.h"

namespace poet {
namespace {

using Numbers = std::vector<int32_t>;

at::Tensor block(int64_t bytes) { return at::empty({bytes}, at::kByte); }

class LivingStoragesTest : public ::testing::Test {
 protected:
  void add(int32_t number, const at::Tensor& t) {
    living_.add(number, t.storage().getWeakStorageImpl());
  }
  Numbers takeDead(bool all = false) {
    log_.take(freed_);
    return living_.takeDead(freed_, all);
  }

  at::Tensor older_ = block(5000);  // from before the tap
  const AllocatorTap::Guard tap_;
  AllocatorTap::FreedLog log_;
  std::vector<const void*> freed_;
  LivingStorages living_;
};

TEST_F(LivingStoragesTest, TheAllocatorTellsOfThoseThatItMade) {
  at::Tensor a = block(4000);
  at::Tensor large = block(1 << 20);
  add(0, a);
  add(1, older_);
  add(2, large);
  EXPECT_EQ(takeDead(), Numbers());
  large.reset();
  older_.reset();
  EXPECT_EQ(takeDead(), (Numbers{1, 2}));
  EXPECT_EQ(living_.numbers(), Numbers{0});
  EXPECT_TRUE(living_.at(1).expired());
  a.reset();
  EXPECT_EQ(takeDead(), Numbers{0});
  EXPECT_EQ(takeDead(true), Numbers());
}

TEST_F(LivingStoragesTest, OnOtherThreadsAndHiddenToo) {
  at::Tensor a = block(4000);
  at::Tensor b = block(4000);
  add(0, a);
  add(1, b);
  std::thread([&] { a.reset(); }).join();
  {
    const AllocatorTap::HiddenGuard hidden;
    b.reset();
  }
  EXPECT_EQ(takeDead(), (Numbers{0, 1}));
}

TEST_F(LivingStoragesTest, WhatOnlyLostItsMemoryLivesOn) {
  at::Tensor a = block(4000);
  add(0, a);
  a.storage().unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  EXPECT_EQ(takeDead(), Numbers());
  EXPECT_EQ(takeDead(), Numbers());  // it is away
  a.storage().unsafeGetStorageImpl()->set_data_ptr(c10::GetCPUAllocator()->allocate(4000));
  EXPECT_EQ(takeDead(), Numbers());
  a.reset();
  EXPECT_EQ(takeDead(), Numbers{0});
}

TEST_F(LivingStoragesTest, WhatDiesWhileItIsAway) {
  at::Tensor a = block(4000);
  add(0, a);
  a.storage().unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  EXPECT_EQ(takeDead(), Numbers());
  a.reset();
  EXPECT_EQ(takeDead(), Numbers{0});
}

TEST_F(LivingStoragesTest, ForeignAndEmptyMemoryIsLookedAt) {
  std::array<char, 64> own{};
  at::Tensor foreign = at::from_blob(own.data(), {64}, at::kByte);
  at::Tensor empty = block(0);
  add(0, foreign);
  add(1, empty);
  EXPECT_EQ(takeDead(), Numbers());
  foreign.reset();
  EXPECT_EQ(takeDead(), Numbers{0});
  empty.reset();
  EXPECT_EQ(takeDead(), Numbers{1});
}

TEST_F(LivingStoragesTest, MemoryThatIsTakenOutIsFoundInTime) {
  at::Tensor a = block(4000);
  add(0, a);
  const c10::DataPtr kept = a.storage().unsafeGetStorageImpl()->set_data_ptr(
      c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU)));
  a.reset();
  int rounds = 1;
  while (takeDead().empty()) {
    ASSERT_LT(rounds, LivingStorages::kFullRound);
    ++rounds;
  }
  EXPECT_EQ(living_.numbers(), Numbers());
}

TEST_F(LivingStoragesTest, ABlockThatComesAgainBeforeAnybodyAsks) {
  at::Tensor a = block(4000);
  add(0, a);
  c10::StorageImpl& storage = *a.storage().unsafeGetStorageImpl();
  c10::DataPtr moved = storage.set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::kCPU)));
  a.reset();
  at::Tensor b = block(0);
  b.storage().unsafeGetStorageImpl()->set_data_ptr(std::move(moved));  // the same block
  add(1, b);
  EXPECT_EQ(takeDead(), Numbers{0});
  b.reset();
  EXPECT_EQ(takeDead(), Numbers{1});
}

TEST_F(LivingStoragesTest, WhatIsDroppedIsNotToldOf) {
  std::array<char, 64> own{};
  at::Tensor foreign = at::from_blob(own.data(), {64}, at::kByte);
  at::Tensor a = block(4000);
  add(0, foreign);
  add(1, a);
  living_.drop(0);
  living_.drop(1);
  living_.drop(7);  // never was there
  foreign.reset();
  a.reset();
  EXPECT_EQ(takeDead(true), Numbers());
}

TEST(FreedLogTest, AWatchedBlockChangesNoCount) {
  at::Tensor older = block(5000);
  const AllocatorTap::Guard tap;
  const int64_t live = AllocatorTap::liveBytes();
  const int64_t in_use = StepArena::bytesInUse();
  c10::StorageImpl& storage = *older.storage().unsafeGetStorageImpl();
  EXPECT_EQ(AllocatorTap::FreedLog::watch(storage), storage.data());
  EXPECT_TRUE(AllocatorTap::mayRelease(storage));
  AllocatorTap::FreedLog log;
  AllocatorTap::FreedLog other;
  older.reset();
  EXPECT_EQ(AllocatorTap::liveBytes(), live);
  EXPECT_EQ(StepArena::bytesInUse(), in_use);
  std::vector<const void*> freed;
  log.take(freed);
  EXPECT_EQ(freed.size(), 1U);
  log.take(freed);
  EXPECT_EQ(freed.size(), 0U);
  other.take(freed);
  EXPECT_EQ(freed.size(), 1U);
}

TEST(FreedLogTest, AWatchedBlockMayBeEnrolledLater) {
  const at::Tensor older = block(5000);
  const AllocatorTap::Guard tap;
  const int64_t live = AllocatorTap::liveBytes();
  c10::StorageImpl& storage = *older.storage().unsafeGetStorageImpl();
  AllocatorTap::FreedLog::watch(storage);
  AllocatorTap::enroll(storage);
  EXPECT_EQ(AllocatorTap::liveBytes(), live + 5000);
}

}  // namespace
}  // namespace poet
