#include "trace/allocator_tap.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
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

// Whatever takes it and gives it back, with a tap or without: what malloc adds to each goes as
// well.
TEST(StepArenaTest, KnowsTheBytesOfSmallBlocksAndOfLargeOnes) {
  StepArena::useForGood();
  const int64_t before = StepArena::bytesInUse();
  for (const int64_t bytes : {100, 16 * 1024, 200 * 1024}) {
    const at::Tensor a = block(bytes);
    EXPECT_GE(StepArena::bytesInUse(), before + bytes);
    at::Tensor tapped, enrolled = block(bytes);
    {
      const AllocatorTap::Guard tap;
      tapped = block(bytes);
      AllocatorTap::enroll(*enrolled.storage().unsafeGetStorageImpl());
    }
    EXPECT_GE(StepArena::bytesInUse(), before + 3 * bytes);
    EXPECT_LE(StepArena::bytesInUse(), before + 3 * (bytes + 8192));
    enrolled.resize_({2 * bytes});
    EXPECT_GE(StepArena::bytesInUse(), before + 4 * bytes);
  }
  EXPECT_EQ(StepArena::bytesInUse(), before);
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

class MostLive : public RoomLimit {
 public:
  explicit MostLive(int64_t most) : most_(most) {}
  void admit(int64_t bytes, int64_t live) override {
    if (live + bytes > most_) throw std::runtime_error("too much");
  }

 private:
  int64_t most_;
};

TEST(AllocatorTapTest, ALimitRefusesWhatWouldExceedItAndTakesNothing) {
  const AllocatorTap::Guard tap;
  const int64_t before = AllocatorTap::liveBytes();
  MostLive most(before + 1000);
  {
    const AllocatorTap::LimitGuard limit(most);
    at::Tensor a = block(600);
    EXPECT_ANY_THROW(block(401));
    EXPECT_EQ(AllocatorTap::liveBytes(), before + 600);
    const at::Tensor b = block(400);
    a.reset();
    EXPECT_NO_THROW(block(600));
    EXPECT_ANY_THROW(block(601));
  }
  EXPECT_NO_THROW(block(5000));
}

TEST(AllocatorTapTest, ALimitIsOfItsThreadAndOthersBlocksDoNotCount) {
  const AllocatorTap::Guard tap;
  MostLive most(AllocatorTap::liveBytes() + 1000);
  std::optional<AllocatorTap::LimitGuard> limit(std::in_place, most);
  at::Tensor theirs;
  std::thread([&] { theirs = block(5000); }).join();
  EXPECT_NO_THROW(block(1000));
  EXPECT_ANY_THROW(block(1001));
  theirs.reset();  // given back by another thread than that which took it
  EXPECT_NO_THROW(block(1000));
  EXPECT_ANY_THROW(block(1001));
  // What is there when a limit comes into force counts, whoever took it.
  std::thread([&] { theirs = block(300); }).join();
  limit.reset();
  limit.emplace(most);
  EXPECT_NO_THROW(block(700));
  EXPECT_ANY_THROW(block(701));
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
