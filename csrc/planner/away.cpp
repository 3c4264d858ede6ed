#include "planner/away.h"

#include <algorithm>

namespace poet::planner {
namespace {

bool isKindToBeAway(ValueKind kind, const SolveOptions& options) {
  if (kind == ValueKind::kOptimizerState) return true;
  return options.parameters_away && (kind == ValueKind::kParameter || kind == ValueKind::kBuffer ||
                                     kind == ValueKind::kInput);  // frozen weights are inputs
}

}  // namespace

std::vector<ValueId> mayBeAway(const Graph& graph, const DeviceProfile& profile,
                               const SolveOptions& options) {
  std::vector<ValueId> found;
  if (!options.away_between_steps || !options.paging || !profile.hasStore()) return found;
  for (int64_t i = 0; i < graph.numValues(); ++i) {
    const Value& value = graph.value(ValueId(i));
    if (isKindToBeAway(value.kind, options) && value.producer == kNoOp && value.evictable &&
        value.bytes > 0 && value.death == graph.endOfStep())
      found.emplace_back(i);
  }
  std::stable_sort(found.begin(), found.end(), [&](ValueId a, ValueId b) {
    return graph.value(a).bytes > graph.value(b).bytes;
  });
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
