#include "runtime/away_between.h"

#include <exception>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "runtime/residency.h"
#include "runtime/verify.h"

namespace poet {

void AwayBetween::add(const StorageHold& storage, PageCopy copy) {
  const int64_t number = next_++;
  entries_[number] = {WeakStorage(storage), storage.get(), copy};
  number_[storage.get()] = number;
}

PageCopy AwayBetween::take(c10::StorageImpl* storage) {
  const auto found = number_.find(storage);
  if (found == number_.end()) return {};
  const PageCopy copy = entries_[found->second].copy;
  entries_.erase(found->second);
  number_.erase(found);
  return copy;
}

StorageHold AwayBetween::bytesOf(const PageCopy& copy, bool is_overwritten) {
  try {
    StorageHold fresh = pager_.read(copy);
    POET_INTERNAL_ASSERT(!verify_ || Verifier::contentHash(*fresh) == copy.content_hash,
                         "a value came back with other bytes than it was put away with");
    return fresh;
  } catch (const StoreError&) {
    if (!is_overwritten) throw;
    return pager_.freshStorage(copy.bytes);
  }
}

bool AwayBetween::restore(c10::StorageImpl* storage, bool is_overwritten) {
  const auto found = number_.find(storage);
  if (found == number_.end()) return false;
  const Entry& entry = entries_[found->second];
  const StorageHold alive = entry.storage.lock();
  if (alive) {
    const StorageHold fresh = bytesOf(entry.copy, is_overwritten);
    putBack(*alive, *fresh);
  }
  pager_.release(take(storage));
  return static_cast<bool>(alive);
}

std::vector<StorageHold> AwayBetween::alive() const {
  std::vector<StorageHold> all;
  for (const auto& [number, entry] : entries_) {
    if (StorageHold storage = entry.storage.lock()) all.push_back(std::move(storage));
  }
  return all;
}

void AwayBetween::restoreAll() {
  std::vector<c10::StorageImpl*> all;
  for (const auto& [number, entry] : entries_) all.push_back(entry.address);
  std::exception_ptr first;
  for (c10::StorageImpl* storage : all) {
    try {
      restore(storage);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void AwayBetween::dropDead() {
  std::vector<c10::StorageImpl*> dead;
  for (const auto& [number, entry] : entries_) {
    if (entry.storage.expired()) dead.push_back(entry.address);
  }
  for (c10::StorageImpl* storage : dead) pager_.release(take(storage));
}

}  // namespace poet
