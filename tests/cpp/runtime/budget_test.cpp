#include "runtime/budget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "graph/error.h"

namespace poet {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPeak = 1000;

template <class F>
std::string errorOf(F&& f) {
  try {
    f();
  } catch (const ArgumentError& error) {
    return error.what();
  }
  return "";
}

std::string refusal(const std::string& text) {
  return errorOf([&] { RamBudget budget(text); });
}

TEST(RamBudgetTest, ReadsSizesAsPeopleWriteThem) {
  const std::vector<std::pair<const char*, int64_t>> cases = {
      {"1", 1},
      {"2000", 2000},
      {"2e3", 2000},
      {"512MiB", int64_t{512} << 20},
      {"512 MB", 512'000'000},
      {" 1.5GiB ", (int64_t{3} << 30) / 2},
      {"2g", int64_t{2} << 30},
      {"1kB", 1000},
      {"1K", 1024},
      {".5kib", 512},
      {"1.0001kB", 1000},  // rounded down
      {"3 bytes", 3},
      {"0.0000000000000000001e19 tb", 1'000'000'000'000},
      {"8388607TiB", int64_t{8388607} << 40},
      {"9223372036854775807", std::numeric_limits<int64_t>::max()},
  };
  for (const auto& [text, bytes] : cases) EXPECT_EQ(RamBudget(text).bytes(kPeak), bytes) << text;
  EXPECT_EQ(RamBudget(int64_t{5'000'000'000}).bytes(kPeak), 5'000'000'000);
  EXPECT_EQ(RamBudget(7).bytes(kPeak), 7);
}

TEST(RamBudgetTest, SharesAreOfThePlainPeak) {
  EXPECT_EQ(RamBudget("60%").bytes(kPeak), 600);
  EXPECT_EQ(RamBudget("33.35 %").bytes(kPeak), 333);
  EXPECT_EQ(RamBudget("150%").bytes(kPeak), 1500);
  EXPECT_EQ(RamBudget("50%").bytes(std::numeric_limits<int64_t>::max()),
            std::numeric_limits<int64_t>::max() / 2);
  EXPECT_TRUE(RamBudget("60%").isShare());
  EXPECT_THAT(errorOf([] { RamBudget("0.01%").bytes(kPeak); }), HasSubstr("at least one byte"));
}

TEST(RamBudgetTest, ErrorsAreThoseOfThePythonPackage) {
  EXPECT_EQ(
      refusal("12xb"),
      "ram_budget: expected bytes as a whole number, a size such as \"512MiB\", \"1.5GiB\" or "
      "\"800 MB\", or a share of the plain step's peak such as \"60%\"; got '12xb'. Known "
      "units: %, B, and k, M, G, T with or without B or iB; not 'xb'.");
  EXPECT_THAT(refusal("-5MiB"), HasSubstr("got '-5MiB'. A budget cannot be negative."));
  EXPECT_THAT(refusal("1.5"), HasSubstr("Add a unit, as in \"1.5GiB\"."));
  EXPECT_THAT(refusal("0"), HasSubstr("got '0'. A budget must hold at least one byte."));
  EXPECT_THAT(refusal("9223372036854775808"), HasSubstr("A budget must lie below 2**63 bytes."));
  EXPECT_THAT(refusal("1e999"), HasSubstr("A budget must lie below 2**63 bytes."));
  for (const char* text : {"", " ", "MiB", "1..5MiB", "five", "1e9999", "%", "5%%", "0x10", "nan"})
    EXPECT_THAT(refusal(text), HasSubstr("Write a number and its unit.")) << text;
  EXPECT_THAT(refusal(std::string(1000, '1')), HasSubstr("..."));
  EXPECT_THAT(errorOf([] { RamBudget budget(-1); }), HasSubstr("got -1. A budget cannot be neg"));
  EXPECT_THAT(errorOf([] { RamBudget budget(0); }), HasSubstr("got 0. A budget must hold"));
}

TEST(RuntimeBudgetTest, TakesRatiosAndTimes) {
  EXPECT_DOUBLE_EQ(RuntimeBudget(1.3).seconds(2), 2.6);
  EXPECT_DOUBLE_EQ(RuntimeBudget("800ms").seconds(2), 0.8);
  EXPECT_DOUBLE_EQ(RuntimeBudget("2min").seconds(2), 120);
  EXPECT_DOUBLE_EQ(RuntimeBudget("1.5 s").seconds(2), 1.5);
  EXPECT_DOUBLE_EQ(RuntimeBudget("250us").seconds(2), 250e-6);
}

TEST(RuntimeBudgetTest, RefusesWhatIsNoTime) {
  const auto refused = [](auto budget) { return errorOf([&] { RuntimeBudget{budget}; }); };
  EXPECT_THAT(refused("5"), HasSubstr("Give a ratio as a number, or add a unit to a time."));
  EXPECT_THAT(refused("5h"), HasSubstr("Known units: us, ms, s, min; not 'h'."));
  EXPECT_THAT(refused("0s"), HasSubstr("It must be a finite time above 0."));
  EXPECT_THAT(refused(0.0), HasSubstr("It must be above 0."));
  EXPECT_THAT(refused(std::numeric_limits<double>::quiet_NaN()), HasSubstr("It must be a number."));
  EXPECT_THAT(refused(std::numeric_limits<double>::infinity()), HasSubstr("It must be finite."));
  EXPECT_THAT(errorOf([] { RuntimeBudget(1.3).seconds(0); }), HasSubstr("no recorded times"));
}

TEST(FormatBytesTest, SizesForPeople) {
  EXPECT_EQ(formatBytes(0), "0 B");
  EXPECT_EQ(formatBytes(1023), "1023 B");
  EXPECT_EQ(formatBytes(1024), "1.0 KiB");
  EXPECT_EQ(formatBytes(123'500'000), "117.8 MiB");
  EXPECT_EQ(formatBytes(int64_t{1} << 62), "4194304.0 TiB");
}

}  // namespace
}  // namespace poet
