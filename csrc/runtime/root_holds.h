// Keeps alive what bringing an evicted value back needs and nothing else could make again.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "runtime/compiled_plan.h"
#include "runtime/pager.h"
#include "runtime/residency.h"

namespace poet {

// Note [Roots]
// The roots of an evicted value are the values of the step that its recipes, one after the other,
// go back to (CompiledPlan::rootsOf). They are held as long as it is away: the step may depart, and
// then it must come back. Where such a root has died by the time of the eviction, or dies after it,
// whatever was made from it and is still there serves as a root in its stead; so it does in the
// plan, which knows nothing of roots that no recompute of its own needs.
//
// Not thread-safe: the session serializes.
class RootHolds {
 public:
  using Roots = std::vector<ValueId>;

  RootHolds(const Residency& residency, const Pager& pager)
      : residency_(residency), pager_(pager) {}

  void begin(const CompiledPlan& plan);
  // To a plan that shares all values shown so far.
  void switchTo(const CompiledPlan& plan);
  void clear();

  // What bringing `v` back would have to be held for it; nothing: it could not come back.
  std::optional<Roots> rootsOf(ValueId v) const { return rootsOf(v, kNoValue); }
  // As long as `v` is away.
  void hold(ValueId v, Roots roots);
  void release(ValueId v) { hold(v, {}); }
  // Plain training, or the plan, is done with `root`: held no longer if other values can stand in
  // for it in everything that it is held for.
  void replace(ValueId root);

  bool isHeld(ValueId root) const {
    const auto i = static_cast<size_t>(root.index);
    return i < storages_.size() && storages_[i].first > 0;
  }
  // Whether a reference to the root's storage is in here.
  bool holdsStorage(ValueId root) const {
    return isHeld(root) && storages_[static_cast<size_t>(root.index)].second;
  }

 private:
  using Known = std::vector<std::pair<int, std::optional<Roots>>>;  // by recipe, of one search

  // What `v` can be made from if `without` is not there.
  std::optional<Roots> rootsOf(ValueId v, ValueId without) const;
  std::optional<Roots> search(ValueId v, ValueId without, Known& known) const;
  bool isThere(ValueId v) const { return residency_.isAvailable(v) || pager_.hasCopy(v); }

  const Residency& residency_;
  const Pager& pager_;
  const CompiledPlan* plan_ = nullptr;
  std::vector<std::pair<int, StorageHold>> storages_;  // by value: how many away values need it
  std::vector<Roots> of_;                              // by value: what is held for it
};

}  // namespace poet
