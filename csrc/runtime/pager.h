// Pager: which values have a copy in the store, and the transfers to and from it.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "graph/graph.h"
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
  int64_t skipped_page_outs = 0;    // not poet's to release, or not known yet: it stayed in memory
  int64_t failed_page_ins = 0;      // recomputed instead, or an error
  int64_t paged_out_bytes = 0;
  int64_t paged_in_bytes = 0;
  double transfer_seconds = 0;
  int64_t repaired_chunks = 0;
  std::string trouble;  // the last failure; empty: there was none
};

// Note [Copies]
// A copy is good for the version that it was made of: whatever may write into the value drops it
// first (an op that the plan knows, one on a foreign thread, a raw reader). So a copy that is there
// is good. It stays when the value comes back, and after the value's natural death, to the end of
// the step.
//
// Not thread-safe: the session serializes.
class Pager {
 public:
  // After that many failures in a row nothing is written any more.
  static constexpr int kFailuresAllowed = 3;

  void setStore(std::shared_ptr<PageStore> store) { store_ = std::move(store); }
  PageStore* store() const { return store_.get(); }

  // Of a step.
  void begin(size_t values) { copies_.assign(values, PageCopy()); }
  void resize(size_t values) { copies_.resize(values); }
  void end();

  bool hasCopies() const { return num_copies_ > 0; }
  bool hasCopy(ValueId v) const {
    return num_copies_ > 0 && copies_[static_cast<size_t>(v.index)].valid();
  }
  const PageCopy& copyOf(ValueId v) const { return copies_[static_cast<size_t>(v.index)]; }
  // Copies the storage's data to the store. False where that fails: the value has no copy then.
  bool write(ValueId v, const c10::StorageImpl& storage, uint64_t content_hash);
  void drop(ValueId v);
  // Hands a copy over, and takes one over.
  PageCopy give(ValueId v);
  void adopt(ValueId v, PageCopy copy);

  // The bytes of a copy in fresh memory. Throws StoreError, and what the allocator throws; the copy
  // stays.
  StorageHold read(const PageCopy& copy);
  void release(const PageCopy& copy);

  PagingCounters& counters() { return counters_; }
  // With what the store has counted.
  PagingCounters snapshot() const;

 private:
  void noteFailure(const std::string& what);

  std::shared_ptr<PageStore> store_;
  std::vector<PageCopy> copies_;
  int64_t num_copies_ = 0;
  int failures_in_a_row_ = 0;
  PagingCounters counters_;
};

}  // namespace poet
