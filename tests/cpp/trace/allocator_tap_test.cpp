#include "trace/allocator_tap.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

namespace poet {
namespace {

at::Tensor block(int64_t bytes) { return at::empty({bytes}, at::kByte); }

TEST(AllocatorTapTest, CountsWhatIsAllocatedUnderIt) {
  const AllocatorTap::Guard tap;
  const int64_t before = AllocatorTap::resetHighWater();
  at::Tensor a = block(5000);
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 5000);
  {
    const at::Tensor b = block(300);
    EXPECT_EQ(AllocatorTap::liveBytes(), before + 5300);
  }
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 5000);
  EXPECT_EQ(AllocatorTap::highWaterBytes(), before + 5300);
  EXPECT_EQ(AllocatorTap::resetHighWater(), before + 5000);
  EXPECT_EQ(AllocatorTap::highWaterBytes(), before + 5000);
  a.reset();
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, BlocksFromBeforeAndAfterAreNotCounted) {
  at::Tensor older = block(4000);
  const int64_t before = AllocatorTap::liveBytes();
  {
    const AllocatorTap::Guard tap;
    older.reset();
    EXPECT_EQ(AllocatorTap::liveBytes(), before);
  }
  const at::Tensor later = block(4000);
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, ABlockThatOutlivesTheTapIsStillTakenOff) {
  const int64_t before = AllocatorTap::liveBytes();
  at::Tensor a;
  {
    const AllocatorTap::Guard tap;
    a = block(4000);
  }
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 4000);
  a.reset();
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, AnEnrolledBlockCountsAndSoDoesWhatTakesItsPlace) {
  const at::Tensor older = block(4000);
  const AllocatorTap::Guard tap;
  const int64_t before = AllocatorTap::liveBytes();
  AllocatorTap::enroll(*older.storage().unsafeGetStorageImpl());
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 4000);
  older.resize_({9000});
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 9000);
}

TEST(AllocatorTapTest, GuardsNest) {
  const int64_t before = AllocatorTap::liveBytes();
  std::optional<AllocatorTap::Guard> outer(std::in_place);
  { const AllocatorTap::Guard inner; }
  const at::Tensor a = block(100);
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 100);
  outer.reset();
  const at::Tensor b = block(100);
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 100);
}

TEST(AllocatorTapTest, RawAllocationsWorkUnderIt) {
  const AllocatorTap::Guard tap;
  const int64_t before = AllocatorTap::liveBytes();
  c10::Allocator* allocator = c10::GetAllocator(at::kCPU);
  void* raw = allocator->raw_allocate(128);
  EXPECT_EQ(AllocatorTap::liveBytes(), before + 128);
  allocator->raw_deallocate(raw);
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, NothingIsAllocatedForNothing) {
  const AllocatorTap::Guard tap;
  const int64_t before = AllocatorTap::liveBytes();
  const at::Tensor empty = at::empty({0});
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, CountsOnEveryThread) {
  const int64_t before = AllocatorTap::liveBytes();
  {
    const AllocatorTap::Guard tap;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([] {
        const AllocatorTap::Guard own;
        std::vector<at::Tensor> kept;
        for (int i = 0; i < 500; ++i) {
          kept.push_back(block(64 + i));
          if (i % 3 == 0) kept.clear();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  EXPECT_EQ(AllocatorTap::liveBytes(), before);
}

TEST(AllocatorTapTest, OwnsWhatPyTorchsAllocatorMadeTappedOrNot) {
  const auto owns = [](const at::Tensor& t) {
    return AllocatorTap::mayRelease(*t.storage().unsafeGetStorageImpl());
  };
  const at::Tensor untapped = block(64);
  EXPECT_TRUE(owns(untapped));
  {
    const AllocatorTap::Guard tap;
    EXPECT_TRUE(owns(block(64)));
    EXPECT_TRUE(owns(untapped));
  }
  std::vector<float> mine(16);
  EXPECT_FALSE(owns(at::from_blob(mine.data(), {16})));
  EXPECT_FALSE(owns(at::from_blob(mine.data(), {16}, [](void*) {})));
}

}  // namespace
}  // namespace poet
