// Bytes that nobody vouches for, out and in: varints, doubles, texts and a checksum. Internal to
// the compact form of a schedule.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace poet::bytes {

// CRC-32 as in ISO 3309, zlib and PNG: reflected, polynomial 0xEDB88320, all ones before and after.
uint32_t crc32(std::string_view bytes);

// Whether it is well-formed UTF-8 (no overlong forms, no surrogates).
bool isUtf8(std::string_view text);

class Writer {
 public:
  void byte(uint8_t byte) { bytes_ += static_cast<char>(byte); }
  // Little endian, `count` bytes.
  void fixed(uint64_t number, int count);
  // Seven bits a byte, the lowest first; the high bit says that more follow.
  void varint(uint64_t number);
  // Throws ScheduleError where it is below 0; `what` names it.
  void count(int64_t number, std::string_view what);
  // IEEE 754, 8 bytes. Throws ScheduleError where it is not finite.
  void number(double number, std::string_view what);
  void text(std::string_view text);

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Every call throws FormatError where the bytes end too early or hold what no writer writes.
class Reader {
 public:
  // `what` opens every message.
  Reader(std::string_view bytes, std::string_view what) : rest_(bytes), what_(what) {}

  uint8_t byte();
  uint64_t fixed(int count);
  uint64_t varint(std::string_view field);
  int64_t count(std::string_view field, int64_t greatest);
  double number(std::string_view field);
  double numberFromZero(std::string_view field);
  std::string text(std::string_view field);

  size_t size() const { return rest_.size(); }
  [[noreturn]] void fail(std::string_view field, std::string_view problem) const;

 private:
  std::string_view take(size_t count, std::string_view field);

  std::string_view rest_;
  std::string_view what_;
};

}  // namespace poet::bytes
