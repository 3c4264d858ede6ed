// Pipeline: transfers of values cut into parts, several of which are under way at once. Internal to
// the store.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/chunks.h"
#include "store/io_engine.h"
#include "store/page_file.h"

namespace poet::store {

class PartedTransfer;

// A request, and the buffer through which its bytes go.
struct Part : IoRequest {
  std::byte* buffer = nullptr;           // PartedTransfer::bufferBytes() long, or longer
  std::unique_ptr<AlignedBuffer> owned;  // what it lies in
  PartedTransfer* transfer = nullptr;
  int64_t first_chunk = 0;
  int64_t end_chunk = 0;
};

// A value's way to or from the file. The pipeline calls, one at a time: prepare() for each part, in
// order; take() when that part is over, in any order; finish() after all of them. What they throw
// ends the transfer.
class PartedTransfer {
 public:
  virtual ~PartedTransfer() = default;

  virtual bool hasMore() const = 0;
  // That a part of it needs, at most, and finish() of its scratch.
  virtual int64_t bufferBytes() const = 0;
  // Makes the part a request.
  virtual void prepare(Part& part) = 0;
  virtual void take(Part& part) = 0;
  // `scratch` is nobody's. Not after a failure.
  virtual void finish(Part& scratch) = 0;
  // Tells whoever asked: last of all, with what went wrong.
  virtual void tell(std::exception_ptr error) noexcept = 0;

 private:
  friend class Pipeline;
  int parts_under_way_ = 0;
  std::exception_ptr error_;
};

struct PipelineOptions {
  bool direct = true;  // where the file system has it; false is for tests
  IoPath path = IoPath::kBest;
  // Tests' own engine, in place of `path`.
  std::function<std::unique_ptr<IoEngine>(int depth)> engine = nullptr;
};

// Note [Parts]
// A part is a few whole chunks: while the disk writes one the next is copied and summed, and while
// one that was read is checked the disk reads the next. The next transfer begins where the last one
// has no more parts, so that between two of them the disk does not rest either.
//
// The parts' buffers are all that there is: where none is free, takesMore() is false, and advance()
// sleeps until one is. They grow to what the largest value so far needed, and values of less than
// kParts * kPartBytes are cut into kParts parts: together the buffers are hardly larger than the
// largest value, or kParts * kLeastPartBytes where that is more. Not thread-safe. A fork finds it
// idle, and carries out its own requests.
class Pipeline {
 public:
  static constexpr int64_t kPartBytes = 512 << 10;  // docs/store.md has what others gave
  static constexpr int64_t kLeastPartBytes = 128 << 10;
  static constexpr int kParts = 4;

  // `file` must outlive it.
  Pipeline(PageFile* file, PipelineOptions options);
  ~Pipeline();
  Pipeline(const Pipeline&) = delete;
  Pipeline& operator=(const Pipeline&) = delete;

  bool isIdle() const { return under_way_.empty(); }
  // Whether begin() would find a buffer.
  bool takesMore() const { return feeding_ == nullptr && !free_.empty(); }
  void begin(std::unique_ptr<PartedTransfer> transfer);
  // Waits until a part is over, and goes on from there. Nothing where it is idle.
  void advance();

  int64_t bufferBytes() const;
  // kBest before the first transfer.
  IoPath path() const { return engine_ == nullptr ? IoPath::kBest : engine_->path(); }

 private:
  void makeReady();
  static void grow(Part& part, int64_t bytes);
  void feed();
  void take(Part& part);
  void end(PartedTransfer& transfer);

  PageFile* const file_;
  const PipelineOptions options_;
  std::vector<Part> parts_;
  std::vector<Part*> free_;
  std::vector<std::unique_ptr<PartedTransfer>> under_way_;
  PartedTransfer* feeding_ = nullptr;  // the one that has more parts than were submitted
  std::unique_ptr<IoEngine> engine_;
  pid_t owner_;  // of the engine
};

}  // namespace poet::store
