#include "methods/address_space.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>

#include "graph/error.h"

namespace poet::methods {

AddressSpace::AddressSpace(int64_t bytes)
    : bytes_(std::max<int64_t>(0, bytes)), free_bytes_(bytes_) {
  if (bytes_ > 0) blocks_.push_back({.start = 0, .bytes = bytes_, .owner = kFree});
}

bool AddressSpace::allocate(int owner, int64_t bytes, End end, Fit fit) {
  if (bytes <= 0) return true;
  auto found = blocks_.end();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const auto block = end == End::kLow ? blocks_.begin() + static_cast<std::ptrdiff_t>(i)
                                        : blocks_.end() - 1 - static_cast<std::ptrdiff_t>(i);
    if (block->owner != kFree || block->bytes < bytes) continue;
    if (found == blocks_.end() || block->bytes < found->bytes) found = block;
    if (fit == Fit::kFirst) break;
  }
  if (found == blocks_.end()) return false;
  const Block whole = *found;
  const int64_t rest = whole.bytes - bytes;
  const int64_t start = end == End::kLow ? whole.start : whole.start + rest;
  *found = {.start = start, .bytes = bytes, .owner = owner};
  free_bytes_ -= bytes;
  if (rest == 0) return true;
  if (end == End::kLow) {
    blocks_.insert(std::next(found), {.start = start + bytes, .bytes = rest, .owner = kFree});
  } else {
    blocks_.insert(found, {.start = whole.start, .bytes = rest, .owner = kFree});
  }
  return true;
}

int64_t AddressSpace::largestFree() const {
  int64_t bytes = 0;
  for (const Block& block : blocks_) {
    if (block.owner == kFree) bytes = std::max(bytes, block.bytes);
  }
  return bytes;
}

void AddressSpace::free(int owner) {
  for (Block& block : blocks_) {
    if (block.owner != owner) continue;
    block.owner = kFree;
    free_bytes_ += block.bytes;
  }
  size_t kept = 0;
  for (size_t i = 1; i < blocks_.size(); ++i) {
    if (blocks_[kept].owner == kFree && blocks_[i].owner == kFree) {
      blocks_[kept].bytes += blocks_[i].bytes;
    } else {
      blocks_[++kept] = blocks_[i];
    }
  }
  if (!blocks_.empty()) blocks_.resize(kept + 1);
}

std::vector<int> AddressSpace::cheapestWindow(int64_t bytes,
                                              const std::function<double(int)>& cost_of) const {
  std::vector<double> costs(blocks_.size(), 0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].owner != kFree) costs[i] = cost_of(blocks_[i].owner);
  }
  // The window is [first, i]. A sum that loses terms drifts, so it is made afresh for each window
  // that may be the least.
  const auto sum = [&](size_t first, size_t last) {
    double cost = 0;
    for (size_t i = first; i <= last; ++i) cost += costs[i];
    return cost;
  };
  double least = std::numeric_limits<double>::infinity();
  size_t first = 0, best_first = 0, best_end = 0;
  int64_t held = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (costs[i] < 0) {
      first = i + 1;
      held = 0;
      continue;
    }
    held += blocks_[i].bytes;
    while (held - blocks_[first].bytes >= bytes) held -= blocks_[first++].bytes;
    if (held < bytes) continue;
    const double cost = sum(first, i);
    if (cost >= least) continue;
    least = cost;
    best_first = first;
    best_end = i + 1;
  }
  std::vector<int> owners;
  for (size_t i = best_first; i < best_end; ++i) {
    if (blocks_[i].owner != kFree) owners.push_back(blocks_[i].owner);
  }
  return owners;
}

}  // namespace poet::methods
