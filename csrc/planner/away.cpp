#include "planner/away.h"

#include <algorithm>
#include <utility>

namespace poet::planner {
namespace {

bool isKindToBeAway(ValueKind kind, const DeviceProfile& profile, const SolveOptions& options) {
  if (kind == ValueKind::kOptimizerState) return true;
  if (!options.parameters_away) return false;
  if (kind == ValueKind::kParameter) return true;
  // Frozen weights are inputs. In a live program so is the batch, which is another one each time.
  return profile.direct_kernels && (kind == ValueKind::kBuffer || kind == ValueKind::kInput);
}

}  // namespace

std::vector<ValueId> mayBeAway(const Graph& graph, const DeviceProfile& profile,
                               const SolveOptions& options) {
  std::vector<ValueId> found;
  if (!options.away_between_steps || !options.paging || !profile.hasStore()) return found;
  for (int64_t i = 0; i < graph.numValues(); ++i) {
    const Value& value = graph.value(ValueId(i));
    if (isKindToBeAway(value.kind, profile, options) && value.producer == kNoOp &&
        value.evictable && value.bytes > 0 && value.death == graph.endOfStep())
      found.emplace_back(i);
  }
  // What a live program may look at between two steps, and each step needs more than once, last.
  // Elsewhere first what is only read: it is good in the store for ever, and costs one transfer.
  const auto rank = [&](ValueId v) {
    const bool is_state = graph.value(v).kind == ValueKind::kOptimizerState;
    const bool first = profile.direct_kernels ? graph.writersOf(v).empty() : is_state;
    return std::pair(first ? 0 : 1, -graph.value(v).bytes);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&](ValueId a, ValueId b) { return rank(a) < rank(b); });
  return found;
}

std::vector<ValueId> firstOf(const std::vector<ValueId>& values, size_t count) {
  std::vector<ValueId> chosen(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count));
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

size_t moreAway(size_t count, size_t all) {
  return std::min(all, std::max(2 * count, (all + 3) / 4));
}

}  // namespace poet::planner
