// Random schedules with transfers that can be carried out. Whatever leaves memory has a good copy
// in the store; what is needed comes back from there, or by a recompute where one is possible.
#pragma once

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "graph/graph.h"
#include "graph/recipes.h"
#include "schedule/schedule.h"
#include "support/plan_builder.h"
#include "support/random.h"

namespace poet::testing {

class PagingWalk {
 public:
  // `eagerness` is the chance that a value leaves, a value and op.
  PagingWalk(const Graph& graph, uint64_t seed, double eagerness)
      : graph_(graph), table_(graph), dice_(seed), eagerness_(eagerness), plan_(graph) {}

  Schedule plan() {
    begin();
    const int64_t n = graph_.numOps();
    for (int64_t k = 0; k < n; ++k) {
      actBefore(k);
      for (const ValueId v : graph_.op(OpId(k)).mutates) ++version_[v];
      for (const ValueId v : graph_.madeBy(OpId(k))) resident_.insert(v);
      for (const ValueId v : std::set<ValueId>(resident_)) actAfter(v, k);
      std::erase_if(resident_, [&](ValueId v) {
        return graph_.value(v).death.index == k && retained_.count(v) == 0;
      });
    }
    actBefore(n);
    return plan_.build();
  }

 private:
  void begin() {
    for (ValueId v(0); v.index < graph_.numValues(); ++v.index) {
      const Value& value = graph_.value(v);
      if (value.producer != kNoOp || !value.death.valid()) continue;
      const bool may_be_away = value.evictable && value.death == graph_.endOfStep();
      if (may_be_away && dice_.chance(0.3)) {
        plan_.awayBetweenSteps(v);
        away_.insert(v);
        stored_[v] = 0;
      } else {
        resident_.insert(v);
      }
    }
  }

  void actAfter(ValueId v, int64_t k) {
    if (graph_.value(v).evictable && dice_.chance(eagerness_ / 4)) {
      plan_.after(k).pageOut(v);
      stored_[v] = version_[v];
    }
    const bool dies = graph_.value(v).death < graph_.endOfStep();
    if (!dies || graph_.lastShown(v).index != k || !dice_.chance(0.1)) return;
    plan_.after(k).retain(v);
    retained_.insert(v);
  }

  void actBefore(int64_t at) {
    std::set<ValueId> needed;
    if (at < graph_.numOps()) {
      needed.insert(graph_.dataInputs(OpId(at)).begin(), graph_.dataInputs(OpId(at)).end());
    } else {
      for (ValueId v(0); v.index < graph_.numValues(); ++v.index) {
        if (graph_.value(v).death == graph_.endOfStep() && !mayStayAway(v)) needed.insert(v);
      }
    }
    for (const ValueId v : std::set<ValueId>(resident_)) {
      if (needed.count(v) > 0 || !graph_.value(v).evictable || !dice_.chance(eagerness_)) continue;
      if (!isStored(v)) pageOut(v, at);
      plan_.before(at).free(v);
      resident_.erase(v);
      retained_.erase(v);
    }
    for (const ValueId v : needed) bringBack(v, at);
  }

  bool isStored(ValueId v) const {
    const auto found = stored_.find(v);
    const auto reached = version_.find(v);
    return found != stored_.end() &&
           found->second == (reached == version_.end() ? 0 : reached->second);
  }
  bool mayStayAway(ValueId v) { return away_.count(v) > 0 && isStored(v) && dice_.chance(0.7); }

  void pageOut(ValueId v, int64_t at) {
    plan_.before(at).pageOut(v);
    stored_[v] = version_[v];
  }

  void bringBack(ValueId v, int64_t at) {
    if (resident_.count(v) > 0) return;
    const int r = table_.recipeOf(v);
    if (r >= 0 && dice_.chance(0.4)) {
      const Recipe& recipe = table_.recipes()[static_cast<size_t>(r)];
      const bool valid = recipe.lastOp().index < at && at <= recipe.unchanged_until.index;
      const bool at_hand = std::all_of(recipe.inputs.begin(), recipe.inputs.end(),
                                       [&](ValueId input) { return resident_.count(input) > 0; });
      if (valid && at_hand) {
        plan_.before(at).recompute(recipe.ops);
        for (const ValueId output : recipe.outputs) enter(output, at);
        return;
      }
    }
    plan_.before(at).pageIn(v);
    enter(v, at);
  }

  void enter(ValueId v, int64_t at) {
    if (!resident_.insert(v).second) return;
    if (at > graph_.lastShown(v).index) retained_.insert(v);
  }

  const Graph& graph_;
  RecipeTable table_;
  Random dice_;
  double eagerness_;
  PlanBuilder plan_;
  std::set<ValueId> resident_, retained_, away_;
  std::map<ValueId, int> version_, stored_;
};

inline Schedule pagingPlan(const Graph& graph, uint64_t seed, double eagerness = 0.2) {
  return PagingWalk(graph, seed, eagerness).plan();
}

}  // namespace poet::testing
