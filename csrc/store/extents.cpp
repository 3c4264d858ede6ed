#include "store/extents.h"

#include <algorithm>

namespace poet::store {

std::optional<int64_t> ExtentTable::take(int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, found_bytes] = *best;
  free_.erase(best);
  if (found_bytes > bytes) free_.emplace(offset + bytes, found_bytes - bytes);
  return offset;
}

void ExtentTable::giveBack(Extent extent) {
  if (extent.bytes == 0) return;
  auto next = free_.lower_bound(extent.offset);
  if (next != free_.end() && next->first == extent.end()) {
    extent.bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == extent.offset) {
      previous->second += extent.bytes;
      return;
    }
  }
  free_.emplace(extent.offset, extent.bytes);
}

int64_t ExtentTable::largestFree() const {
  int64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

int64_t ExtentTable::freeBytes() const {
  int64_t total = 0;
  for (const auto& [offset, bytes] : free_) total += bytes;
  return total;
}

Extent ExtentTable::tail(int64_t end) const {
  if (free_.empty()) return {end, 0};
  const auto& [offset, bytes] = *free_.rbegin();
  return offset + bytes == end ? Extent{offset, bytes} : Extent{end, 0};
}

}  // namespace poet::store
