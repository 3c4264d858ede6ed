#include "trace/content_hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/random.h"

namespace poet::testing {
namespace {

struct Way {
  std::string name;
  uint64_t (*hash)(const void*, size_t);
};

std::vector<Way> ways() {
  std::vector<Way> all = {{"portable", portableContentHash}, {"chosen", contentHash}};
  if (hasVectorContentHash()) all.push_back({"vector", vectorContentHash});
  return all;
}

class ContentHash : public ::testing::TestWithParam<Way> {
 protected:
  static uint64_t of(const std::vector<unsigned char>& bytes) {
    return GetParam().hash(bytes.data(), bytes.size());
  }
};

TEST_P(ContentHash, EachBitAndEachLengthCounts) {
  std::set<uint64_t> seen;
  size_t hashes = 0;
  for (const size_t size : {0, 1, 7, 8, 63, 64, 65, 127, 128, 129, 300}) {
    for (const unsigned char fill : {0, 0xff, 0x5a}) {
      if (size == 0 && fill != 0) continue;
      std::vector<unsigned char> bytes(size, fill);
      const uint64_t whole = of(bytes);
      EXPECT_TRUE(seen.insert(whole).second) << size;
      ++hashes;
      for (size_t bit = 0; bit < 8 * size; ++bit) {
        bytes[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
        EXPECT_TRUE(seen.insert(of(bytes)).second) << size << " bytes, bit " << bit;
        bytes[bit / 8] ^= static_cast<unsigned char>(1U << (bit % 8));
        ++hashes;
      }
      EXPECT_EQ(of(bytes), whole);
    }
  }
  EXPECT_EQ(seen.size(), hashes);
}

// A half of the word that meets the first key's but for one bit: the product is the other half.
TEST_P(ContentHash, NoChangeOfOneWordIsLost) {
  std::vector<uint32_t> words(64, 0);
  words[0] = 0xfd29f055;
  for (const uint32_t other : {0u, 1u, 0x3f800000u, 0xffffffffu}) {
    words[1] = other;
    const uint64_t whole = GetParam().hash(words.data(), 4 * words.size());
    for (int bit = 0; bit < 32; ++bit) {
      words[1] = other ^ (1u << bit);
      EXPECT_NE(GetParam().hash(words.data(), 4 * words.size()), whole) << other << " " << bit;
    }
  }
}

// What a kernel may leave: the same numbers at other places, two changes that undo each other.
TEST_P(ContentHash, PlacesCount) {
  Random random(7);
  std::vector<float> numbers(600);
  for (float& number : numbers) number = static_cast<float>(random.unit());
  const auto hash = [&] { return GetParam().hash(numbers.data(), 4 * numbers.size()); };
  const uint64_t whole = hash();
  for (const size_t apart : {1, 2, 4, 8, 16, 32, 64, 128, 512}) {
    for (size_t i = 0; i + apart < numbers.size(); i += 5) {
      std::swap(numbers[i], numbers[i + apart]);
      EXPECT_NE(hash(), whole) << i << " and " << apart << " behind it exchanged";
      std::swap(numbers[i], numbers[i + apart]);
      const float before = numbers[i], other = numbers[i + apart];
      numbers[i] += 1;
      numbers[i + apart] -= 1;
      EXPECT_NE(hash(), whole);
      numbers[i] = before;
      numbers[i + apart] = other;
    }
  }
  EXPECT_EQ(hash(), whole);
}

TEST_P(ContentHash, AlignmentDoesNotCount) {
  std::vector<unsigned char> bytes(1'000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(i * i >> 3);
  const uint64_t whole = of(bytes);
  for (size_t shift = 1; shift < 40; ++shift) {
    std::vector<unsigned char> moved(bytes.size() + shift);
    std::memcpy(moved.data() + shift, bytes.data(), bytes.size());
    EXPECT_EQ(GetParam().hash(moved.data() + shift, bytes.size()), whole) << shift;
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, ContentHash, ::testing::ValuesIn(ways()),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace poet::testing
