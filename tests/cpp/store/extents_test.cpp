#include "store/extents.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace poet::store {
namespace {

TEST(ExtentTableTest, TakesTheSmallestThatFits) {
  ExtentTable table;
  table.giveBack({0, 100});
  table.giveBack({200, 30});
  table.giveBack({300, 40});
  EXPECT_EQ(table.take(25), 200);
  EXPECT_EQ(table.take(40), 300);
  EXPECT_EQ(table.take(101), std::nullopt);
  EXPECT_EQ(table.take(100), 0);
  EXPECT_EQ(table.freeBytes(), 5);
}

TEST(ExtentTableTest, MergesOnBothSides) {
  ExtentTable table;
  table.giveBack({0, 10});
  table.giveBack({20, 10});
  EXPECT_EQ(table.largestFree(), 10);
  table.giveBack({10, 10});
  EXPECT_EQ(table.largestFree(), 30);
  EXPECT_EQ(table.tail(30), (Extent{0, 30}));
  EXPECT_EQ(table.tail(40), (Extent{40, 0}));
}

TEST(ExtentTableTest, KeepsNumbersAbove32Bits) {
  ExtentTable table;
  const int64_t far = int64_t{5} << 30;
  table.giveBack({far, far});
  EXPECT_EQ(table.take(far), far);
  table.giveBack({far, far});
  EXPECT_EQ(table.freeBytes(), far);
}

// Against a map of every byte.
TEST(ExtentTableTest, NeverGivesAByteTwice) {
  std::mt19937 random(3);
  ExtentTable table;
  constexpr int64_t kBytes = 500;
  table.giveBack({0, kBytes});
  std::vector<bool> used(kBytes);
  std::vector<Extent> taken;
  int64_t used_bytes = 0;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const int64_t bytes = 1 + random() % 60;
      const int64_t largest = table.largestFree();
      const auto offset = table.take(bytes);
      ASSERT_EQ(offset.has_value(), bytes <= largest);
      if (!offset) continue;
      for (int64_t at = *offset; at < *offset + bytes; ++at) {
        ASSERT_FALSE(used[static_cast<size_t>(at)]);
        used[static_cast<size_t>(at)] = true;
      }
      taken.push_back({*offset, bytes});
      used_bytes += bytes;
    } else if (!taken.empty()) {
      std::swap(taken[random() % taken.size()], taken.back());
      const Extent extent = taken.back();
      taken.pop_back();
      for (int64_t at = extent.offset; at < extent.end(); ++at)
        used[static_cast<size_t>(at)] = false;
      table.giveBack(extent);
      used_bytes -= extent.bytes;
    }
    ASSERT_EQ(table.freeBytes(), kBytes - used_bytes);
  }
  for (const Extent& extent : taken) table.giveBack(extent);
  EXPECT_EQ(table.largestFree(), kBytes);
}

}  // namespace
}  // namespace poet::store
