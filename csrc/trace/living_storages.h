// LivingStorages: which of a step's storages have gone since it was last asked.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "trace/recording.h"

namespace poet {

// Note [Who tells of deaths]
// A storage that goes gives its memory back, and the allocator hears of it
// (AllocatorTap::FreedLog). So a step that is recorded does not look at every living storage before
// each operator: there may be thousands, and the line of memory that each lies in is in no cache by
// then. What the allocator cannot tell of is looked at each time: storages without memory (empty
// ones, those whose data is away), and memory that is not PyTorch's for the CPU. So is one whose
// memory has gone and which lives on (resize_(), an eviction), until it has memory again. Whoever
// takes memory out of a storage and keeps it tells nobody: every kFullRound rounds all are looked
// at.
//
// Each storage has a number, given by the caller. Not thread-safe.
class LivingStorages {
 public:
  static constexpr int kFullRound = 1024;

  // From here on it is asked after; `number` is new.
  void add(int32_t number, WeakStorage storage);
  // Nobody asks after it any more, dead or alive. No effect where nobody did.
  void drop(int32_t number);
  // Empty (it has expired) where it is not among them.
  const WeakStorage& at(int32_t number) const;
  // Of those that have not been found dead, in ascending order.
  std::vector<int32_t> numbers() const;

  // The numbers of those that have died since the last call, in ascending order; they are no longer
  // among them. `freed`: what the log says since the last call; `all`: look at each.
  std::vector<int32_t> takeDead(const std::vector<const void*>& freed, bool all = false);

 private:
  enum class Told : uint8_t { kNo, kYes, kUnasked };  // by the allocator, of its death
  struct One {
    WeakStorage storage = noStorage();
    const void* block = nullptr;
    Told told = Told::kUnasked;
  };

  bool waitForLog(int32_t number);

  std::vector<One> ones_;                              // by number
  std::unordered_map<const void*, int32_t> of_block_;  // that the log tells of
  std::vector<int32_t> looked_at_;                     // the others
  int rounds_ = 0;                                     // since all were looked at
};

}  // namespace poet
