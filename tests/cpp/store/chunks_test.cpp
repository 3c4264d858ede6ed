#include "store/chunks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <vector>

namespace poet::store {
namespace {

constexpr int64_t kTailSizes[] = {0,
                                  1,
                                  4095,
                                  4096,
                                  4097,
                                  131071,
                                  131072,
                                  131073,
                                  1000003,
                                  8 << 20,
                                  (8 << 20) + 1,
                                  (20 << 20) - 1,
                                  5 << 20,
                                  70000,
                                  262144,
                                  12345678,
                                  int64_t{5} << 30};

std::vector<std::byte> randomBytes(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint64_t hashOf(const std::vector<std::byte>& bytes, uint64_t seed = 1, uint64_t index = 2) {
  ChunkHash hash(seed, index);
  hash.update(bytes.data(), static_cast<int64_t>(bytes.size()));
  return hash.finish();
}

TEST(ChunkLayoutTest, ChunksCoverTheValueInWholeBlocks) {
  for (const int64_t bytes : kTailSizes) {
    const ChunkLayout layout(bytes);
    int64_t data_bytes = 0;
    int64_t value_bytes = 0;
    for (int64_t chunk = 0; chunk < layout.chunkCount(); ++chunk) {
      EXPECT_EQ(layout.chunkOffset(chunk), data_bytes);
      EXPECT_EQ(layout.bytesOfChunk(chunk) % kBlockBytes, 0);
      EXPECT_GT(layout.valueBytesOfChunk(chunk), 0);
      data_bytes += layout.bytesOfChunk(chunk);
      value_bytes += layout.valueBytesOfChunk(chunk);
    }
    EXPECT_EQ(value_bytes, bytes);
    EXPECT_EQ(data_bytes, layout.dataBytes());
    EXPECT_LT(data_bytes - bytes, kBlockBytes);
    EXPECT_LE(layout.chunkBytes(), kLargestChunkBytes);
  }
}

TEST(ChunkLayoutTest, ParityOfALongValueIsAThirtySecond) {
  for (const int64_t bytes : kTailSizes) {
    const ChunkLayout layout(bytes);
    if (bytes >= 128 << 10) {
      EXPECT_LE(layout.parityBytes() * 32, layout.dataBytes()) << bytes;
    }
    if (bytes >= 64 << 10) {
      EXPECT_LE(layout.fileBytes(), bytes + bytes / 8) << bytes;
    }
  }
}

// All different from each other, too: so no pair of flipped bits cancels out.
TEST(ChunkHashTest, EveryFlippedBitAndEveryPairChangesIt) {
  std::vector<std::byte> bytes = randomBytes(4096, 7);
  const uint64_t whole = hashOf(bytes);
  std::set<uint64_t> seen = {whole};
  for (size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_TRUE(seen.insert(hashOf(bytes)).second) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
  EXPECT_EQ(hashOf(bytes), whole);
}

// A line of a bus that is stuck: one bit of every word, or of every second, ...
TEST(ChunkHashTest, TheSameBitOfManyWordsChangesIt) {
  std::set<uint64_t> seen;
  for (size_t step = 1; step <= 256; step *= 2) {
    for (size_t bit = 0; bit < 64; ++bit) {
      std::vector<std::byte> bytes(4096);
      for (size_t word = 0; word < 512; word += step) {
        bytes[word * 8 + bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      }
      EXPECT_TRUE(seen.insert(hashOf(bytes)).second) << step << " " << bit;
    }
  }
}

TEST(ChunkHashTest, ExchangedWordsAndLanesChangeIt) {
  const std::vector<std::byte> bytes = randomBytes(256, 8);
  const uint64_t whole = hashOf(bytes);
  for (size_t first = 0; first < bytes.size(); first += 8) {
    for (size_t second = first + 8; second < bytes.size(); second += 8) {
      std::vector<std::byte> other = bytes;
      std::memcpy(&other[first], &bytes[second], 8);
      std::memcpy(&other[second], &bytes[first], 8);
      EXPECT_NE(hashOf(other), whole) << first << " " << second;
    }
  }
}

TEST(ChunkHashTest, SlotAndChunkCount) {
  const std::vector<std::byte> bytes = randomBytes(4096, 9);
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t index = 0; index < 50; ++index) {
      EXPECT_TRUE(seen.insert(hashOf(bytes, seed, index)).second) << seed << " " << index;
    }
  }
}

TEST(ChunkHashTest, CopyingGivesTheSameSumAndTheBytes) {
  const std::vector<std::byte> bytes = randomBytes(8192, 10);
  std::vector<std::byte> copied(bytes.size());
  std::vector<std::byte> copied_too(bytes.size());
  std::vector<std::byte> parity = randomBytes(bytes.size(), 11);
  std::vector<std::byte> expected_parity = parity;
  xorInto(expected_parity.data(), bytes.data(), 8192);
  ChunkHash copying(1, 2);
  copying.copy(copied.data(), bytes.data(), 8192);
  ChunkHash with_parity(1, 2);
  with_parity.copyWithParity(copied_too.data(), parity.data(), bytes.data(), 8192);
  EXPECT_EQ(copying.finish(), hashOf(bytes));
  EXPECT_EQ(with_parity.finish(), hashOf(bytes));
  EXPECT_EQ(copied, bytes);
  EXPECT_EQ(copied_too, bytes);
  EXPECT_EQ(parity, expected_parity);
}

}  // namespace
}  // namespace poet::store
