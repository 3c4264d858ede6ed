// Whether the C library's heap has grown.
#include "runtime/heap_watch.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <memory>
#include <vector>

namespace poet {
namespace {

constexpr int64_t kMuch = 1000000;

// Other threads' allocators and sanitizers count elsewhere.
bool mallocTells() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const auto in_use = [] {
    const struct mallinfo2 now = mallinfo2();
    return static_cast<int64_t>(now.uordblks + now.hblkhd);
  };
  const int64_t before = in_use();
  const std::vector<char> some(100000);
  return in_use() - before >= 100000;
#else
  return false;
#endif
}

class HeapWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!mallocTells()) GTEST_SKIP() << "this malloc does not tell what is in use";
    watch_.noteCount(/*more=*/false);
  }

  bool hasGrownBy(int64_t bytes) { return watch_.hasGrownBy(bytes); }

  HeapWatch watch_{0};
};

TEST_F(HeapWatchTest, IsToldOfWhatHasComeSinceTheLastCount) {
  EXPECT_FALSE(hasGrownBy(kMuch));
  const std::vector<char> some(2 * kMuch);
  EXPECT_TRUE(hasGrownBy(kMuch));
  watch_.noteCount(/*more=*/true);
  EXPECT_FALSE(hasGrownBy(kMuch));
  const std::vector<char> again(2 * kMuch);
  EXPECT_TRUE(hasGrownBy(kMuch));
}

TEST_F(HeapWatchTest, WantsTwiceAsMuchWhereItWasForNothing) {
  std::vector<std::unique_ptr<std::vector<char>>> all;
  const auto grow = [&](int64_t bytes) {
    all.push_back(std::make_unique<std::vector<char>>(static_cast<size_t>(bytes)));
  };
  grow(2 * kMuch);
  EXPECT_TRUE(hasGrownBy(kMuch));
  watch_.noteCount(/*more=*/false);  // no tensors were found
  grow(2 * kMuch);
  EXPECT_FALSE(hasGrownBy(kMuch));
  grow(2 * kMuch);
  EXPECT_TRUE(hasGrownBy(kMuch));
  watch_.noteCount(/*more=*/true);  // this time there were: half of that is enough
  grow(2 * kMuch + kMuch / 2);
  EXPECT_TRUE(hasGrownBy(kMuch));
}

TEST_F(HeapWatchTest, IsNotAskedAtOnceAgain) {
  HeapWatch watch(1000000);
  watch.noteCount(/*more=*/false);
  const std::vector<char> some(2 * kMuch);
  EXPECT_FALSE(watch.hasGrownBy(kMuch)) << "for some seconds nobody knows";
}

TEST_F(HeapWatchTest, WhatCameAndWentIsNoGrowth) {
  { const std::vector<char> some(2 * kMuch); }
  EXPECT_FALSE(hasGrownBy(kMuch));
}

}  // namespace
}  // namespace poet
