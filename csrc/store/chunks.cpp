#include "store/chunks.h"

#include <algorithm>
#include <cstring>

#ifdef __x86_64__
#include <emmintrin.h>
#endif

namespace poet::store {
namespace {

// Odd, with bits set evenly: 2^64 divided by the golden ratio, and by the square root of 3.
constexpr uint64_t kFirstFactor = 0x9E3779B97F4A7C15;
constexpr uint64_t kSecondFactor = 0x93CD3A2C8198E269;
constexpr int64_t kChunksAimedAt = 32;  // of a value of 128 KiB or more parity is at most 1/32

uint64_t scatter(uint64_t bits) {
  bits = (bits ^ (bits >> 32)) * kFirstFactor;
  bits = (bits ^ (bits >> 29)) * kSecondFactor;
  return bits ^ (bits >> 32);
}

// See Note [Stores past the caches].
void streamWords(std::byte* target, const std::array<uint64_t, ChunkHash::kLanes>& words) {
#ifdef __x86_64__
  for (size_t i = 0; i < words.size(); ++i) {
    _mm_stream_si64(reinterpret_cast<long long*>(target) + i, static_cast<long long>(words[i]));
  }
#else
  std::memcpy(target, words.data(), sizeof(words));
#endif
}

void finishStreaming() {
#ifdef __x86_64__
  _mm_sfence();
#endif
}

}  // namespace

ChunkLayout::ChunkLayout(int64_t value_bytes)
    : value_bytes_(value_bytes), data_bytes_(roundUpToBlock(value_bytes)) {
  chunk_bytes_ = std::clamp(data_bytes_ / kChunksAimedAt / kBlockBytes * kBlockBytes, kBlockBytes,
                            kLargestChunkBytes);
  chunk_count_ = (data_bytes_ + chunk_bytes_ - 1) / chunk_bytes_;
}

int64_t ChunkLayout::bytesOfChunk(int64_t chunk) const {
  return std::min(chunk_bytes_, data_bytes_ - chunkOffset(chunk));
}

int64_t ChunkLayout::valueBytesOfChunk(int64_t chunk) const {
  return std::min(chunk_bytes_, value_bytes_ - chunkOffset(chunk));
}

ChunkHash::ChunkHash(uint64_t seed, uint64_t index) {
  const uint64_t start = scatter(seed * kSecondFactor + index + 1);
  for (int i = 0; i < kLanes; ++i) lanes_[i] = scatter(start + static_cast<uint64_t>(i));
}

template <bool kCopy, bool kParity>
void ChunkHash::run(std::byte* target, std::byte* parity, const std::byte* source, int64_t bytes) {
  std::array<uint64_t, kLanes> lanes = lanes_;
  for (int64_t at = 0; at < bytes; at += kHashBytes) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), source + at, kHashBytes);
    if constexpr (kCopy && !kParity) std::memcpy(target + at, words.data(), kHashBytes);
    if constexpr (kParity) {
      streamWords(target + at, words);
      std::array<uint64_t, kLanes> sum;
      std::memcpy(sum.data(), parity + at, kHashBytes);
      for (int i = 0; i < kLanes; ++i) sum[i] ^= words[i];
      std::memcpy(parity + at, sum.data(), kHashBytes);
    }
    for (int i = 0; i < kLanes; ++i) {
      const uint64_t mixed = (lanes[i] ^ words[i]) * kFirstFactor;
      lanes[i] = (mixed ^ (mixed >> 32)) * kSecondFactor;
    }
  }
  lanes_ = lanes;
}

void ChunkHash::update(const std::byte* source, int64_t bytes) {
  run<false, false>(nullptr, nullptr, source, bytes);
}

void ChunkHash::copy(std::byte* target, const std::byte* source, int64_t bytes) {
  run<true, false>(target, nullptr, source, bytes);
}

void ChunkHash::copyWithParity(std::byte* target, std::byte* parity, const std::byte* source,
                               int64_t bytes) {
  run<true, true>(target, parity, source, bytes);
  finishStreaming();
}

uint64_t ChunkHash::finish() const {
  uint64_t sum = 0;
  for (const uint64_t lane : lanes_) sum = scatter(sum * kFirstFactor ^ lane);
  return sum;
}

uint64_t packChunk(const ChunkLayout& layout, int64_t chunk, uint64_t seed, const std::byte* value,
                   std::byte* target, std::byte* parity) {
  const int64_t value_bytes = layout.valueBytesOfChunk(chunk);
  const int64_t whole = value_bytes / ChunkHash::kHashBytes * ChunkHash::kHashBytes;
  const int64_t padded = layout.bytesOfChunk(chunk);
  const std::byte* source = value + layout.chunkOffset(chunk);
  ChunkHash hash(seed, static_cast<uint64_t>(chunk));
  hash.copyWithParity(target, parity, source, whole);
  if (padded > whole) {
    std::memcpy(target + whole, source + whole, static_cast<size_t>(value_bytes - whole));
    std::memset(target + value_bytes, 0, static_cast<size_t>(padded - value_bytes));
    hash.update(target + whole, padded - whole);
    xorInto(parity + whole, target + whole, padded - whole);
  }
  return hash.finish();
}

uint64_t unpackChunk(const ChunkLayout& layout, int64_t chunk, uint64_t seed,
                     const std::byte* packed, std::byte* value) {
  const int64_t value_bytes = layout.valueBytesOfChunk(chunk);
  const int64_t whole = value_bytes / ChunkHash::kHashBytes * ChunkHash::kHashBytes;
  const int64_t padded = layout.bytesOfChunk(chunk);
  std::byte* target = value + layout.chunkOffset(chunk);
  ChunkHash hash(seed, static_cast<uint64_t>(chunk));
  hash.copy(target, packed, whole);
  if (padded > whole) {
    std::memcpy(target + whole, packed + whole, static_cast<size_t>(value_bytes - whole));
    hash.update(packed + whole, padded - whole);
  }
  return hash.finish();
}

void xorInto(std::byte* target, const std::byte* source, int64_t bytes) {
  for (int64_t i = 0; i < bytes; ++i) target[i] ^= source[i];
}

}  // namespace poet::store
