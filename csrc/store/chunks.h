// How a value is cut into chunks, and their checksums and parity. Internal to the store.
//
// A slot on the file: the value's bytes, padded with zeros to whole blocks, in chunks of equal
// length (the last may be shorter), then one chunk that is the XOR of them all.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace poet::store {

inline constexpr int64_t kBlockBytes = 4096;              // alignment of direct transfers
inline constexpr int64_t kLargestChunkBytes = 256 << 10;  // parity of 3 % from 8 MiB on

constexpr int64_t roundUpToBlock(int64_t bytes) {
  return (bytes + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
}

class ChunkLayout {
 public:
  explicit ChunkLayout(int64_t value_bytes);

  int64_t valueBytes() const { return value_bytes_; }
  int64_t dataBytes() const { return data_bytes_; }    // with padding
  int64_t chunkBytes() const { return chunk_bytes_; }  // of every chunk but the last
  int64_t chunkCount() const { return chunk_count_; }  // without parity
  int64_t fileBytes() const { return data_bytes_ + parityBytes(); }
  int64_t parityBytes() const { return chunk_count_ == 0 ? 0 : chunk_bytes_; }
  int64_t chunkOffset(int64_t chunk) const { return chunk * chunk_bytes_; }
  // With padding, and without.
  int64_t bytesOfChunk(int64_t chunk) const;
  int64_t valueBytesOfChunk(int64_t chunk) const;

 private:
  int64_t value_bytes_ = 0;
  int64_t data_bytes_ = 0;
  int64_t chunk_bytes_ = 0;
  int64_t chunk_count_ = 0;
};

// Checksum of 64 bits over multiples of 64 bytes, in eight lanes.
//
// Note [Checksum]
// A lane takes in a word by an exclusive or and then mixes itself by multiply, shift, multiply, all
// one-to-one: values that differ in one word only, however many bits, never have equal checksums.
// Other differences collide with a chance of about 2^-64. One multiplication alone would leave the
// highest bit where it is, and a second flipped bit in the lane's next word could undo the first.
// The seed holds the slot's and the chunk's number: bytes of an earlier value, or of another place,
// are damage too.
//
// Note [Stores past the caches]
// What is copied on the way out is read next by the disk, or by whatever carries its transfers
// out, and by this processor never: such copies are written past the caches. Lines that another
// core has just read from a buffer are dear to write again: copying was a third as fast while a
// disk's transfers were under way (docs/store.md).
class ChunkHash {
 public:
  ChunkHash(uint64_t seed, uint64_t index);

  // `bytes` is a multiple of kHashBytes. Nothing needs an alignment but the target of
  // copyWithParity, one of 16 bytes.
  void update(const std::byte* source, int64_t bytes);
  void copy(std::byte* target, const std::byte* source, int64_t bytes);
  void copyWithParity(std::byte* target, std::byte* parity, const std::byte* source, int64_t bytes);
  uint64_t finish() const;

  static constexpr int kLanes = 8;
  static constexpr int64_t kHashBytes = kLanes * 8;

 private:
  template <bool kCopy, bool kParity>
  void run(std::byte* target, std::byte* parity, const std::byte* source, int64_t bytes);

  std::array<uint64_t, kLanes> lanes_;
};

// Copies a chunk's value bytes to an aligned buffer, pads it to whole blocks, and XORs it into the
// parity. Returns its checksum.
uint64_t packChunk(const ChunkLayout& layout, int64_t chunk, uint64_t seed, const std::byte* value,
                   std::byte* target, std::byte* parity);
// Copies a chunk that was read back to the value. Returns the checksum of what was read.
uint64_t unpackChunk(const ChunkLayout& layout, int64_t chunk, uint64_t seed,
                     const std::byte* packed, std::byte* value);
void xorInto(std::byte* target, const std::byte* source, int64_t bytes);

}  // namespace poet::store
