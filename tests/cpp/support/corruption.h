// Damages a document at random: bytes, cuts, repetitions, swapped numbers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/random.h"

namespace poet::testing {

class Corrupter {
 public:
  explicit Corrupter(uint64_t seed) : random_(seed) {}

  // Between one and three changes.
  std::string damage(std::string text) {
    for (int64_t changes = random_.between(1, 3); changes > 0 && !text.empty(); --changes)
      changeOne(&text);
    return text;
  }

 private:
  void changeOne(std::string* text) {
    const auto size = static_cast<int64_t>(text->size());
    const auto at = static_cast<size_t>(random_.below(size));
    const auto length = static_cast<size_t>(random_.between(1, 20));
    switch (random_.below(7)) {
      case 0:
        (*text)[at] = static_cast<char>(random_.below(256));
        break;
      case 1:
        (*text)[at] = static_cast<char>((*text)[at] ^ (1 << random_.below(8)));
        break;
      case 2:
        text->erase(at, length);
        break;
      case 3:
        text->insert(at, text->substr(static_cast<size_t>(random_.below(size)), length));
        break;
      case 4:
        text->insert(at, random_.pick(tokens_));
        break;
      case 5:
        replaceNumber(text, at);
        break;
      default:
        replaceWord(text, at);
        break;
    }
  }

  // The next number after `at` becomes another one: damage that is still JSON.
  void replaceNumber(std::string* text, size_t at) {
    const size_t begin = text->find_first_of("0123456789", at);
    if (begin == std::string::npos) return;
    size_t end = text->find_first_not_of("0123456789.", begin);
    if (end == std::string::npos) end = text->size();
    text->replace(begin, end - begin, random_.pick(numbers_));
  }

  // The next word in quotes becomes another one of the document.
  void replaceWord(std::string* text, size_t at) {
    const auto [begin, end] = wordAfter(*text, at);
    const auto [from, to] =
        wordAfter(*text, static_cast<size_t>(random_.below(static_cast<int64_t>(text->size()))));
    if (end == std::string::npos || to == std::string::npos) return;
    const std::string word = text->substr(from, to - from);
    text->replace(begin, end - begin, word);
  }

  static std::pair<size_t, size_t> wordAfter(const std::string& text, size_t at) {
    const size_t begin = text.find('"', at);
    if (begin == std::string::npos) return {begin, begin};
    return {begin + 1, text.find('"', begin + 1)};
  }

  Random random_;
  std::vector<std::string> numbers_ = {"-1",
                                       "0",
                                       "1",
                                       "2",
                                       "3",
                                       "5",
                                       "8",
                                       "1.5",
                                       "1e400",
                                       "-0",
                                       "1e12",
                                       "2147483647",
                                       "2147483648",
                                       "4294967296",
                                       "9223372036854775807",
                                       "9223372036854775808",
                                       "18446744073709551616",
                                       "1e-400",
                                       "NaN",
                                       "00"};
  std::vector<std::string> tokens_ = {
      "{",  "}",  "[",  "]",    ",",    ":",       "\"",           "null",    "true",
      "[]", "{}", "\\", "\xff", "\xc3", "\\ud800", "[[[[[[[[[[[[", "1e99999", "\"a\":1,"};
};

inline std::string corrupted(const std::string& text, uint64_t seed) {
  return Corrupter(seed).damage(text);
}

}  // namespace poet::testing
