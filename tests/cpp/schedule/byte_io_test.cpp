#include "schedule/byte_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/error.h"

namespace poet::bytes {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ByteIo, TheChecksumIsThatOfZlib) {
  EXPECT_EQ(crc32(""), 0U);
  EXPECT_EQ(crc32("123456789"), 0xCBF43926U);
  EXPECT_EQ(crc32("The quick brown fox jumps over the lazy dog"), 0x414FA339U);
}

TEST(ByteIo, NumbersComeBack) {
  const uint64_t most = std::numeric_limits<uint64_t>::max();
  for (const uint64_t number : {uint64_t{0}, uint64_t{1}, uint64_t{127}, uint64_t{128},
                                uint64_t{16383}, uint64_t{16384}, uint64_t{1} << 63, most}) {
    Writer out;
    out.varint(number);
    out.fixed(number, 8);
    Reader in(out.bytes(), "test");
    EXPECT_EQ(in.varint("n"), number);
    EXPECT_EQ(in.fixed(8), number);
    EXPECT_EQ(in.size(), 0U);
  }
  Writer small;
  small.varint(127);
  EXPECT_EQ(small.bytes().size(), 1U);
}

TEST(ByteIo, DoublesComeBackBitForBit) {
  for (const double number : {0.0, -0.0, 1.0 / 3, 1e-310, -1e300}) {
    Writer out;
    out.number(number, "x");
    Reader in(out.bytes(), "test");
    const double again = in.number("x");
    EXPECT_EQ(again, number);
    EXPECT_EQ(std::signbit(again), std::signbit(number));
  }
}

TEST(ByteIo, AWriterRefusesWhatNoReaderTakes) {
  Writer out;
  EXPECT_THROW(out.number(std::nan(""), "x"), ScheduleError);
  EXPECT_THROW(out.number(std::numeric_limits<double>::infinity(), "x"), ScheduleError);
  EXPECT_THROW(out.count(-1, "x"), ScheduleError);
  EXPECT_THROW(out.text("\xff"), ScheduleError);
}

template <class Read>
void expectBytesRefused(std::string_view bytes, const char* says, const Read& read) {
  Reader in(bytes, "test");
  EXPECT_THAT([&] { read(in); }, ThrowsMessage<FormatError>(HasSubstr(says)));
}

TEST(ByteIo, AReaderRefusesWhatNoWriterWrites) {
  const auto varint = [](Reader& in) { in.varint("n"); };
  expectBytesRefused("", "test: n: the bytes end too early", varint);
  expectBytesRefused("\x80", "end too early", varint);
  expectBytesRefused(std::string_view("\x80\x00", 2), "longer than it need be", varint);
  expectBytesRefused("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02", "below 2^64", varint);
  expectBytesRefused("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "below 2^64", varint);
  expectBytesRefused("\x05", "expected a number in [0, 4], got 5",
                     [](Reader& in) { in.count("n", 4); });
  expectBytesRefused(std::string_view("\0", 1), "[0, -1]", [](Reader& in) { in.count("n", -1); });
  expectBytesRefused(
      "\x7f"
      "abc",
      "end too early", [](Reader& in) { in.text("n"); });
  expectBytesRefused("\x01\xff", "UTF-8", [](Reader& in) { in.text("n"); });
  expectBytesRefused("1234567", "end too early", [](Reader& in) { in.number("n"); });
  Writer out;
  out.fixed(0x7ff0000000000000U, 8);
  expectBytesRefused(out.bytes(), "finite", [](Reader& in) { in.number("n"); });
  Writer negative;
  negative.number(-1, "x");
  expectBytesRefused(negative.bytes(), ">= 0", [](Reader& in) { in.numberFromZero("n"); });
}

TEST(ByteIo, KnowsUtf8) {
  for (const char* good : {"", "plain", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                           "\xf4\x8f\xbf\xbf", "\xed\x9f\xbf"}) {
    EXPECT_TRUE(isUtf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80",
                          "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80",
                          "\xe2\x82"
                          "a"}) {
    EXPECT_FALSE(isUtf8(bad)) << bad;
  }
}

}  // namespace
}  // namespace poet::bytes
