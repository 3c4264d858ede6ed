#include "graph/accounting.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace poet {
namespace {

bool usedByOptimizer(const Graph& graph, ValueId value) {
  const auto& uses = graph.usesOf(value);
  return std::any_of(uses.begin(), uses.end(),
                     [&](OpId op) { return graph.op(op).phase == Phase::kOptimizer; });
}

bool counts(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  if (value.kind == ValueKind::kActivation) return true;
  if (value.kind != ValueKind::kGradient) return false;
  return value.death != graph.endOfStep() && !usedByOptimizer(graph, id);
}

}  // namespace

Graph activationsOnly(const Graph& graph) {
  std::vector<Value> values = graph.values();
  for (size_t v = 0; v < values.size(); ++v) {
    if (!counts(graph, ValueId(static_cast<int64_t>(v)))) values[v].bytes = 0;
  }
  return Graph(graph.ops(), std::move(values), /*base_bytes=*/0, graph.signature());
}

}  // namespace poet
