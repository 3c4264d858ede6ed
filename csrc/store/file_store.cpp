#include "store/file_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "store/io_hooks.h"

namespace poet::store {
namespace {

// Each has been tried several times: a dead disk is told soon, whatever the value's length.
constexpr int kMostFailedParts = 2;
constexpr int64_t kLongestValueBytes = int64_t{1} << 60;

int64_t chunksPerPart(const ChunkLayout& layout) {
  const int64_t bytes = std::clamp(layout.dataBytes() / Pipeline::kParts, Pipeline::kLeastPartBytes,
                                   Pipeline::kPartBytes);
  return std::min((bytes + layout.chunkBytes() - 1) / layout.chunkBytes(),
                  Pipeline::kPartBytes / layout.chunkBytes());
}

// The last part of a value that is written carries its parity.
int64_t partBytes(const ChunkLayout& layout) {
  return std::min(chunksPerPart(layout), layout.chunkCount()) * layout.chunkBytes() +
         layout.parityBytes();
}

uint64_t checksumOfParity(const ChunkLayout& layout, uint64_t seed, const std::byte* parity) {
  ChunkHash hash(seed, static_cast<uint64_t>(layout.chunkCount()));
  hash.update(parity, layout.parityBytes());
  return hash.finish();
}

void checkNotCancelled(const PageTransfer& transfer) {
  POET_CHECK_AS(StoreError, !transfer.is_cancelled, "poet: the transfer was cancelled");
}

}  // namespace

FileStore::FileStore(const std::string& directory, PipelineOptions options)
    : file_(directory, options.direct), owner_(getpid()), pipeline_(&file_, std::move(options)) {}

FileStore::Slot& FileStore::at(int64_t slot) {
  const auto found = slots_.find(slot);
  POET_INTERNAL_ASSERT(found != slots_.end(), "the page store has no slot ", slot);
  return found->second;
}

const FileStore::Slot& FileStore::at(int64_t slot) const {
  return const_cast<FileStore*>(this)->at(slot);
}

void FileStore::makeRoomForParity(int64_t bytes) {
  if (parity_ && parity_->bytes() >= bytes) return;
  parity_ = nullptr;
  parity_ = std::make_unique<AlignedBuffer>(bytes);
}

int64_t FileStore::bytesOf(int64_t slot) const { return at(slot).layout.valueBytes(); }

int64_t FileStore::bufferBytes() const {
  return pipeline_.bufferBytes() + (parity_ ? parity_->bytes() : 0) + checksum_bytes_ +
         slotsInUse() * static_cast<int64_t>(sizeof(Slot));
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

// ------------------------------------------------------------------------------------------------
// out

class FileStore::WriteTransfer final : public PartedTransfer {
 public:
  WriteTransfer(FileStore& store, Slot slot, const void* value, PageTransfer& told)
      : store_(store),
        slot_(std::move(slot)),
        value_(static_cast<const std::byte*>(value)),
        told_(told) {
    slot_.checksums.reserve(static_cast<size_t>(slot_.layout.chunkCount()) + 1);
    store_.writing_.begin();
  }
  ~WriteTransfer() override { store_.writing_.end(); }

  bool hasMore() const override {
    return next_chunk_ < slot_.layout.chunkCount() && !told_.is_cancelled;
  }
  int64_t bufferBytes() const override { return partBytes(slot_.layout); }

  // The parity's place is right behind the data's, so that the last part takes both.
  void prepare(Part& part) override {
    const ChunkLayout& layout = slot_.layout;
    if (next_chunk_ == 0) store_.makeRoomForParity(layout.parityBytes());
    std::byte* const parity = store_.parity_->data();
    if (next_chunk_ == 0) {
      slot_.extent = store_.takeExtent(layout.fileBytes());
      beginTransfer(Transfer::kWrite);
      std::memset(parity, 0, static_cast<size_t>(layout.parityBytes()));
    }
    const int64_t begin = layout.chunkOffset(next_chunk_);
    const int64_t end = std::min(next_chunk_ + chunksPerPart(layout), layout.chunkCount());
    int64_t filled = 0;
    for (; next_chunk_ < end; ++next_chunk_) {
      slot_.checksums.push_back(
          packChunk(layout, next_chunk_, slot_.seed, value_, part.buffer + filled, parity));
      filled += layout.bytesOfChunk(next_chunk_);
    }
    if (end == layout.chunkCount()) {
      slot_.checksums.push_back(checksumOfParity(layout, slot_.seed, parity));
      std::memcpy(part.buffer + filled, parity, static_cast<size_t>(layout.parityBytes()));
      filled += layout.parityBytes();
    }
    static_cast<IoRequest&>(part) =
        store_.file_.request(Transfer::kWrite, part.buffer, filled, slot_.extent.offset + begin);
  }

  void take(Part& part) override { store_.file_.finishWrite(part); }

  void finish(Part& /*scratch*/) override {
    if (next_chunk_ < slot_.layout.chunkCount()) checkNotCancelled(told_);
    const auto id = static_cast<int64_t>(slot_.seed);
    const auto checksum_bytes = static_cast<int64_t>(slot_.checksums.size() * sizeof(uint64_t));
    const int64_t bytes = slot_.layout.valueBytes();
    store_.slots_.emplace(id, std::move(slot_));
    store_.checksum_bytes_ += checksum_bytes;
    store_.counters_.writes += 1;
    store_.counters_.written_bytes += bytes;
    told_.slot = id;
  }

  void tell(std::exception_ptr error) noexcept override {
    if (error != nullptr) store_.extents_.giveBack(slot_.extent);
    told_.error = std::move(error);
    told_.is_over = true;
  }

 private:
  FileStore& store_;
  Slot slot_;
  const std::byte* const value_;
  PageTransfer& told_;
  int64_t next_chunk_ = 0;
};

void FileStore::beginWrite(const void* data, int64_t bytes, PageTransfer& transfer) {
  try {
    POET_CHECK(bytes >= 0 && bytes <= kLongestValueBytes, "page store: cannot write ", bytes,
               " bytes");
    checkOwner();
    Slot slot{ChunkLayout(bytes), {}, static_cast<uint64_t>(next_slot_), {}};
    ++next_slot_;
    pipeline_.begin(std::make_unique<WriteTransfer>(*this, std::move(slot), data, transfer));
  } catch (...) {
    transfer.error = std::current_exception();
    transfer.is_over = true;
  }
}

// ------------------------------------------------------------------------------------------------
// in

class FileStore::ReadTransfer final : public PartedTransfer {
 public:
  ReadTransfer(FileStore& store, int64_t id, void* value, PageTransfer& told)
      : store_(store),
        id_(id),
        slot_(store.at(id)),
        value_(static_cast<std::byte*>(value)),
        told_(told) {
    ++slot_.readers;
    store_.reading_.begin();
  }
  ~ReadTransfer() override {
    --slot_.readers;
    store_.reading_.end();
  }

  bool hasMore() const override {
    return next_chunk_ < slot_.layout.chunkCount() && !told_.is_cancelled;
  }
  int64_t bufferBytes() const override { return partBytes(slot_.layout); }

  void prepare(Part& part) override {
    const ChunkLayout& layout = slot_.layout;
    if (next_chunk_ == 0) beginTransfer(Transfer::kRead);
    const int64_t begin = layout.chunkOffset(next_chunk_);
    const int64_t end = std::min(next_chunk_ + chunksPerPart(layout), layout.chunkCount());
    const int64_t bytes = std::min(layout.chunkOffset(end), layout.dataBytes()) - begin;
    part.first_chunk = std::exchange(next_chunk_, end);
    part.end_chunk = end;
    static_cast<IoRequest&>(part) =
        store_.file_.request(Transfer::kRead, part.buffer, bytes, slot_.extent.offset + begin);
  }

  void take(Part& part) override {
    const auto failure = store_.file_.finishRead(part);
    if (failure) {
      last_failure_ = *failure;
      if (++failed_parts_ > kMostFailedParts) failDamaged("the file cannot be read");
    }
    const ChunkLayout& layout = slot_.layout;
    for (int64_t chunk = part.first_chunk; chunk < part.end_chunk; ++chunk) {
      const int64_t at = layout.chunkOffset(chunk) - layout.chunkOffset(part.first_chunk);
      if (failure || !unpack(chunk, part.buffer + at)) suspects_.push_back(chunk);
    }
  }

  void finish(Part& scratch) override {
    if (next_chunk_ < slot_.layout.chunkCount()) checkNotCancelled(told_);
    std::sort(suspects_.begin(), suspects_.end());
    std::optional<int64_t> damaged;
    for (const int64_t chunk : suspects_) {
      // What a second look finds whole was a transfer's fault, and not the file's.
      if (readChunk(chunk, scratch.buffer)) {
        ++store_.own_retries_;
        continue;
      }
      if (damaged) {
        failDamaged(
            detail::message("at least 2 of ", slot_.layout.chunkCount(), " chunks are damaged"));
      }
      damaged = chunk;
    }
    if (damaged) repair(*damaged, scratch.buffer);
    store_.counters_.reads += 1;
    store_.counters_.read_bytes += slot_.layout.valueBytes();
    told_.slot = id_;
  }

  void tell(std::exception_ptr error) noexcept override {
    told_.error = std::move(error);
    told_.is_over = true;
  }

 private:
  int64_t offsetOf(int64_t chunk) const {
    return slot_.extent.offset + slot_.layout.chunkOffset(chunk);
  }

  // Whether its bytes are what was written.
  bool unpack(int64_t chunk, const std::byte* packed) {
    return unpackChunk(slot_.layout, chunk, slot_.seed, packed, value_) ==
           slot_.checksums[static_cast<size_t>(chunk)];
  }

  bool readChunk(int64_t chunk, std::byte* buffer) {
    const int64_t bytes = slot_.layout.bytesOfChunk(chunk);
    if (const auto failure = store_.file_.read(buffer, bytes, offsetOf(chunk))) {
      last_failure_ = *failure;
      return false;
    }
    return unpack(chunk, buffer);
  }

  // All other chunks lie checked in `value_`: the damaged one is their XOR and the parity's.
  void repair(int64_t chunk, std::byte* rebuilt) {
    const ChunkLayout& layout = slot_.layout;
    const auto failure =
        store_.file_.read(rebuilt, layout.parityBytes(), slot_.extent.offset + layout.dataBytes());
    if (failure) last_failure_ = *failure;
    if (failure || checksumOfParity(layout, slot_.seed, rebuilt) != slot_.checksums.back()) {
      failDamaged("a chunk and the parity that would mend it are damaged");
    }
    for (int64_t other = 0; other < layout.chunkCount(); ++other) {
      if (other == chunk) continue;
      xorInto(rebuilt, value_ + layout.chunkOffset(other), layout.valueBytesOfChunk(other));
    }
    if (!unpack(chunk, rebuilt)) {
      failDamaged("a chunk does not match its checksum after it was rebuilt from the parity");
    }
    store_.counters_.repaired_chunks += 1;
    if (store_.owner_ != getpid()) return;  // the chunk's place may be another value's by now
    try {
      store_.file_.write(rebuilt, layout.bytesOfChunk(chunk), offsetOf(chunk));
    } catch (const StoreError&) {
      // The value is right all the same; the next read rebuilds it again, or says that it cannot.
    }
  }

  [[noreturn]] void failDamaged(const std::string& what) const {
    throw StoreError(detail::message(
        "poet: cannot read a value of ", slot_.layout.valueBytes(), " bytes back from offset ",
        slot_.extent.offset, " of the page file in '", store_.directory(), "': ", what,
        last_failure_.empty() ? "" : " (" + last_failure_ + ")", whyDamaged(),
        " A value that cannot be computed again is lost: then go on from a checkpoint, in a new "
        "process."));
  }

  std::string whyDamaged() const {
    if (store_.owner_ == getpid()) {
      return ". The file was changed from outside, or the disk is failing; pass page_dir= a "
             "directory on another disk.";
    }
    return detail::message(". The file is that of process ", store_.owner_, ", of which this one (",
                           getpid(),
                           ") is a fork, and which writes on: touch what is wanted here before the "
                           "parent's next step, or close the step (step.close()) before the fork.");
  }

  FileStore& store_;
  const int64_t id_;
  Slot& slot_;
  std::byte* const value_;
  PageTransfer& told_;
  int64_t next_chunk_ = 0;
  int failed_parts_ = 0;
  std::vector<int64_t> suspects_;  // chunks whose bytes are wrong, or could not be read
  std::string last_failure_;
};

void FileStore::beginRead(int64_t slot, void* data, PageTransfer& transfer) {
  try {
    pipeline_.begin(std::make_unique<ReadTransfer>(*this, slot, data, transfer));
  } catch (...) {
    transfer.error = std::current_exception();
    transfer.is_over = true;
  }
}

// ------------------------------------------------------------------------------------------------
// blocking

int64_t FileStore::finish(const PageTransfer& transfer) {
  while (!transfer.is_over) pipeline_.advance();
  if (transfer.error) std::rethrow_exception(transfer.error);
  return transfer.slot;
}

int64_t FileStore::write(const void* data, int64_t bytes) {
  PageTransfer transfer;
  beginWrite(data, bytes, transfer);
  return finish(transfer);
}

void FileStore::read(int64_t slot, void* data) {
  PageTransfer transfer;
  beginRead(slot, data, transfer);
  finish(transfer);
}

void FileStore::release(int64_t slot) {
  while (at(slot).readers > 0) pipeline_.advance();
  const Slot& released = at(slot);
  extents_.giveBack(released.extent);
  checksum_bytes_ -= static_cast<int64_t>(released.checksums.size() * sizeof(uint64_t));
  slots_.erase(slot);
}

}  // namespace poet::store
