// Random schedules that can be carried out: whatever a planner may ever ask of the executor.
//
// Walks the step once and frees, retains and recomputes as the dice fall. Shares no code with the
// planner.
#pragma once

#include <algorithm>
#include <functional>
#include <set>
#include <vector>

#include "graph/graph.h"
#include "graph/recipes.h"
#include "schedule/schedule.h"
#include "support/plan_builder.h"
#include "support/random.h"

namespace poet::testing {

class PlanWalk {
 public:
  // Whether to free (retain) the value before (after) op `at`, where that is possible.
  using Choice = std::function<bool(ValueId v, int64_t at)>;

  PlanWalk(const Graph& graph, Choice frees, Choice retains)
      : graph_(graph),
        table_(graph),
        frees_(std::move(frees)),
        retains_(std::move(retains)),
        plan_(graph) {
    findDeepValidity();
  }

  Schedule plan() {
    const int64_t n = graph_.numOps();
    for (int64_t k = 0; k < n; ++k) {
      actBefore(k);
      for (ValueId v : graph_.madeBy(OpId(k))) resident_.insert(v);
      for (ValueId v : std::set<ValueId>(resident_)) {
        if (graph_.lastShown(v).index != k || graph_.value(v).death.index >= n) continue;
        if (!retains_(v, k)) continue;
        plan_.after(k).retain(v);
        retained_.insert(v);
      }
      std::erase_if(resident_, [&](ValueId v) {
        return graph_.value(v).death.index == k && retained_.count(v) == 0;
      });
    }
    actBefore(n);
    return plan_.build();
  }

 private:
  const Recipe& recipe(int r) const { return table_.recipes()[static_cast<size_t>(r)]; }

  // A recipe is of use only as long as those of its inputs are.
  void findDeepValidity() {
    for (const Recipe& r : table_.recipes()) until_.push_back(r.valid_until.index);
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t r = 0; r < until_.size(); ++r) {
        for (ValueId input : table_.recipes()[r].inputs) {
          const int from = table_.recipeOf(input);
          if (from < 0 || until_[static_cast<size_t>(from)] >= until_[r]) continue;
          until_[r] = until_[static_cast<size_t>(from)];
          changed = true;
        }
      }
    }
  }

  // Whether v, freed before op `at`, can be brought back whenever it is needed or reachable.
  bool mayLeave(ValueId v, int64_t at) const {
    const int r = table_.recipeOf(v);
    if (r < 0 || at <= recipe(r).lastOp().index) return false;
    for (OpId writer : graph_.writersOf(v)) {
      if (writer.index >= at) return false;
    }
    int64_t last = std::max<int64_t>(at, graph_.value(v).death.index);
    for (OpId use : graph_.usesOf(v)) last = std::max<int64_t>(last, use.index);
    return until_[static_cast<size_t>(r)] >= last;
  }

  std::set<ValueId> neededAt(int64_t at) const {
    std::set<ValueId> needed;
    if (at < graph_.numOps()) {
      for (ValueId v : graph_.dataInputs(OpId(at))) needed.insert(v);
    } else {
      for (ValueId v(0); v.index < graph_.numValues(); ++v.index) {
        if (graph_.value(v).death == graph_.endOfStep()) needed.insert(v);
      }
    }
    std::erase_if(needed, [&](ValueId v) { return !graph_.value(v).producer.valid(); });
    return needed;
  }

  void recompute(ValueId v, int64_t at) {
    const Recipe& r = recipe(table_.recipeOf(v));
    for (ValueId input : r.inputs) {
      if (graph_.value(input).producer.valid() && resident_.count(input) == 0) recompute(input, at);
    }
    plan_.before(at).recompute(r.ops);
    for (ValueId output : r.outputs) {
      const bool came_back = resident_.insert(output).second;
      if (came_back && at > graph_.lastShown(output).index) retained_.insert(output);
    }
  }

  void actBefore(int64_t at) {
    const std::set<ValueId> needed = neededAt(at);
    for (ValueId v : needed) {
      if (resident_.count(v) == 0) recompute(v, at);
    }
    for (ValueId v : std::set<ValueId>(resident_)) {
      if (needed.count(v) > 0 || !mayLeave(v, at) || !frees_(v, at)) continue;
      resident_.erase(v);
      retained_.erase(v);
      plan_.before(at).free(v);
    }
  }

  const Graph& graph_;
  RecipeTable table_;
  Choice frees_, retains_;
  PlanBuilder plan_;
  std::vector<int64_t> until_;
  std::set<ValueId> resident_, retained_;
};

// `eagerness` is the chance of a free, a value and op.
inline Schedule validPlan(const Graph& graph, uint64_t seed, double eagerness) {
  Random dice(seed);
  return PlanWalk(
             graph, [&](ValueId, int64_t) { return dice.chance(eagerness); },
             [&](ValueId, int64_t) { return dice.chance(0.1); })
      .plan();
}

// Everything leaves as soon as it may, and comes back when it is needed.
inline Schedule greedyPlan(const Graph& graph) {
  return PlanWalk(
             graph, [](ValueId, int64_t) { return true; }, [](ValueId, int64_t) { return false; })
      .plan();
}

}  // namespace poet::testing
