#include "trace/content_hash.h"

#include <array>
#include <cstring>

#include "graph/error.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace poet {
namespace {

constexpr uint64_t kFactor = 0x9e3779b97f4a7c15ULL;

template <size_t kSize>
uint64_t finish(const std::array<uint64_t, kSize>& lanes, size_t bytes) {
  uint64_t hash = bytes;
  for (const uint64_t lane : lanes) hash = (hash ^ lane ^ (lane >> 29)) * kFactor;
  return hash ^ (hash >> 32);
}

}  // namespace

// Eight lanes, each a chain of multiplications: that many are under way at once.
uint64_t portableContentHash(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::array<uint64_t, 8> lanes = {1, 2, 3, 4, 5, 6, 7, 8};
  const auto take = [&](const unsigned char* from) {
    std::array<uint64_t, 8> words;
    std::memcpy(words.data(), from, sizeof(words));
    for (size_t lane = 0; lane < lanes.size(); ++lane) {
      lanes[lane] = (lanes[lane] ^ words[lane]) * kFactor;
      lanes[lane] ^= lanes[lane] >> 32;
    }
  };
  size_t i = 0;
  for (; i + sizeof(lanes) <= size; i += sizeof(lanes)) take(bytes + i);
  if (i < size) {
    std::array<unsigned char, sizeof(lanes)> rest = {};
    std::memcpy(rest.data(), bytes + i, size - i);
    take(rest.data());
  }
  return finish(lanes, size);
}

#if defined(__x86_64__)

namespace {
constexpr size_t kLanes = 16;  // as many words are a round
constexpr size_t kRoundBytes = kLanes * sizeof(uint64_t);
}  // namespace

bool hasVectorContentHash() { return __builtin_cpu_supports("avx2") != 0; }

// As XXH3 accumulates (github.com/Cyan4973/xxHash, doc/xxhash_spec.md): the product of a word's
// halves under a key, and in the neighbouring lane the word itself, so that words which differ in
// one place only never have equal sums. The key is another one in each round: no two places of the
// memory count alike.
__attribute__((target("avx2"))) uint64_t vectorContentHash(const void* data, size_t size) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  __m256i sums[4], keys[4];  // NOLINT(modernize-avoid-c-arrays): the type is no template argument
  for (int j = 0; j < 4; ++j) {
    const auto seed = static_cast<uint64_t>(4 * j + 1);
    const auto word = [&](uint64_t more) { return static_cast<int64_t>((seed + more) * kFactor); };
    sums[j] = _mm256_set1_epi64x(static_cast<int64_t>(seed));
    keys[j] = _mm256_set_epi64x(word(0), word(1), word(2), word(3));
  }
  const __m256i next = _mm256_set1_epi64x(static_cast<int64_t>(0xd6e8feb86659fd93ULL));
  const auto take_part = [&](const unsigned char* from, int j)
      __attribute__((target("avx2"), always_inline)) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + j);
    const __m256i keyed = _mm256_xor_si256(words, keys[j]);
    const __m256i product = _mm256_mul_epu32(keyed, _mm256_shuffle_epi32(keyed, 0x31));
    const __m256i of_neighbour = _mm256_shuffle_epi32(words, 0x4e);
    sums[j] = _mm256_add_epi64(sums[j], _mm256_add_epi64(product, of_neighbour));
    keys[j] = _mm256_add_epi64(keys[j], next);
  };
  // Not a loop, which the compiler leaves as one, and the sums in memory: half as fast.
  const auto take = [&](const unsigned char* from) __attribute__((target("avx2"))) {
    take_part(from, 0);
    take_part(from, 1);
    take_part(from, 2);
    take_part(from, 3);
  };
  size_t i = 0;
  for (; i + kRoundBytes <= size; i += kRoundBytes) take(bytes + i);
  if (i < size) {
    alignas(32) std::array<unsigned char, kRoundBytes> rest = {};
    std::memcpy(rest.data(), bytes + i, size - i);
    take(rest.data());
  }
  std::array<uint64_t, kLanes> lanes;
  std::memcpy(lanes.data(), sums, sizeof(lanes));
  return finish(lanes, size);
}

uint64_t contentHash(const void* data, size_t size) {
  static const bool vector = hasVectorContentHash();
  return vector ? vectorContentHash(data, size) : portableContentHash(data, size);
}

#else

bool hasVectorContentHash() { return false; }

uint64_t vectorContentHash(const void*, size_t) {
  POET_INTERNAL_ASSERT(false, "there is no vector form on this processor");
}

uint64_t contentHash(const void* data, size_t size) { return portableContentHash(data, size); }

#endif

}  // namespace poet
