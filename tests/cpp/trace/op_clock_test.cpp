#include "trace/op_clock.h"

#include <gtest/gtest.h>

#include "store/stopwatch.h"

namespace poet::testing {
namespace {

TEST(OpClock, IsTheWalls) {
  const auto before = OpClock::Wall::now();
  const auto now = OpClock::now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, OpClock::Wall::now());
}

TEST(OpClock, AdvancesAMicrosecondALookWhileItIsCounted) {
  double seconds = 0;
  {
    const OpClock::Counted counted;
    {
      const StopwatchOf<OpClock> watch(&seconds);
      OpClock::now();
    }
    EXPECT_DOUBLE_EQ(seconds, 2e-6);
    { const OpClock::Counted more; }
    const auto last = OpClock::now();
    EXPECT_EQ(OpClock::now() - last, std::chrono::microseconds(1));
  }
  const auto before = OpClock::Wall::now();
  EXPECT_LE(before, OpClock::now());
}

}  // namespace
}  // namespace poet::testing
