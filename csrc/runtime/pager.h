// Pager: which values have a copy in the store, and the transfers to and from it, which run beside
// the step.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "graph/graph.h"
#include "runtime/transfers.h"
#include "store/page_store.h"
#include "trace/recording.h"

namespace poet {

// A value's bytes in the store. Whoever has it gives the slot back (Pager::release).
struct PageCopy {
  int64_t slot = -1;
  int64_t bytes = 0;
  uint64_t content_hash = 0;  // POET_VERIFY
  bool valid() const { return slot >= 0; }
};

struct PagingCounters {
  int64_t planned_page_outs = 0;
  int64_t planned_page_ins = 0;
  int64_t unplanned_page_ins = 0;   // because something was needed that the plan had away
  int64_t moved_between_steps = 0;  // values that were put away for the time between two steps
  int64_t failed_page_outs = 0;     // the value stayed in memory
  int64_t skipped_page_outs = 0;    // not known yet, or nothing is paged any more: it stayed
  int64_t shared_page_outs = 0;     // something else reads the memory, NumPy say: it stayed
  int64_t failed_page_ins = 0;      // recomputed instead, or an error
  int64_t paged_out_bytes = 0;
  int64_t paged_in_bytes = 0;  // that arrived
  double read_seconds = 0;     // the store's, beside the step or not
  double write_seconds = 0;    // likewise
  double waited_seconds = 0;   // the step's, for transfers
  int64_t repaired_chunks = 0;
  std::string trouble;  // the last failure; empty: there was none
};

// Note [Copies]
// A copy is good for the version that it was made of: whatever may write into the value drops it
// first (an op that the plan knows, one on a foreign thread, a raw reader). So a copy that is there
// is good. It stays when the value comes back, and after the value's natural death, to the end of
// the step.
//
// Note [Transfers beside the step]
// write() and beginRead() only begin a transfer; the step goes on. In the meantime
// - a value that is being written keeps its data: before its memory is given up or written into,
//   settle() or drop() waits. The pager owns the memory for so long, and not a reference to the
//   storage: autograd accumulates in place where it has the only one. If the storage dies, the
//   memory goes with the transfer.
// - a value that is being read is still away for everybody. Its new data lies beside it (it counts,
//   from the beginning on) until arrive() hands it out.
// So no reader ever sees bytes that are not there yet, and timing has no part in what a step
// computes, nor in which memory it has when.
//
// Not thread-safe: the session serializes.
class Pager {
 public:
  // After that many failures in a row nothing is written any more.
  static constexpr int kFailuresAllowed = 3;

  Pager() = default;
  ~Pager() { end(); }  // no transfer outlives the memory that it works on
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  void setStore(std::shared_ptr<PageStore> store) { queue_ = transfersToFile(std::move(store)); }
  // Where values come back to; with an accelerator the store is the host's memory.
  void setDevice(c10::Device device) { device_ = device; }
  c10::Device device() const { return device_; }
  void useHostMemory() { queue_ = transfersToHost(device_); }
  bool hasStore() const { return queue_ != nullptr; }
  void reserve(int64_t bytes) { queue_->reserve(bytes); }

  // Of a step: no value has a copy. Waits for all transfers.
  void end();

  // Copies, and what is becoming one.
  bool hasCopies() const { return !copies_.empty() || !leaving_.empty(); }
  bool hasCopy(ValueId v) const { return copies_.contains(v) || isBeingWritten(v); }
  // Of a value that has one and is not being written.
  const PageCopy& copyOf(ValueId v) const { return copies_.at(v); }

  // Begins to copy the storage's data to the store. False where nothing is paged any more.
  bool write(ValueId v, const StorageHold& storage, uint64_t content_hash);
  bool isTransferring() const { return !leaving_.empty() || !arriving_.empty(); }
  bool isBeingWritten(ValueId v) const { return leaving_.contains(v); }
  // Waits until it is written. False where that failed: the value has no copy then.
  bool settle(ValueId v);
  void drop(ValueId v);
  // Hands a copy over, and takes one over.
  PageCopy give(ValueId v);
  void adopt(ValueId v, PageCopy copy);

  // Begins to read the value's copy into fresh memory. Throws what the allocator throws.
  // `for_dead`: the value died before, and is wanted for somebody else's recompute.
  void beginRead(ValueId v, bool for_dead);
  bool isArriving(ValueId v) const { return arriving_.contains(v); }
  // Waits for what beginRead began; the bytes. Throws StoreError; the copy stays.
  StorageHold arrive(ValueId v);
  // Waits no longer than until its memory is left alone.
  void cancelRead(ValueId v);
  // The value has died in the meantime: nobody waits for it, unless that is why it is read.
  void letDie(ValueId v);

  // Memory for a value's bytes. Throws what the allocator throws.
  StorageHold freshStorage(int64_t bytes) const;
  // Copies the storage's data to the store and waits for it: between steps. Invalid where the store
  // failed, or nothing is paged any more.
  PageCopy store(c10::StorageImpl& storage, uint64_t content_hash);
  // The bytes of a copy in fresh memory. Throws StoreError, and what the allocator throws; the copy
  // stays.
  StorageHold read(const PageCopy& copy);
  void release(const PageCopy& copy);

  // A value is not paged because its memory is not poet's alone to release.
  void noteShared(size_t bytes);

  // That transfers and their buffers take, beside the values.
  int64_t ownBytes() const;

  PagingCounters& counters() { return counters_; }
  // With what the store has counted. Waits for the transfers under way.
  PagingCounters snapshot() const;

 private:
  struct Departure {
    Transfers::Ticket ticket;
    WeakStorage storage = noStorage();
    c10::DataPtr data;  // the storage's, which only points to it now
    PageCopy copy;      // what it will be
  };
  struct Arrival {
    StorageHold data;
    Transfers::Ticket ticket;
    bool for_dead = false;
  };

  // Few of a step's values are in the store at once, and most steps page none.
  template <class T>
  using ByValue = std::unordered_map<ValueId, T>;
  StorageHold finishReading(Arrival arrival);
  void noteFailure(const std::string& what);

  std::unique_ptr<Transfers> queue_;
  c10::Device device_ = c10::Device(c10::DeviceType::CPU);
  ByValue<PageCopy> copies_;  // all valid
  ByValue<Departure> leaving_;
  ByValue<Arrival> arriving_;
  int failures_in_a_row_ = 0;
  PagingCounters counters_;
};

}  // namespace poet
