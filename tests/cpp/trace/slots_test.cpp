#include "trace/slots.h"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace poet::testing {
namespace {

Slot slotOf(int64_t number) {
  Slot slot;
  slot.hash = static_cast<uint64_t>(number);
  slot.value = ValueId(number);
  return slot;
}

Look lookOf(int64_t size) {
  Look look;
  look.sizes.push_back(size);
  return look;
}

// Ops of 0 to 6 slots, more than blocks hold.
TEST(SlotTable, SlotsOfAnOpLieSideBySideAndStay) {
  SlotTable table;
  std::vector<std::pair<Slot*, size_t>> ops;
  int64_t number = 0;
  for (size_t op = 0; op < 2'000; ++op) {
    Slot* first = nullptr;
    for (size_t i = 0; i < op % 7; ++i) first = table.add(first, i, slotOf(number++));
    ops.emplace_back(first, op % 7);
  }
  int64_t expected = 0;
  for (const auto& [first, count] : ops) {
    for (size_t i = 0; i < count; ++i, ++expected) {
      ASSERT_EQ(first[i].value, ValueId(expected));
      ASSERT_EQ(first[i].hash, static_cast<uint64_t>(expected));
    }
  }
  EXPECT_EQ(expected, number);
}

TEST(SlotTable, AnOpMayHaveMoreSlotsThanABlock) {
  SlotTable table;
  table.add(nullptr, 0, slotOf(-1));
  Slot* first = nullptr;
  for (int64_t i = 0; i < 3'000; ++i) first = table.add(first, static_cast<size_t>(i), slotOf(i));
  for (int64_t i = 0; i < 3'000; ++i) ASSERT_EQ(first[i].value, ValueId(i));
}

TEST(SlotTable, EqualLooksAreOneAndOthersStayBesideThem) {
  SlotTable table;
  const Look* five = table.shared(1, lookOf(5));
  EXPECT_EQ(table.shared(1, lookOf(5)), five);
  const Look* six = table.shared(1, lookOf(6));  // a clash of keys
  EXPECT_NE(six, five);
  EXPECT_EQ(five->sizes[0], 5);
  EXPECT_EQ(six->sizes[0], 6);
  EXPECT_EQ(table.shared(2, lookOf(6))->sizes[0], 6);
}

TEST(SlotTable, TakesLittleMoreThanItsSlots) {
  SlotTable table;
  for (int64_t i = 0; i < 10'000; ++i) table.add(nullptr, 0, slotOf(i));
  table.close();
  EXPECT_GE(table.ownBytes(), 10'000 * 32);
  EXPECT_LE(table.ownBytes(), 10'000 * 33 + 256 * 32);
}

}  // namespace
}  // namespace poet::testing
