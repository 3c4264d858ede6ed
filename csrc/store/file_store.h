// PageStore on a PageFile. Internal to the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/chunks.h"
#include "store/extents.h"
#include "store/page_file.h"
#include "store/page_store.h"
#include "store/pipeline.h"
#include "store/stopwatch.h"

namespace poet::store {

// Values pass through the pipeline's buffers, in one pass that copies, sums and builds the parity.
class FileStore final : public PageStore {
 public:
  explicit FileStore(const std::string& directory, PipelineOptions options = {});

  void reserve(int64_t bytes) override;
  int64_t write(const void* data, int64_t bytes) override;
  void read(int64_t slot, void* data) override;
  void release(int64_t slot) override;

  void beginWrite(const void* data, int64_t bytes, PageTransfer& transfer) override;
  void beginRead(int64_t slot, void* data, PageTransfer& transfer) override;
  bool takesMore() const override { return pipeline_.takesMore(); }
  void advance() override { pipeline_.advance(); }

  int64_t bytesOf(int64_t slot) const override;
  int64_t slotsInUse() const override { return static_cast<int64_t>(slots_.size()); }
  int64_t bufferBytes() const override;
  double cachedShare() const override { return file_.cachedShare(); }
  const StoreCounters& counters() const override;
  const std::string& directory() const override { return file_.directory(); }

  bool isDirect() const { return file_.isDirect(); }
  IoPath path() const { return pipeline_.path(); }
  int64_t fileBytes() const { return file_.bytes(); }

 private:
  class WriteTransfer;
  class ReadTransfer;
  struct Slot {
    ChunkLayout layout;
    Extent extent;
    uint64_t seed = 0;
    std::vector<uint64_t> checksums;  // of the chunks, then of the parity
    int readers = 0;                  // under way
  };

  void makeRoomForParity(int64_t bytes);
  Slot& at(int64_t slot);
  const Slot& at(int64_t slot) const;
  // A fork shares the file with the process that opened it, and knows nothing of what that one
  // writes: it must not write.
  void checkOwner() const;
  Extent takeExtent(int64_t bytes);
  // Goes on until the transfer is over; the slot.
  int64_t finish(const PageTransfer& transfer);

  PageFile file_;
  ExtentTable extents_;
  std::unique_ptr<AlignedBuffer> parity_;    // of the value that is being written out
  std::unordered_map<int64_t, Slot> slots_;  // never iterated
  int64_t next_slot_ = 0;
  const int64_t owner_;  // process id
  int64_t checksum_bytes_ = 0;
  int64_t own_retries_ = 0;
  mutable StoreCounters counters_;
  BusyTime writing_{&counters_.write_seconds};
  BusyTime reading_{&counters_.read_seconds};
  Pipeline pipeline_;
};

}  // namespace poet::store
