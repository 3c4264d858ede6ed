// See Note [Roots].
#include "runtime/root_holds.h"

#include <algorithm>

namespace poet {

void RootHolds::begin(const CompiledPlan& plan) {
  clear();
  switchTo(plan);
}

void RootHolds::switchTo(const CompiledPlan& plan) {
  plan_ = &plan;
  const size_t values = std::max(storages_.size(), plan.graph().values().size());
  storages_.resize(values);
  of_.resize(values);
}

void RootHolds::clear() {
  for (auto& [count, storage] : storages_) {
    count = 0;
    storage.reset();
  }
  for (Roots& roots : of_) roots.clear();
}

void RootHolds::hold(ValueId v, Roots roots) {
  for (ValueId root : roots) {  // first: what both have in common must not go in between
    auto& [count, storage] = storages_[static_cast<size_t>(root.index)];
    if (++count == 1) storage = residency_[root].ref.lock();
  }
  for (ValueId root : std::exchange(of_[static_cast<size_t>(v.index)], std::move(roots))) {
    auto& [count, storage] = storages_[static_cast<size_t>(root.index)];
    if (--count == 0) storage.reset();
  }
}

void RootHolds::replace(ValueId root) {
  if (!isHeld(root)) return;
  for (ValueId v(0); static_cast<size_t>(v.index) < of_.size(); ++v.index) {
    const Roots& now = of_[static_cast<size_t>(v.index)];
    if (std::find(now.begin(), now.end(), root) == now.end()) continue;
    if (std::optional<Roots> others = rootsOf(v, root)) hold(v, std::move(*others));
  }
}

std::optional<RootHolds::Roots> RootHolds::rootsOf(ValueId v, ValueId without) const {
  Known known;
  return search(v, without, known);
}

std::optional<RootHolds::Roots> RootHolds::search(ValueId v, ValueId without, Known& known) const {
  const int r = plan_->recipes().recipeOf(v);
  if (r < 0) return std::nullopt;
  const std::span<const ValueId> last = plan_->rootsOf(v);
  const bool all_there = std::all_of(
      last.begin(), last.end(), [&](ValueId root) { return root != without && isThere(root); });
  if (all_there) return Roots(last.begin(), last.end());
  const auto found =
      std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == r; });
  if (found != known.end()) return found->second;
  const auto at = known.size();
  known.emplace_back(r, std::nullopt);  // a value cannot be made from itself
  const auto& recipes = plan_->recipes().recipes();
  const Recipe& recipe = recipes[static_cast<size_t>(r)];
  Roots roots;
  for (ValueId input : recipe.inputs) {
    if (plan_->isHeldByRecords(input)) continue;
    const int feeder = plan_->recipes().recipeOf(input);
    std::optional<Roots> more;
    if (feeder >= 0 && recipe.isFedBy(recipes[static_cast<size_t>(feeder)]))
      more = search(input, without, known);
    if (!more && input != without && isThere(input)) more = Roots{input};
    if (!more) return std::nullopt;
    roots.insert(roots.end(), more->begin(), more->end());
  }
  std::sort(roots.begin(), roots.end());
  roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
  known[at].second = roots;
  return roots;
}

}  // namespace poet
