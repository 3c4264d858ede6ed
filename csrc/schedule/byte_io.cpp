#include "schedule/byte_io.h"

#include <array>
#include <bit>
#include <cmath>

#include "graph/error.h"

namespace poet::bytes {
namespace {

constexpr std::array<uint32_t, 256> crcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0xEDB88320U : 0U);
    table[i] = rest;
  }
  return table;
}

// Bytes that follow a first byte, and the least code point that needs that many; -1: no first byte.
struct Sequence {
  int more = -1;
  uint32_t least = 0;
  uint32_t bits = 0;
};

Sequence sequenceOf(uint8_t first) {
  if (first < 0x80) return {0, 0, first};
  if (first >= 0xC0 && first < 0xE0) return {1, 0x80, first & 0x1FU};
  if (first >= 0xE0 && first < 0xF0) return {2, 0x800, first & 0x0FU};
  if (first >= 0xF0 && first < 0xF8) return {3, 0x10000, first & 0x07U};
  return {};
}

}  // namespace

uint32_t crc32(std::string_view bytes) {
  static constexpr auto kTable = crcTable();
  uint32_t sum = 0xFFFFFFFFU;
  for (const char byte : bytes)
    sum = (sum >> 8) ^ kTable[(sum ^ static_cast<uint8_t>(byte)) & 0xFF];
  return ~sum;
}

bool isUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Sequence sequence = sequenceOf(static_cast<uint8_t>(text[i++]));
    if (sequence.more < 0 || text.size() - i < static_cast<size_t>(sequence.more)) return false;
    uint32_t point = sequence.bits;
    for (int more = 0; more < sequence.more; ++more) {
      const auto next = static_cast<uint8_t>(text[i++]);
      if ((next & 0xC0) != 0x80) return false;
      point = (point << 6) | (next & 0x3FU);
    }
    if (point < sequence.least || point > 0x10FFFF || (point >= 0xD800 && point < 0xE000))
      return false;
  }
  return true;
}

// ---- Writer -----------------------------------------------------------------------------------

void Writer::fixed(uint64_t number, int count) {
  for (int i = 0; i < count; ++i) byte(static_cast<uint8_t>(number >> (8 * i)));
}

void Writer::varint(uint64_t number) {
  for (; number >= 0x80; number >>= 7) byte(static_cast<uint8_t>(number | 0x80));
  byte(static_cast<uint8_t>(number));
}

void Writer::count(int64_t number, std::string_view what) {
  POET_CHECK_AS(ScheduleError, number >= 0, "schedule: ", what, ": expected a number >= 0, got ",
                number);
  varint(static_cast<uint64_t>(number));
}

void Writer::number(double number, std::string_view what) {
  POET_CHECK_AS(ScheduleError, std::isfinite(number), "schedule: ", what,
                ": expected a finite number, got ", number);
  fixed(std::bit_cast<uint64_t>(number), 8);
}

void Writer::text(std::string_view text) {
  POET_CHECK_AS(ScheduleError, isUtf8(text), "schedule: expected texts in UTF-8");
  varint(text.size());
  bytes_ += text;
}

// ---- Reader -----------------------------------------------------------------------------------

void Reader::fail(std::string_view field, std::string_view problem) const {
  throw FormatError(detail::message(what_, ": ", field, ": ", problem));
}

std::string_view Reader::take(size_t count, std::string_view field) {
  if (count > rest_.size()) fail(field, "the bytes end too early");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

uint8_t Reader::byte() { return static_cast<uint8_t>(take(1, "a byte").front()); }

uint64_t Reader::fixed(int count) {
  uint64_t number = 0;
  int shift = 0;
  for (const char byte : take(static_cast<size_t>(count), "a number")) {
    number |= static_cast<uint64_t>(static_cast<uint8_t>(byte)) << shift;
    shift += 8;
  }
  return number;
}

uint64_t Reader::varint(std::string_view field) {
  uint64_t number = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto next = static_cast<uint8_t>(take(1, field).front());
    if (shift == 63 && next > 1) fail(field, "expected a number below 2^64");
    if (shift > 0 && next == 0) fail(field, "a number is longer than it need be");
    number |= static_cast<uint64_t>(next & 0x7F) << shift;
    if (next < 0x80) return number;
  }
  fail(field, "expected a number below 2^64");
}

int64_t Reader::count(std::string_view field, int64_t greatest) {
  const uint64_t number = varint(field);
  if (greatest < 0 || number > static_cast<uint64_t>(greatest)) {
    fail(field, detail::message("expected a number in [0, ", greatest, "], got ", number));
  }
  return static_cast<int64_t>(number);
}

double Reader::number(std::string_view field) {
  const auto number = std::bit_cast<double>(fixed(8));
  if (!std::isfinite(number)) fail(field, "expected a finite number");
  return number;
}

double Reader::numberFromZero(std::string_view field) {
  const double found = number(field);
  if (found < 0) fail(field, "expected a number >= 0");
  return found;
}

std::string Reader::text(std::string_view field) {
  const uint64_t size = varint(field);
  if (size > rest_.size()) fail(field, "the bytes end too early");
  std::string text(take(static_cast<size_t>(size), field));
  if (!isUtf8(text)) fail(field, "expected UTF-8");
  return text;
}

}  // namespace poet::bytes
