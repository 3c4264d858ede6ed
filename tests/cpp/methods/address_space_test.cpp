// Blocks by address, and the window of neighbours that costs least: against all windows there are.
#include "methods/address_space.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "support/property_cases.h"

namespace poet::testing {
namespace {

using methods::AddressSpace;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using End = AddressSpace::End;
using Fit = AddressSpace::Fit;

std::vector<int> layout(const AddressSpace& space) {
  std::vector<int> owners;
  for (const AddressSpace::Block& block : space.blocks()) owners.push_back(block.owner);
  return owners;
}

constexpr int kFree = AddressSpace::kFree;

TEST(AddressSpace, PlacesFromBothEnds) {
  AddressSpace space(100);
  EXPECT_TRUE(space.allocate(1, 20, End::kLow));
  EXPECT_TRUE(space.allocate(2, 20, End::kHigh));
  EXPECT_TRUE(space.allocate(3, 30, End::kLow));
  EXPECT_THAT(layout(space), ElementsAre(1, 3, kFree, 2));
  EXPECT_EQ(space.freeBytes(), 30);
  EXPECT_FALSE(space.allocate(4, 31, End::kLow));
  EXPECT_TRUE(space.allocate(4, 30, End::kHigh));
  EXPECT_THAT(layout(space), ElementsAre(1, 3, 4, 2));
}

TEST(AddressSpace, TakesTheFirstThatFitsAndMergesWhatIsFree) {
  AddressSpace space(60);
  for (int owner = 0; owner < 6; ++owner) EXPECT_TRUE(space.allocate(owner, 10, End::kLow));
  space.free(1);
  space.free(3);
  space.free(4);
  space.free(4);
  EXPECT_THAT(layout(space), ElementsAre(0, kFree, 2, kFree, 5));
  EXPECT_FALSE(space.allocate(6, 30, End::kLow)) << "30 bytes are free, in two places";
  EXPECT_TRUE(space.allocate(6, 5, End::kLow));
  EXPECT_TRUE(space.allocate(7, 5, End::kHigh));
  EXPECT_THAT(layout(space), ElementsAre(0, 6, kFree, 2, kFree, 7, 5));
  for (const int owner : {0, 2, 5, 6, 7}) space.free(owner);
  EXPECT_THAT(layout(space), ElementsAre(kFree));
  EXPECT_EQ(space.freeBytes(), 60);
}

TEST(AddressSpace, TakesTheSmallestThatFits) {
  AddressSpace space(110);
  const int bytes[] = {30, 10, 20, 10, 20, 10, 10};
  for (int owner = 0; owner < 7; ++owner)
    EXPECT_TRUE(space.allocate(owner, bytes[owner], End::kLow));
  for (const int owner : {0, 2, 4}) space.free(owner);
  EXPECT_TRUE(space.allocate(7, 15, End::kLow, Fit::kBest));
  EXPECT_THAT(layout(space), ElementsAre(kFree, 1, 7, kFree, 3, kFree, 5, 6));
  EXPECT_TRUE(space.allocate(8, 20, End::kHigh, Fit::kBest));
  EXPECT_THAT(layout(space), ElementsAre(kFree, 1, 7, kFree, 3, 8, 5, 6));
  EXPECT_TRUE(space.allocate(9, 21, End::kHigh, Fit::kBest));
  EXPECT_THAT(layout(space), ElementsAre(kFree, 9, 1, 7, kFree, 3, 8, 5, 6));
  EXPECT_FALSE(space.allocate(10, 10, End::kHigh, Fit::kBest));
}

TEST(AddressSpace, FreesAllThatAnOwnerHas) {
  AddressSpace space(40);
  for (const int owner : {0, 1, 2, 1}) EXPECT_TRUE(space.allocate(owner, 10, End::kLow));
  EXPECT_EQ(space.largestFree(), 0);
  space.free(1);
  EXPECT_THAT(layout(space), ElementsAre(0, kFree, 2, kFree));
  EXPECT_EQ(space.freeBytes(), 20);
  EXPECT_EQ(space.largestFree(), 10);
  space.free(2);
  EXPECT_THAT(layout(space), ElementsAre(0, kFree));
  EXPECT_EQ(space.largestFree(), 30);
}

TEST(AddressSpace, HasNoBlockForNoBytes) {
  AddressSpace space(0);
  EXPECT_TRUE(space.allocate(0, 0, End::kLow));
  EXPECT_FALSE(space.allocate(1, 1, End::kLow));
  EXPECT_THAT(space.blocks(), IsEmpty());
  EXPECT_FALSE(AddressSpace(-5).allocate(1, 1, End::kHigh));
}

// Blocks of ten bytes with these costs, 0 for a free one and -1 for one that stays.
std::vector<int> windowOf(const std::vector<double>& costs, int64_t bytes) {
  const int count = static_cast<int>(costs.size());
  AddressSpace space(10 * count);
  for (int owner = 0; owner < count; ++owner) space.allocate(owner, 10, End::kLow);
  for (int owner = 0; owner < count; ++owner) {
    if (costs[static_cast<size_t>(owner)] == 0) space.free(owner);
  }
  return space.cheapestWindow(bytes, [&](int v) { return costs[static_cast<size_t>(v)]; });
}

TEST(AddressSpace, FindsTheCheapestNeighbours) {
  EXPECT_THAT(windowOf({1, 5, 2, 2, 9}, 20), ElementsAre(2, 3));
  EXPECT_THAT(windowOf({1, 5, 2, 2, 9}, 10), ElementsAre(0));
  // What is free between them counts.
  EXPECT_THAT(windowOf({3, 0, 3, 5, 6}, 30), ElementsAre(0, 2));
  EXPECT_THAT(windowOf({3, 0, 4, 5, 6}, 20), ElementsAre(0));
  // No window reaches over what stays.
  EXPECT_THAT(windowOf({1, -1, 1, 8, 9}, 20), ElementsAre(2, 3));
  EXPECT_THAT(windowOf({1, -1, 1, -1, 1}, 20), IsEmpty());
  EXPECT_THAT(windowOf({1, 1}, 21), IsEmpty());
}

class RandomLayout {
 public:
  explicit RandomLayout(uint64_t seed) : random_(seed), space_(draw(0, 80)) {
    const int rounds = draw(1, 30);
    for (int owner = 0; owner < rounds; ++owner) {
      const int64_t bytes = draw(0, 12);
      const int64_t before = space_.freeBytes();
      const bool placed = space_.allocate(owner, bytes, draw(0, 1) ? End::kLow : End::kHigh);
      EXPECT_EQ(space_.freeBytes(), placed ? before - bytes : before);
      if (placed && bytes > 0) bytes_[owner] = bytes;
      costs_.push_back(draw(0, 4) == 0 ? -1 : 0.1 * draw(0, 50));
      if (draw(0, 2) == 0) {
        const int gone = draw(0, owner);
        space_.free(gone);
        bytes_.erase(gone);
      }
      checkBlocks();
    }
  }

  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  const AddressSpace& space() const { return space_; }
  double costOf(int v) const { return costs_[static_cast<size_t>(v)]; }

