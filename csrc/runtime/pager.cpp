#include "runtime/pager.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "graph/heap_bytes.h"
#include "store/stopwatch.h"

namespace poet {
namespace {

void* dataOf(c10::StorageImpl& storage) { return storage._mutable_data_ptr_no_checks().get(); }

}  // namespace

StorageHold Pager::freshStorage(int64_t bytes) const {
  const c10::OptionalDeviceGuard guard(device_.is_cpu() ? std::nullopt
                                                        : std::optional<c10::Device>(device_));
  c10::Allocator* allocator = c10::GetAllocator(device_.type());
  return c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), static_cast<size_t>(bytes),
      allocator->allocate(static_cast<size_t>(bytes)), allocator, /*resizable=*/true);
}

// ------------------------------------------------------------------------------------------------
// a step

void Pager::end() {
  while (!arriving_.empty()) cancelRead(arriving_.begin()->first);
  while (!leaving_.empty()) drop(leaving_.begin()->first);
  while (!copies_.empty()) drop(copies_.begin()->first);
}

// ------------------------------------------------------------------------------------------------
// out

bool Pager::write(ValueId v, const StorageHold& storage, uint64_t content_hash) {
  if (queue_ == nullptr || failures_in_a_row_ >= kFailuresAllowed) {
    ++counters_.skipped_page_outs;
    return false;
  }
  drop(v);
  void* const bytes = dataOf(*storage);
  Departure& leaving = leaving_[v];
  try {
    leaving.ticket = queue_->write(bytes, static_cast<int64_t>(storage->nbytes()));
  } catch (...) {
    leaving_.erase(v);
    throw;
  }
  leaving.storage = WeakStorage(storage);
  leaving.copy = {-1, static_cast<int64_t>(storage->nbytes()), content_hash};
  leaving.data = storage->set_data_ptr(c10::DataPtr(bytes, storage->device()));
  return true;
}

bool Pager::settle(ValueId v) {
  if (!isBeingWritten(v)) return hasCopy(v);
  Departure leaving = std::move(leaving_.extract(v).mapped());
  PageCopy& copy = leaving.copy;
  try {
    const Stopwatch watch(&counters_.waited_seconds);
    copy.slot = queue_->wait(leaving.ticket);
  } catch (const std::exception& error) {
    ++counters_.failed_page_outs;
    noteFailure(error.what());
  }
  const StorageHold storage = leaving.storage.lock();
  if (storage && dataOf(*storage) == leaving.data.get())
    storage->set_data_ptr_noswap(std::move(leaving.data));
  if (!copy.valid()) return false;
  failures_in_a_row_ = 0;
  counters_.paged_out_bytes += copy.bytes;
  copies_.emplace(v, copy);
  return true;
}

PageCopy Pager::store(c10::StorageImpl& storage, uint64_t content_hash) {
  PageCopy copy = {-1, static_cast<int64_t>(storage.nbytes()), content_hash};
  if (queue_ == nullptr || failures_in_a_row_ >= kFailuresAllowed) return copy;
  try {
    copy.slot = queue_->wait(queue_->write(dataOf(storage), copy.bytes));
  } catch (const std::exception& error) {
    ++counters_.failed_page_outs;
    noteFailure(error.what());
    return copy;
  }
  failures_in_a_row_ = 0;
  counters_.paged_out_bytes += copy.bytes;
  return copy;
}

void Pager::noteFailure(const std::string& what) {
  ++failures_in_a_row_;
  counters_.trouble = what;
  if (failures_in_a_row_ == kFailuresAllowed) {
    counters_.trouble += detail::message(" That makes ", kFailuresAllowed,
                                         " failures in a row: nothing is paged any more.");
  }
}

void Pager::noteShared(size_t bytes) {
  if (counters_.shared_page_outs++ > 0 || failures_in_a_row_ > 0) return;  // those are worse
  counters_.trouble = detail::message(
      "a value of ", bytes,
      " bytes, which the plan moves to the store, stays in memory, because a NumPy array, another "
      "raw reader, another thread or another wrapped step uses that memory since the plan was "
      "made, or it is a file's that was mapped: steps may need more than the budget. Read a copy "
      "instead (tensor.clone().numpy()), make the array before poet.wrap, and load without "
      "mmap=True.");
}

void Pager::adopt(ValueId v, PageCopy copy) {
  drop(v);
  if (copy.valid()) copies_.emplace(v, copy);
}

PageCopy Pager::give(ValueId v) {
  cancelRead(v);
  if (!settle(v)) return {};
  return copies_.extract(v).mapped();
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

void Pager::letDie(ValueId v) {
  if (isArriving(v) && !arriving_.at(v).for_dead) cancelRead(v);
}

void Pager::beginRead(ValueId v, bool for_dead) {
  if (isArriving(v) || !settle(v)) return;
  Arrival& arrival = arriving_[v];
  try {
    arrival.for_dead = for_dead;
    arrival.data = freshStorage(copyOf(v).bytes);
    arrival.ticket = queue_->read(copyOf(v).slot, arrival.data->mutable_data());
  } catch (...) {
    arriving_.erase(v);
    throw;
  }
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
  POET_INTERNAL_ASSERT(isArriving(v), "value ", v.index, " is not being read");
  return finishReading(std::move(arriving_.extract(v).mapped()));
}

void Pager::cancelRead(ValueId v) {
  if (!isArriving(v)) return;
  const Arrival arrival = std::move(arriving_.extract(v).mapped());
  const Stopwatch watch(&counters_.waited_seconds);
  queue_->cancel(arrival.ticket);  // if it fails, nobody wanted it; whoever does will hear of it
}

StorageHold Pager::read(const PageCopy& copy) {
  Arrival arrival;
  arrival.data = freshStorage(copy.bytes);
  arrival.ticket = queue_->read(copy.slot, arrival.data->mutable_data());
  return finishReading(std::move(arrival));
}

int64_t Pager::ownBytes() const {
  const auto of = [](const auto& by_value) {
    constexpr size_t kNode = sizeof(*by_value.begin()) + 2 * sizeof(void*);
    return heapBlock(by_value.bucket_count() * sizeof(void*)) +
           static_cast<int64_t>(by_value.size()) * heapBlock(kNode);
  };
  return of(copies_) + of(leaving_) + of(arriving_) +
         (queue_ == nullptr ? 0 : queue_->bufferBytes());
}

PagingCounters Pager::snapshot() const {
  PagingCounters all = counters_;
  if (queue_ != nullptr) {
    const StoreCounters store = queue_->counters();
    all.repaired_chunks = store.repaired_chunks;
    all.read_seconds = store.read_seconds;
    all.write_seconds = store.write_seconds;
  }
  return all;
}

}  // namespace poet
