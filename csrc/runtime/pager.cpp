#include "runtime/pager.h"

#include <c10/core/CPUAllocator.h>

#include <exception>
#include <utility>

#include "graph/error.h"
#include "store/stopwatch.h"

namespace poet {
namespace {

const void* dataOf(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
}

StorageHold freshStorage(int64_t bytes) {
  c10::Allocator* allocator = c10::GetCPUAllocator();
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(bytes),
      allocator->allocate(static_cast<size_t>(bytes)), allocator, /*resizable=*/true);
}

}  // namespace

// ------------------------------------------------------------------------------------------------
// a step

void Pager::begin(size_t values) {
  copies_.assign(values, PageCopy());
  arriving_.assign(values, Arrival());
}

void Pager::resize(size_t values) {
  copies_.resize(values);
  arriving_.resize(values);
}

void Pager::end() {
  for (ValueId v(0); (hasCopies() || num_arriving_ > 0) &&
                     static_cast<size_t>(v.index) < copies_.size();
       ++v.index)
    drop(v);
  copies_.clear();
  arriving_.clear();
}

// ------------------------------------------------------------------------------------------------
// out

bool Pager::write(ValueId v, StorageHold storage, uint64_t content_hash) {
  if (queue_ == nullptr || failures_in_a_row_ >= kFailuresAllowed) {
    ++counters_.skipped_page_outs;
    return false;
  }
  const auto bytes = static_cast<int64_t>(storage->nbytes());
  TransferQueue::Ticket ticket = queue_->write(dataOf(*storage), bytes);
  adopt(v, {-1, bytes, content_hash, std::move(ticket), std::move(storage)});
  return true;
}

void Pager::finishWriting(PageCopy& copy) {
  const StorageHold source = std::move(copy.source);  // goes when the transfer has
  const TransferQueue::Ticket ticket = std::move(copy.writing);
  try {
    const Stopwatch watch(&counters_.waited_seconds);
    copy.slot = queue_->wait(ticket);
  } catch (const std::exception& error) {
    ++counters_.failed_page_outs;
    noteFailure(error.what());
    return;
  }
  failures_in_a_row_ = 0;
  counters_.paged_out_bytes += copy.bytes;
}

bool Pager::settle(ValueId v) {
  if (!hasCopy(v)) return false;
  PageCopy& copy = copies_[static_cast<size_t>(v.index)];
  if (copy.writing != nullptr) finishWriting(copy);
  if (!copy.valid()) --num_copies_;
  return copy.valid();
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
  copies_[static_cast<size_t>(v.index)] = std::move(copy);
  ++num_copies_;
}

PageCopy Pager::give(ValueId v) {
  cancelRead(v);
  if (!settle(v)) return {};
  --num_copies_;
  return std::exchange(copies_[static_cast<size_t>(v.index)], PageCopy());
}

void Pager::drop(ValueId v) {
  cancelRead(v);
  if (hasCopy(v)) release(give(v));
}

void Pager::release(const PageCopy& copy) {
  if (copy.slot >= 0) queue_->release(copy.slot);
}

// ------------------------------------------------------------------------------------------------
// in

void Pager::beginRead(ValueId v) {
  if (isArriving(v) || !settle(v)) return;
  Arrival arrival;
  arrival.data = freshStorage(copyOf(v).bytes);
  arrival.ticket = queue_->read(copyOf(v).slot, arrival.data->mutable_data());
  arriving_[static_cast<size_t>(v.index)] = std::move(arrival);
  ++num_arriving_;
}

StorageHold Pager::finishReading(Arrival arrival) {
  try {
    const Stopwatch watch(&counters_.waited_seconds);
    queue_->wait(arrival.ticket);
  } catch (const StoreError& error) {
    ++counters_.failed_page_ins;
    counters_.trouble = error.what();
    throw;
  }
  counters_.paged_in_bytes += static_cast<int64_t>(arrival.data->nbytes());
  return std::move(arrival.data);
}

StorageHold Pager::arrive(ValueId v) {
  --num_arriving_;
  return finishReading(std::exchange(arriving_[static_cast<size_t>(v.index)], Arrival()));
}

void Pager::cancelRead(ValueId v) {
  if (!isArriving(v)) return;
  try {
    arrive(v);
  } catch (const StoreError&) {
    // Nobody wanted it; whoever does will hear of it.
  }
}

StorageHold Pager::read(const PageCopy& copy) {
  Arrival arrival;
  arrival.data = freshStorage(copy.bytes);
  arrival.ticket = queue_->read(copy.slot, arrival.data->mutable_data());
  return finishReading(std::move(arrival));
}

PagingCounters Pager::snapshot() const {
  PagingCounters all = counters_;
  if (queue_ != nullptr) {
    const StoreCounters store = queue_->counters();
    all.repaired_chunks = store.repaired_chunks;
    all.transfer_seconds = store.read_seconds + store.write_seconds;
  }
  return all;
}

}  // namespace poet
