#include "planner/floor.h"

#include <algorithm>
#include <vector>

namespace poet::planner {
namespace {

// With a store everything evictable may be away whenever nothing touches it, in any version.
Floor pagingFloor(const Problem& problem) {
  const Graph& graph = problem.graph();
  Floor floor{problem.start_bytes, OpId(0)};
  const auto raise = [&](int64_t bytes, OpId op) {
    if (bytes > floor.bytes) floor = {bytes, op};
  };
  std::vector<int64_t> stays(static_cast<size_t>(graph.numOps()) + 2, 0);
  for (const Value& value : graph.values()) {
    if (value.evictable || !value.death.valid()) continue;
    stays[value.producer.valid() ? static_cast<size_t>(value.producer.index) + 1 : 0] +=
        value.bytes;
    stays[static_cast<size_t>(std::min(value.death, graph.endOfStep()).index) + 1] -= value.bytes;
  }
  int64_t resident = graph.baseBytes();
  for (int64_t k = 0; k < graph.numOps(); ++k) {
    const OpId op(k);
    resident += stays[static_cast<size_t>(k)];
    int64_t bytes = resident + graph.op(op).workspace_bytes;
    for (const ValueId v : graph.madeBy(op)) bytes += graph.value(v).bytes;
    for (const ValueId v : graph.dataInputs(op)) {
      if (graph.value(v).evictable) bytes += graph.value(v).bytes;
    }
    raise(bytes, op);
  }
  int64_t at_end = graph.baseBytes();
  for (int64_t i = 0; i < graph.numValues(); ++i) {
    const Value& value = graph.value(ValueId(i));
    const bool away = std::binary_search(problem.away.begin(), problem.away.end(), ValueId(i));
    if (value.death >= graph.endOfStep() && !away) at_end += value.bytes;
  }
  raise(at_end, graph.endOfStep());
  return floor;
}

}  // namespace

Floor floorOfEverySchedule(const Problem& problem, const RecipeTable& table,
                           const ProblemOptions& options) {
  if (problem.exact) return {problem.floor_bytes, problem.floor_op};
  if (problem.pages()) return pagingFloor(problem);
  ProblemOptions every_value = options;
  every_value.small_bytes = 0;
  const Problem every(problem.graph(), table, problem.profile(), every_value);
  return {every.floor_bytes, every.floor_op};
}

}  // namespace poet::planner
