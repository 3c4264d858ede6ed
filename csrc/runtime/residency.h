// Where the values of the running step are: bound to a storage, resident or away, held or not.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/util/flat_hash_map.h>

#include <iterator>
#include <string>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "trace/recording.h"

namespace poet {

// Gives a storage's memory back to whoever holds it besides (a transfer, say), or to the allocator.
// Size, strides and everybody's references stay; a raw read fails with a clear error from here on.
// Only where AllocatorTap::mayRelease(). The error names the value.
void releaseData(c10::StorageImpl& storage, ValueId value = kNoValue);
// Whether this is the error of whoever reads released memory.
bool isRawReadError(const std::string& text);
// The value that an error of a raw read names in this text; kNoValue: none.
ValueId valueNamedIn(const std::string& text);

// Moves `fresh`'s data into a storage that has been evicted.
void putBack(c10::StorageImpl& storage, c10::StorageImpl& fresh);

// Storages whose memory was handed out for good (a NumPy array shares it): never evicted again.
class HandedOut {
 public:
  void add(const StorageHold& storage) { storages_.emplace(storage.get(), WeakStorage(storage)); }
  bool has(c10::StorageImpl* storage) const {
    return !storages_.empty() && storages_.count(storage) > 0;
  }
  void dropDead() {
    for (auto it = storages_.begin(); it != storages_.end();)
      it = it->second.expired() ? storages_.erase(it) : std::next(it);
  }

 private:
  std::unordered_map<c10::StorageImpl*, WeakStorage> storages_;
};

// Evicts and puts back the data of storages; never touches metadata. Not thread-safe: the session
// serializes.
//
// Invariants: a bound value's storage address is not reused while it is bound (a weak reference
// keeps it); only data that PyTorch's allocator owns is ever released; an evicted storage
// carries the access message, so that a raw read fails with a clear error instead of a crash.
class Residency {
 public:
  void begin(const Graph& graph);
  void clear();

  struct Entry {
    WeakStorage ref = noStorage();
    StorageHold hold;
    c10::StorageImpl* address = nullptr;
    bool bound = false;
    bool resident = true;       // of a bound value: its data is there
    bool away = false;          // evicted, and not yet back
    bool pinned = false;        // must not be evicted again in this step
    bool presumed = false;      // bound by a guess: see Note [Values from before the step]
    bool foreign = false;       // NumPy's memory, say: the allocator's counts have nothing of it
    bool kept = false;          // could not be moved to the store: stays, whatever the plan says
    int64_t first_offset = 0;   // of the tensor that showed it, where the step did not make it
    uint64_t content_hash = 0;  // POET_VERIFY: of the data at its last eviction
  };
  Entry& operator[](ValueId v) { return entries_[static_cast<size_t>(v.index)]; }
  const Entry& operator[](ValueId v) const { return entries_[static_cast<size_t>(v.index)]; }
  size_t size() const { return entries_.size(); }
  // For a plan with another number of values; those shown so far keep theirs.
  void resize(size_t values) { entries_.resize(values); }

  // False, and nothing changes, if the storage is another value's already.
  bool bind(ValueId v, const at::Tensor& t);
  // Binds by a guess. False, and nothing changes, if the storage is another value's already.
  bool presume(ValueId v, const StorageHold& storage, bool away);
  // Forgets a value that was bound by a wrong guess.
  void unbind(ValueId v);
  // The value that has this storage, or kNoValue.
  ValueId valueOf(c10::StorageImpl* storage) const;

  // Data is there and the storage lives.
  bool isAvailable(ValueId v) const {
    return (*this)[v].resident && (*this)[v].bound && !(*this)[v].ref.expired();
  }
  // Releases the data if that is possible; true if it is gone.
  bool evict(ValueId v);
  // Moves `fresh`'s data into the value's storage; makes `fresh`'s storage the value's own where
  // that died.
  void install(ValueId v, c10::StorageImpl& fresh, bool hold);
  // Lets go of a dead value's storage: a weak reference pins a small block in the heap, and malloc
  // could not merge around it.
  void forgetIfDead(ValueId v);

  HandedOut& handedOut() { return handed_out_; }

  std::vector<WeakStorage> weakReferences() const;
  int64_t ownBytes() const;  // that it takes of memory itself
  // Values that are away, in the order of their eviction; pruned of those that are back.
  const std::vector<ValueId>& away();

 private:
  std::vector<Entry> entries_;
  std::vector<ValueId> away_;
  HandedOut handed_out_;
  ska::flat_hash_map<c10::StorageImpl*, ValueId> value_of_;
};

}  // namespace poet
