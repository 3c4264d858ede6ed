// Budgets rounded down to sums of whole sizes (planner/attainable_bytes.h).
#include "planner/attainable_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "planner/program.h"
#include "support/property_cases.h"

namespace poet::planner {
namespace {

MemoryItem item(int first, int last, int64_t bytes) {
  return {.first = first, .last = last, .column = 0, .bytes = bytes};
}

int64_t attainable(const std::vector<MemoryItem>& items, int64_t fixed, int64_t budget) {
  return attainableBytes(items, std::vector<int64_t>{fixed}, budget).front();
}

TEST(AttainableBytes, AreWholeSizesAboveWhatIsFixed) {
  const std::vector<MemoryItem> items = {item(0, 0, 400), item(0, 0, 400), item(0, 0, 800)};
  EXPECT_EQ(attainable(items, 0, 1000), 800);
  EXPECT_EQ(attainable(items, 150, 1000), 950);
  EXPECT_EQ(attainable(items, 200, 1000), 1000);
}

TEST(AttainableBytes, LeaveRoomForSmallOnes) {
  const std::vector<MemoryItem> items = {item(0, 0, 400), item(0, 0, 800), item(0, 0, 7)};
  EXPECT_EQ(attainable(items, 0, 1000), 807);
  EXPECT_EQ(attainable(items, 0, 805), 805);
}

TEST(AttainableBytes, CountWhatIsAliveAtTheStepAlone) {
  const std::vector<MemoryItem> items = {item(0, 2, 400), item(0, 0, 90), item(2, 2, 30)};
  const std::vector<int64_t> fixed = {0, 0, 0};
  EXPECT_EQ(attainableBytes(items, fixed, 500), (std::vector<int64_t>{490, 400, 430}));
}

TEST(AttainableBytes, AreTheBudgetWhereItIsExceededAlready) {
  EXPECT_EQ(attainable({item(0, 0, 400)}, 1001, 1000), 1000);
  EXPECT_EQ(attainable({}, 0, 1000), 1000);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(attainable({item(0, 0, 400)}, Stage::kNoMemoryRow, most), most);
}

// Whatever set of items is in memory: it exceeds the rounded budget only if it exceeds the budget.
TEST(AttainableBytes, HoldForEverySet) {
  int rounded = 0;
  for (int seed = 0; seed < poet::testing::propertyCases(400); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(static_cast<uint64_t>(seed));
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    const int64_t unit = draw(1, 40);
    std::vector<MemoryItem> items;
    const int64_t count = draw(1, 10);
    int64_t all = 0;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bytes = draw(0, 3) == 0 ? draw(0, 9) : unit * draw(1, 6);
      items.push_back(item(0, 0, bytes));
      all += bytes;
    }
    const int64_t fixed = draw(0, 30);
    const int64_t budget = draw(1, fixed + all + 5);
    const int64_t most = attainable(items, fixed, budget);
    ASSERT_LE(most, budget);
    rounded += most < budget ? 1 : 0;
    for (uint32_t set = 0; set < (1U << items.size()); ++set) {
      int64_t bytes = fixed;
      for (size_t i = 0; i < items.size(); ++i) {
        if ((set >> i & 1U) != 0) bytes += items[i].bytes;
      }
      if (bytes > budget) continue;
      EXPECT_LE(bytes, most);
    }
  }
  EXPECT_GT(rounded, poet::testing::propertyCases(400) / 10);
}

}  // namespace
}  // namespace poet::planner
