#include "store/file_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "store/io_hooks.h"
#include "store/stopwatch.h"

namespace poet::store {
namespace {

constexpr int64_t kTransferBytes = 2 << 20;  // a multiple of every chunk's length is cut from it
// Each has been tried several times: a dead disk is told soon, whatever the value's length.
constexpr int kMostFailedTransfers = 2;
constexpr int64_t kLongestValueBytes = int64_t{1} << 60;

int64_t chunksPerTransfer(const ChunkLayout& layout) {
  return kTransferBytes / layout.chunkBytes();
}

uint64_t checksumOfParity(const ChunkLayout& layout, uint64_t seed, const std::byte* parity) {
  ChunkHash hash(seed, static_cast<uint64_t>(layout.chunkCount()));
  hash.update(parity, layout.parityBytes());
  return hash.finish();
}

}  // namespace

// The parity's place is right behind the data's, so that the last transfer may take both.
FileStore::FileStore(const std::string& directory, bool direct)
    : file_(directory, direct),
      buffer_(kTransferBytes + 2 * kLargestChunkBytes),
      owner_(getpid()) {}

const FileStore::Slot& FileStore::at(int64_t slot) const {
  const auto found = slots_.find(slot);
  POET_INTERNAL_ASSERT(found != slots_.end(), "the page store has no slot ", slot);
  return found->second;
}

int64_t FileStore::bytesOf(int64_t slot) const { return at(slot).layout.valueBytes(); }

int64_t FileStore::bufferBytes() const {
  return buffer_.bytes() + checksum_bytes_ + slotsInUse() * static_cast<int64_t>(sizeof(Slot));
}

const StoreCounters& FileStore::counters() const {
  counters_.retries = own_retries_ + file_.retries();
  return counters_;
}

void FileStore::checkOwner() const {
  POET_CHECK_AS(
      StoreError, owner_ == getpid(), "the page file in '", directory(), "' belongs to process ",
      owner_, ", of which this one (", getpid(),
      ") is a fork: it may read there and not write. Values stay in memory. Wrap the step "
      "again in this process to page in a file of its own.");
}

void FileStore::reserve(int64_t bytes) {
  checkOwner();
  POET_CHECK(bytes >= 0 && bytes <= kLongestValueBytes, "page store: cannot reserve ", bytes,
             " bytes");
  if (bytes == 0) return;
  // Parity and padding: at most an eighth of a value of 64 KiB or more, and a large value's parity.
  const int64_t wanted = roundUpToBlock(bytes + bytes / 8 + kLargestChunkBytes);
  if (extents_.largestFree() >= wanted) return;
  const int64_t end = file_.bytes();
  const int64_t grown = extents_.tail(end).offset + wanted;
  file_.growTo(grown);
  extents_.giveBack({end, grown - end});
}

Extent FileStore::takeExtent(int64_t bytes) {
  if (const auto offset = extents_.take(bytes)) return {*offset, bytes};
  const int64_t end = file_.bytes();
  const int64_t grown = extents_.tail(end).offset + bytes;
  file_.growTo(grown);
  extents_.giveBack({end, grown - end});
  return {extents_.take(bytes).value(), bytes};
}

int64_t FileStore::write(const void* data, int64_t bytes) {
  POET_CHECK(bytes >= 0 && bytes <= kLongestValueBytes, "page store: cannot write ", bytes,
             " bytes");
  checkOwner();
  const Stopwatch stopwatch(&counters_.write_seconds);
  Slot slot{ChunkLayout(bytes), {}, static_cast<uint64_t>(next_slot_), {}};
  if (bytes > 0) {
    slot.extent = takeExtent(slot.layout.fileBytes());
    try {
      beginTransfer(Transfer::kWrite);
      writeChunks(slot, static_cast<const std::byte*>(data));
    } catch (...) {
      extents_.giveBack(slot.extent);
      throw;
    }
  }
  checksum_bytes_ += static_cast<int64_t>(slot.checksums.size() * sizeof(uint64_t));
  slots_.emplace(next_slot_, std::move(slot));
  counters_.writes += 1;
  counters_.written_bytes += bytes;
  return next_slot_++;
}

void FileStore::writeChunks(Slot& slot, const std::byte* value) {
  const ChunkLayout& layout = slot.layout;
  std::byte* const parity = buffer_.data() + kTransferBytes + kLargestChunkBytes;
  std::memset(parity, 0, static_cast<size_t>(layout.parityBytes()));
  slot.checksums.reserve(static_cast<size_t>(layout.chunkCount()) + 1);
  for (int64_t chunk = 0; chunk < layout.chunkCount();) {
    const int64_t begin = layout.chunkOffset(chunk);
    const int64_t end = std::min(chunk + chunksPerTransfer(layout), layout.chunkCount());
    int64_t filled = 0;
    for (; chunk < end; ++chunk) {
      slot.checksums.push_back(
          packChunk(layout, chunk, slot.seed, value, buffer_.data() + filled, parity));
      filled += layout.bytesOfChunk(chunk);
    }
    if (end == layout.chunkCount()) {
      std::memcpy(buffer_.data() + filled, parity, static_cast<size_t>(layout.parityBytes()));
      filled += layout.parityBytes();
    }
    file_.write(buffer_.data(), filled, slot.extent.offset + begin);
  }
  slot.checksums.push_back(checksumOfParity(layout, slot.seed, parity));
}

void FileStore::read(int64_t id, void* data) {
  const Stopwatch stopwatch(&counters_.read_seconds);
  const Slot& slot = at(id);
  if (slot.layout.valueBytes() > 0) {
    beginTransfer(Transfer::kRead);
    auto* const value = static_cast<std::byte*>(data);
    std::optional<int64_t> damaged;
    for (const int64_t chunk : readChunks(slot, value)) {
      // What a second look finds whole was a transfer's fault, and not the file's.
      if (readChunk(slot, chunk, value)) {
        ++own_retries_;
        continue;
      }
      if (damaged) {
        failDamaged(slot, detail::message("at least 2 of ", slot.layout.chunkCount(),
                                          " chunks are damaged"));
      }
      damaged = chunk;
    }
    if (damaged) repair(slot, *damaged, value);
  }
  counters_.reads += 1;
  counters_.read_bytes += slot.layout.valueBytes();
}

std::vector<int64_t> FileStore::readChunks(const Slot& slot, std::byte* value) {
  const ChunkLayout& layout = slot.layout;
  last_read_failure_.clear();
  std::vector<int64_t> damaged;
  int failed_transfers = 0;
  for (int64_t chunk = 0; chunk < layout.chunkCount();) {
    const int64_t begin = layout.chunkOffset(chunk);
    const int64_t end = std::min(chunk + chunksPerTransfer(layout), layout.chunkCount());
    const int64_t bytes = std::min(layout.chunkOffset(end), layout.dataBytes()) - begin;
    const auto failure = file_.read(buffer_.data(), bytes, slot.extent.offset + begin);
    if (failure) {
      last_read_failure_ = *failure;
      if (++failed_transfers > kMostFailedTransfers) failDamaged(slot, "the file cannot be read");
    }
    for (; chunk < end; ++chunk) {
      const std::byte* const packed = buffer_.data() + layout.chunkOffset(chunk) - begin;
      if (failure || unpackChunk(layout, chunk, slot.seed, packed, value) !=
                         slot.checksums[static_cast<size_t>(chunk)]) {
        damaged.push_back(chunk);
      }
    }
  }
  return damaged;
}

bool FileStore::readChunk(const Slot& slot, int64_t chunk, std::byte* value) {
  const ChunkLayout& layout = slot.layout;
  if (const auto failure = file_.read(buffer_.data(), layout.bytesOfChunk(chunk),
                                      slot.extent.offset + layout.chunkOffset(chunk))) {
    last_read_failure_ = *failure;
    return false;
  }
  return unpackChunk(layout, chunk, slot.seed, buffer_.data(), value) ==
         slot.checksums[static_cast<size_t>(chunk)];
}

// All other chunks lie checked in `value`: the damaged one is their XOR and the parity's.
void FileStore::repair(const Slot& slot, int64_t chunk, std::byte* value) {
  const ChunkLayout& layout = slot.layout;
  std::byte* const rebuilt = buffer_.data();
  const auto failure =
      file_.read(rebuilt, layout.parityBytes(), slot.extent.offset + layout.dataBytes());
  if (failure) last_read_failure_ = *failure;
  if (failure || checksumOfParity(layout, slot.seed, rebuilt) != slot.checksums.back()) {
    failDamaged(slot, "a chunk and the parity that would mend it are damaged");
  }
  for (int64_t other = 0; other < layout.chunkCount(); ++other) {
    if (other == chunk) continue;
    xorInto(rebuilt, value + layout.chunkOffset(other), layout.valueBytesOfChunk(other));
  }
  if (unpackChunk(layout, chunk, slot.seed, rebuilt, value) !=
      slot.checksums[static_cast<size_t>(chunk)]) {
    failDamaged(slot, "a chunk does not match its checksum after it was rebuilt from the parity");
  }
  counters_.repaired_chunks += 1;
  if (owner_ != getpid()) return;  // the chunk's place may be another value's by now
  try {
    file_.write(rebuilt, layout.bytesOfChunk(chunk),
                slot.extent.offset + layout.chunkOffset(chunk));
  } catch (const StoreError&) {
    // The value is right all the same; the next read rebuilds it again, or says that it cannot.
  }
}

void FileStore::failDamaged(const Slot& slot, const std::string& what) const {
  throw StoreError(detail::message(
      "poet: cannot read a value of ", slot.layout.valueBytes(), " bytes back from offset ",
      slot.extent.offset, " of the page file in '", directory(), "': ", what,
      last_read_failure_.empty() ? "" : " (" + last_read_failure_ + ")",
      ". The file was changed from outside, or the disk is failing; pass page_dir= a directory on "
      "another disk. A value that cannot be computed again is lost: then go on from a checkpoint, "
      "in "
      "a new process."));
}

void FileStore::release(int64_t slot) {
  const Slot& released = at(slot);
  extents_.giveBack(released.extent);
  checksum_bytes_ -= static_cast<int64_t>(released.checksums.size() * sizeof(uint64_t));
  slots_.erase(slot);
}

}  // namespace poet::store
