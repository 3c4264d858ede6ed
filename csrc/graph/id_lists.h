// IdLists: many short lists of ids in two blocks of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/heap_bytes.h"

namespace poet {

// Immutable. A vector for each list would take 24 bytes and a block of its own, for one or two ids
// of four bytes.
template <class Id>
class IdLists {
 public:
  IdLists() = default;
  explicit IdLists(const std::vector<std::vector<Id>>& lists) {
    begin_.reserve(lists.size() + 1);
    size_t ids = 0;
    for (const std::vector<Id>& list : lists) {
      begin_.push_back(static_cast<uint32_t>(ids));
      ids += list.size();
    }
    begin_.push_back(static_cast<uint32_t>(ids));
    ids_.reserve(ids);
    for (const std::vector<Id>& list : lists) ids_.insert(ids_.end(), list.begin(), list.end());
  }

  std::span<const Id> operator[](size_t list) const {
    return {ids_.data() + begin_[list], begin_[list + 1] - begin_[list]};
  }
  int64_t ownBytes() const { return heapBytes(begin_) + heapBytes(ids_); }

 private:
  std::vector<uint32_t> begin_;  // and the end of the last
  std::vector<Id> ids_;
};

}  // namespace poet