  // Of all windows that suffice; infinity where none does.
  double leastCost(int64_t bytes) const {
    const auto& blocks = space_.blocks();
    double least = std::numeric_limits<double>::infinity();
    for (size_t first = 0; first < blocks.size(); ++first) {
      double cost = 0;
      int64_t held = 0;
      for (size_t i = first; i < blocks.size(); ++i) {
        const int owner = blocks[i].owner;
        if (owner != kFree && costOf(owner) < 0) break;
        if (owner != kFree) cost += costOf(owner);
        held += blocks[i].bytes;
        if (held >= bytes) least = std::min(least, cost);
      }
    }
    return least;
  }

 private:
  void checkBlocks() const {
    int64_t end = 0, free_bytes = 0;
    std::map<int, int64_t> found;
    bool was_free = false;
    for (const AddressSpace::Block& block : space_.blocks()) {
      EXPECT_EQ(block.start, end);
      EXPECT_GT(block.bytes, 0);
      end += block.bytes;
      const bool is_free = block.owner == kFree;
      EXPECT_FALSE(is_free && was_free) << "two free blocks side by side";
      was_free = is_free;
      if (is_free) {
        free_bytes += block.bytes;
      } else {
        EXPECT_TRUE(found.emplace(block.owner, block.bytes).second);
      }
    }
    EXPECT_EQ(end, space_.bytes());
    EXPECT_EQ(free_bytes, space_.freeBytes());
    EXPECT_EQ(found, bytes_);
  }

  std::mt19937_64 random_;
  AddressSpace space_;
  std::map<int, int64_t> bytes_;  // by owner
  std::vector<double> costs_;     // by owner
};

TEST(AddressSpace, NoWindowCostsLess) {
  for (int seed = 0; seed < propertyCases(3000); ++seed) {
    SCOPED_TRACE(seed);
    RandomLayout random(static_cast<uint64_t>(seed));
    const int64_t bytes = random.draw(1, 40);
    AddressSpace space = random.space();
    if (space.allocate(1000, bytes, End::kLow)) continue;
    const std::vector<int> window =
        space.cheapestWindow(bytes, [&](int v) { return random.costOf(v); });
    const double least = random.leastCost(bytes);
    if (window.empty()) {
      EXPECT_EQ(least, std::numeric_limits<double>::infinity());
      continue;
    }
    double cost = 0;
    for (const int v : window) {
      cost += random.costOf(v);
      space.free(v);
    }
    EXPECT_NEAR(cost, least, 1e-9);
    EXPECT_TRUE(space.allocate(1000, bytes, End::kHigh));
  }
}

}  // namespace
}  // namespace poet::testing
