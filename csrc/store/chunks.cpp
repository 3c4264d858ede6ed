#include "store/chunks.h"

#include <algorithm>
#include <cstring>
#include <utility>

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

// 64 bytes to `target`, past the caches (Note [Stores past the caches]), and into the parity.
void streamWithParity(std::byte* target, std::byte* parity, const std::byte* source) {
#ifdef __x86_64__
  auto* const to = reinterpret_cast<__m128i*>(target);
  auto* const sum = reinterpret_cast<__m128i*>(parity);
  for (int i = 0; i < 4; ++i) {
    const __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i*>(source) + i);
    _mm_stream_si128(to + i, words);
    _mm_storeu_si128(sum + i, _mm_xor_si128(_mm_loadu_si128(sum + i), words));
  }
#else
  std::memcpy(target, source, ChunkHash::kHashBytes);
  for (int64_t i = 0; i < ChunkHash::kHashBytes; ++i) parity[i] ^= source[i];
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

// Each lane has a register of its own where the loop over them is written out, which compilers do
// not do by themselves at -O2 (benchmarks/nightly.md, twenty-fourth session).
template <bool kCopy, bool kParity>
void ChunkHash::run(std::byte* target, std::byte* parity, const std::byte* source, int64_t bytes) {
  std::array<uint64_t, kLanes> lanes = lanes_;
  for (int64_t at = 0; at < bytes; at += kHashBytes) {
    if constexpr (kCopy && !kParity) std::memcpy(target + at, source + at, kHashBytes);
    if constexpr (kParity) streamWithParity(target + at, parity + at, source + at);
    const auto take = [&](size_t lane) {
      uint64_t word;
      std::memcpy(&word, source + at + lane * sizeof(word), sizeof(word));
      const uint64_t mixed = (lanes[lane] ^ word) * kFirstFactor;
      lanes[lane] = (mixed ^ (mixed >> 32)) * kSecondFactor;
    };
    [&]<size_t... kLane>(std::index_sequence<kLane...>) { (take(kLane), ...); }
    (std::make_index_sequence<kLanes>{});
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
