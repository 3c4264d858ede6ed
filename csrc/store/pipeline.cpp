#include "store/pipeline.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "graph/error.h"
#include "store/page_store.h"

namespace poet::store {
namespace {

// Calls `step` of a transfer; what it throws is the transfer's end.
template <class Step>
void guarded(std::exception_ptr& error, Step&& step) {
  try {
    step();
  } catch (...) {
    if (error == nullptr) error = std::current_exception();
  }
}

}  // namespace

Pipeline::Pipeline(PageFile* file, PipelineOptions options)
    : file_(file), options_(std::move(options)), parts_(kParts), owner_(::getpid()) {
  for (Part& part : parts_) free_.push_back(&part);
}

Pipeline::~Pipeline() {
  if (owner_ != ::getpid()) static_cast<void>(engine_.release());  // its threads are not here
}

int64_t Pipeline::bufferBytes() const {
  int64_t bytes = 0;
  for (const Part& part : parts_) bytes += part.owned ? part.owned->bytes() : 0;
  return bytes;
}

// Tools that watch memory do not see what a ring writes: it is written once before.
void Pipeline::grow(Part& part, int64_t bytes) {
  if (part.owned && part.owned->bytes() >= bytes) return;
  part.owned = nullptr;
  try {
    part.owned = std::make_unique<AlignedBuffer>(bytes);
  } catch (const std::bad_alloc&) {
    throw StoreError(detail::message("poet: there is no memory for a buffer of ", bytes,
                                     " bytes, through which values go to the page file"));
  }
  part.buffer = part.owned->data();
  std::memset(part.buffer, 0, static_cast<size_t>(bytes));
}

void Pipeline::makeReady() {
  if (!isIdle()) return;
  if (owner_ != ::getpid()) {
    static_cast<void>(engine_.release());
    owner_ = ::getpid();
    engine_ = openEngine(IoPath::kBlocking, file_->isDirect(), kParts);
  }
  if (engine_ != nullptr && engine_->path() == IoPath::kRing && !file_->isDirect() &&
      options_.path == IoPath::kBest)
    engine_ = nullptr;  // the first transfer has shown that the file system has no O_DIRECT
  if (engine_ != nullptr) return;
  engine_ = options_.engine ? options_.engine(kParts)
                            : openEngine(options_.path, file_->isDirect(), kParts);
  if (engine_ == nullptr) engine_ = openEngine(IoPath::kBlocking, file_->isDirect(), kParts);
}

void Pipeline::begin(std::unique_ptr<PartedTransfer> transfer) {
  while (!takesMore()) advance();
  makeReady();
  under_way_.push_back(std::move(transfer));
  feeding_ = under_way_.back().get();
  // All that are free, and not just the next: what is written now is read through any of them, when
  // there may be less memory. Whether the next one is long enough its own turn says.
  std::exception_ptr too_soon;
  guarded(too_soon, [&] {
    for (Part* const part : free_) grow(*part, feeding_->bufferBytes());
  });
  feed();
}

void Pipeline::advance() {
  if (isIdle()) return;
  take(static_cast<Part&>(*engine_->take(/*waits=*/true)));
  feed();
}

void Pipeline::feed() {
  while (feeding_ != nullptr) {
    while (IoRequest* const over = engine_->take(/*waits=*/false)) take(static_cast<Part&>(*over));
    PartedTransfer& transfer = *feeding_;
    if (transfer.error_ != nullptr || !transfer.hasMore()) {
      feeding_ = nullptr;
      if (transfer.parts_under_way_ == 0) end(transfer);
      return;
    }
    if (free_.empty()) return;
    Part& part = *free_.back();
    guarded(transfer.error_, [&] {
      grow(part, transfer.bufferBytes());
      transfer.prepare(part);
    });
    if (transfer.error_ != nullptr) continue;
    free_.pop_back();
    part.transfer = &transfer;
    ++transfer.parts_under_way_;
    engine_->submit(&part);
  }
}

void Pipeline::take(Part& part) {
  PartedTransfer& transfer = *part.transfer;
  guarded(transfer.error_, [&] { transfer.take(part); });
  free_.push_back(&part);
  if (--transfer.parts_under_way_ == 0 && feeding_ != &transfer) end(transfer);
}

void Pipeline::end(PartedTransfer& transfer) {
  if (transfer.error_ == nullptr) {
    guarded(transfer.error_, [&] {
      grow(*free_.back(), transfer.bufferBytes());
      transfer.finish(*free_.back());
    });
  }
  const auto found = std::find_if(under_way_.begin(), under_way_.end(),
                                  [&](const auto& each) { return each.get() == &transfer; });
  const std::unique_ptr<PartedTransfer> ended = std::move(*found);
  under_way_.erase(found);
  ended->tell(ended->error_);
}

}  // namespace poet::store
