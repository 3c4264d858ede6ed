// What stays in the store between two steps: Note [Away between steps] in schedule/schedule.h.
#pragma once

#include <cstddef>
#include <vector>

#include "planner/planner.h"
#include "planner/problem.h"

namespace poet::planner {

// What may stay there, largest first; in a live program optimizer state before parameters,
// elsewhere what no op writes before what is written. Nothing where the options do not ask for it.
std::vector<ValueId> mayBeAway(const Graph& graph, const DeviceProfile& profile,
                               const SolveOptions& options);

// The first `count` of them, ascending.
std::vector<ValueId> firstOf(const std::vector<ValueId>& values, size_t count);

// The fewest of them whose absence lets the floor fit the budget, found by halving; all of them
// where that does not do either. `floorWith(count)` gives the floor and falls with the count.
template <typename FloorWith>
size_t fewestAway(size_t most, int64_t budget_bytes, const FloorWith& floorWith) {
  if (most == 0 || floorWith(0) <= budget_bytes) return 0;
  size_t count = 1;
  while (count < most) {
    const size_t middle = count + (most - count) / 2;
    if (floorWith(middle) <= budget_bytes) {
      most = middle;
    } else {
      count = middle + 1;
    }
  }
  return count;
}

// The count that is tried after `count` of `all` found no plan.
size_t moreAway(size_t count, size_t all);

}  // namespace poet::planner
