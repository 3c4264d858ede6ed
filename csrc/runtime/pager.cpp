#include "runtime/pager.h"

#include <c10/core/CPUAllocator.h>

#include <utility>

#include "graph/error.h"
#include "store/stopwatch.h"

namespace poet {
namespace {

const void* dataOf(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

}  // namespace

bool Pager::write(ValueId v, const c10::StorageImpl& storage, uint64_t content_hash) {
  if (store_ == nullptr || failures_in_a_row_ >= kFailuresAllowed) {
    ++counters_.skipped_page_outs;
    return false;
  }
  const auto bytes = static_cast<int64_t>(storage.nbytes());
  const Stopwatch watch(&counters_.transfer_seconds);
  try {
    const int64_t slot = store_->write(dataOf(storage), bytes);
    adopt(v, {slot, bytes, content_hash});
  } catch (const StoreError& error) {
    ++counters_.failed_page_outs;
    noteFailure(error.what());
    return false;
  }
  failures_in_a_row_ = 0;
  counters_.paged_out_bytes += bytes;
  return true;
}

StorageHold Pager::read(const PageCopy& copy) {
  const Stopwatch watch(&counters_.transfer_seconds);
  c10::Allocator* allocator = c10::GetCPUAllocator();
  c10::DataPtr data = allocator->allocate(static_cast<size_t>(copy.bytes));
  try {
    store_->read(copy.slot, data.get());
  } catch (const StoreError& error) {
    ++counters_.failed_page_ins;
    counters_.trouble = error.what();
    throw;
  }
  counters_.paged_in_bytes += copy.bytes;
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(),
                                               static_cast<size_t>(copy.bytes), std::move(data),
                                               allocator, /*resizable=*/true);
}

void Pager::noteFailure(const std::string& what) {
  ++failures_in_a_row_;
  counters_.trouble = what;
  if (failures_in_a_row_ == kFailuresAllowed) {
    counters_.trouble += detail::message(" That makes ", kFailuresAllowed,
                                         " failures in a row: nothing is paged any more.");
  }
}

void Pager::adopt(ValueId v, PageCopy copy) {
  drop(v);
  copies_[static_cast<size_t>(v.index)] = copy;
  ++num_copies_;
}

PageCopy Pager::give(ValueId v) {
  if (!hasCopy(v)) return {};
  --num_copies_;
  return std::exchange(copies_[static_cast<size_t>(v.index)], PageCopy());
}

void Pager::drop(ValueId v) {
  if (hasCopy(v)) release(give(v));
}

void Pager::release(const PageCopy& copy) {
  if (copy.valid()) store_->release(copy.slot);
}

void Pager::end() {
  for (ValueId v(0); hasCopies() && static_cast<size_t>(v.index) < copies_.size(); ++v.index)
    drop(v);
  copies_.clear();
}

PagingCounters Pager::snapshot() const {
  PagingCounters all = counters_;
  if (store_ != nullptr) all.repaired_chunks = store_->counters().repaired_chunks;
  return all;
}

}  // namespace poet
