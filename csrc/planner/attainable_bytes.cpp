#include "planner/attainable_bytes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "planner/program.h"

namespace poet::planner {
namespace {

constexpr size_t kMostSizes = 5;        // that divisors are made of: those with the most bytes
constexpr int64_t kLeastShare = 10000;  // of the budget: what is rounded off by less is no gain

std::vector<int64_t> usualSizes(std::span<const MemoryItem> items) {
  std::map<int64_t, int64_t> count;
  for (const MemoryItem& item : items) {
    if (item.bytes > 0) ++count[item.bytes];
  }
  std::vector<std::pair<double, int64_t>> sizes;  // by the bytes of all that have this size
  for (const auto& [bytes, many] : count)
    sizes.emplace_back(-static_cast<double>(bytes) * static_cast<double>(many), bytes);
  std::sort(sizes.begin(), sizes.end());
  if (sizes.size() > kMostSizes) sizes.resize(kMostSizes);
  std::vector<int64_t> usual;
  for (const auto& [total, bytes] : sizes) usual.push_back(bytes);
  return usual;
}

// Greatest common divisors of all sets of them.
std::set<int64_t> divisorsOf(const std::vector<int64_t>& sizes, int64_t least) {
  std::set<int64_t> divisors;
  for (const int64_t size : sizes) {
    std::set<int64_t> more = {size};
    for (const int64_t divisor : divisors) more.insert(std::gcd(divisor, size));
    divisors.insert(more.begin(), more.end());
  }
  divisors.erase(divisors.begin(), divisors.lower_bound(least));
  return divisors;
}

}  // namespace

std::vector<int64_t> attainableBytes(std::span<const MemoryItem> items,
                                     std::span<const int64_t> fixed, int64_t budget_bytes) {
  std::vector<int64_t> attainable(fixed.size(), budget_bytes);
  const int64_t least = std::max<int64_t>(2, budget_bytes / kLeastShare);
  std::vector<int64_t> change(fixed.size() + 1);
  for (const int64_t divisor : divisorsOf(usualSizes(items), least)) {
    std::fill(change.begin(), change.end(), 0);
    for (const MemoryItem& item : items) {
      const int64_t over = item.bytes % divisor;
      change[static_cast<size_t>(item.first)] += over;
      change[static_cast<size_t>(item.last) + 1] -= over;
    }
    int64_t rest = 0;  // what all items that are alive leave over
    for (size_t s = 0; s < fixed.size(); ++s) {
      rest += change[s];
      if (fixed[s] < 0 || fixed[s] > budget_bytes) continue;  // Stage::kNoMemoryRow is below 0
      const int64_t left = budget_bytes - fixed[s];
      const int64_t over = left % divisor;
      attainable[s] = std::min(attainable[s], budget_bytes - over + std::min(over, rest));
    }
  }
  return attainable;
}

}  // namespace poet::planner
