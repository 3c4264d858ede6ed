// Schedules that page everything: what is not needed soon leaves by way of the store.
#pragma once

#include <algorithm>
#include <set>

#include "graph/graph.h"
#include "schedule/schedule.h"
#include "support/plan_builder.h"

namespace poet::testing {

// Every evictable value is paged out as soon as no op needs it, and in before one does. With
// `away`, what exists before the step and outlives it is in the store between steps.
inline Schedule pageEverything(const Graph& graph, bool away) {
  const int64_t n = graph.numOps();
  PlanBuilder plan(graph);
  std::set<ValueId> resident, stored, between;
  for (ValueId v(0); v.index < graph.numValues(); ++v.index) {
    const Value& value = graph.value(v);
    if (value.producer.valid() || !value.death.valid()) continue;
    const bool stays = !value.evictable || value.death != graph.endOfStep();
    if (away && !stays && !graph.usesOf(v).empty()) {
      between.insert(v);
      stored.insert(v);
    } else {
      resident.insert(v);
    }
  }
  const auto neededAt = [&](int64_t at) {
    std::set<ValueId> needed;
    if (at < n) {
      needed.insert(graph.dataInputs(OpId(at)).begin(), graph.dataInputs(OpId(at)).end());
      return needed;
    }
    for (ValueId v(0); v.index < graph.numValues(); ++v.index) {
      if (graph.value(v).death == graph.endOfStep() && between.count(v) == 0) needed.insert(v);
    }
    return needed;
  };
  for (int64_t k = 0; k <= n; ++k) {
    plan.before(k);
    const std::set<ValueId> needed = neededAt(k);
    for (ValueId v : needed) {
      if (resident.insert(v).second) plan.add(ActionKind::kPageIn, v.index);
    }
    for (ValueId v : std::set<ValueId>(resident)) {
      if (needed.count(v) > 0 || !graph.value(v).evictable) continue;
      if (stored.insert(v).second) plan.add(ActionKind::kPageOut, v.index);
      plan.free(v);
      resident.erase(v);
    }
    if (k == n) break;
    for (ValueId v : graph.op(OpId(k)).mutates) stored.erase(v);
    for (ValueId v : graph.madeBy(OpId(k))) resident.insert(v);
    std::erase_if(resident, [&](ValueId v) { return graph.value(v).death.index == k; });
  }
  Schedule schedule = plan.build();
  schedule.away_between_steps.assign(between.begin(), between.end());
  return schedule;
}

}  // namespace poet::testing
