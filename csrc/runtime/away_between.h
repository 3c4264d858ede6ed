// AwayBetween: storages whose data is in the store while no step runs.
#pragma once

#include <c10/util/flat_hash_map.h>

#include <map>
#include <vector>

#include "runtime/pager.h"

namespace poet {

// See Note [Away between steps] in schedule/schedule.h. Every storage in here is alive or has been
// dropped by the program; it carries the access message and has no data. Not thread-safe: the
// session serializes.
class AwayBetween {
 public:
  explicit AwayBetween(Pager& pager) : pager_(pager) {}

  bool empty() const { return entries_.empty(); }
  bool has(c10::StorageImpl* storage) const { return number_.count(storage) > 0; }
  void add(const StorageHold& storage, PageCopy copy);
  // Hands the copy over; invalid where there is none.
  PageCopy take(c10::StorageImpl* storage);
  // Puts the data back if it is away. Throws what Pager::read throws; it is still away then, unless
  // all of it is about to be overwritten: then any data will do. False if it was not away.
  bool restore(c10::StorageImpl* storage, bool is_overwritten = false);
  // Those that the program has not dropped.
  std::vector<StorageHold> alive() const;
  // All of them, each tried; throws the first error.
  void restoreAll();
  // Forgets what the program has dropped.
  void dropDead();

  void setVerify(bool on) { verify_ = on; }

 private:
  StorageHold bytesOf(const PageCopy& copy, bool is_overwritten);

  struct Entry {
    WeakStorage storage = noStorage();
    c10::StorageImpl* address = nullptr;
    PageCopy copy;
  };
  Pager& pager_;
  bool verify_ = false;
  int64_t next_ = 0;
  std::map<int64_t, Entry> entries_;  // in the order in which they came
  ska::flat_hash_map<c10::StorageImpl*, int64_t> number_;
};

}  // namespace poet
