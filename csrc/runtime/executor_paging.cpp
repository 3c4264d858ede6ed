// How the executor moves values to the store and back, and what it believes of values that no op
// has shown yet.
#include <algorithm>

#include "graph/error.h"
#include "runtime/executor.h"
#include "trace/accelerator.h"
#include "trace/allocator_tap.h"

namespace poet {

// ------------------------------------------------------------------------------------------------
// out

// Begins the transfer; settleCopy() ends it.
bool Executor::copyToStore(ValueId v, const StorageHold& storage) {
  if (pager_.hasCopy(v)) return true;  // of this very version: see Note [Copies]
  if (!Accelerator::isSame(storage->device(), pager_.device()))
    return false;  // it takes nothing of the budget
  return pager_.write(v, storage, verify_.enabled() ? contentHash(v, *storage) : 0);
}

// Before its data is given up. False where the store failed: the value stays then.
bool Executor::settleCopy(ValueId v) {
  if (!pager_.isBeingWritten(v)) return true;
  StorageHold storage = residency_[v].ref.lock();
  if (pager_.settle(v)) return true;
  --pager_.counters().planned_page_outs;
  if (storage) keepInMemory(v, std::move(storage));
  return false;
}

// It could not be copied, and the plan's later page_in will rely on the bytes: they stay.
void Executor::keepInMemory(ValueId v, StorageHold storage) {
  residency_[v].pinned = residency_[v].kept = true;
  residency_[v].hold = std::move(storage);
}

void Executor::pageOut(ValueId v) {
  Residency::Entry& entry = residency_[v];
  StorageHold storage = entry.bound && entry.resident ? entry.ref.lock() : StorageHold();
  if (!storage) {
    ++pager_.counters().skipped_page_outs;
    return;
  }
  const bool is_on_its_way = pager_.isBeingWritten(v);  // then the pager owns the data
  const bool may_leave = AllocatorTap::mayReleaseNow(*storage);
  if (!is_on_its_way && (entry.pinned || !may_leave)) {
    if (!may_leave || !entry.kept) pager_.noteShared(storage->nbytes());  // else it failed before
    keepInMemory(v, std::move(storage));
    return;
  }
  if (copyToStore(v, storage)) {
    ++pager_.counters().planned_page_outs;
  } else {
    keepInMemory(v, std::move(storage));
  }
}

// The plan moved it to the store before an op had shown it, when nobody knew where it was (a
// parameter that the step before has given other memory): it goes there now.
bool Executor::pageOutLate(ValueId v) {
  if (plan_->graph().value(v).producer.valid() || !plan_->pagesValue(v) || residency_[v].pinned)
    return false;
  const StorageHold storage = residency_[v].resident ? residency_[v].ref.lock() : StorageHold();
  if (!storage || !AllocatorTap::mayReleaseNow(*storage) || !copyToStore(v, storage) ||
      !settleCopy(v))
    return false;
  ++pager_.counters().planned_page_outs;
  return pager_.hasCopy(v);
}

// What died with the op before has memory in a transfer.
void Executor::settleDead() {
  if (k_ == 0 || !plan_->hot(k_ - 1).has_dead) return;
  const Recording& recording = plan_->recording();
  for (auto i = recording.dead_begin[k_ - 1]; i < recording.dead_begin[k_]; ++i) {
    const ValueId v = recording.dead_after[static_cast<size_t>(i)];
    settleCopy(v);
    if (residency_[v].ref.expired()) pager_.letDie(v);
  }
}

// An input may be a temporary of the caller's that dies inside the call: hold it from here on. What
// decides on in-place accumulation by use count has decided by now.
void Executor::holdForCopies() {
  for (const Action& action : plan_->schedule().after[k_]) {
    const ValueId v(action.arg);
    const bool was_held = static_cast<bool>(residency_[v].hold);
    retain(v);
    if (action.kind == ActionKind::kPageOut && !was_held && residency_[v].hold)
      held_for_copies_.push_back(v);
  }
}

void Executor::performAfter() {
  const std::vector<Action>& actions = plan_->schedule().after[k_];
  for (const Action& action : actions) perform(action);
  for (const ValueId v : held_for_copies_) {
    const bool retained = std::find(actions.begin(), actions.end(),
                                    Action{ActionKind::kRetain, v.index}) != actions.end();
    if (!retained && !residency_[v].kept) residency_[v].hold.reset();
  }
  held_for_copies_.clear();
}

void Executor::dropStaleCopies() {
  // Before the op writes: what is on its way to the store must not change.
  for (const ValueId v : plan_->graph().ops()[k_].mutates) pager_.drop(v);
}

// ------------------------------------------------------------------------------------------------
// in

void Executor::pageIn(ValueId v) {
  Residency::Entry& entry = residency_[v];
  std::erase(stayed_, v);
  std::erase(unlocated_, v);
  if (residency_.isAvailable(v)) {  // it never left
    if (k_ > static_cast<size_t>(plan_->graph().lastShown(v).index) && !entry.hold)
      entry.hold = entry.ref.lock();
    return;
  }
  if (pager_.hasCopy(v)) {
    pager_.beginRead(v, k_ > static_cast<size_t>(plan_->graph().lastShown(v).index));
    ++pager_.counters().planned_page_ins;
    return;
  }
  if (!entry.bound || !canRecompute(v)) return;  // unknown so far, or nobody's any more
  bringBack(v);
  std::erase(temporaries_, v);
  dropTemporaries();
}

// The copy's bytes into the value's storage, which waits for them. False if the copy cannot be read
// and the value can be recomputed; it stays until that has worked. Throws StoreError if it cannot.
bool Executor::load(ValueId v) {
  StorageHold fresh;
  const bool was_begun = pager_.isArriving(v);
  const double waited_before = pager_.counters().waited_seconds;
  try {
    pager_.beginRead(v, true);
    fresh = pager_.arrive(v);
    if (was_begun) {
      awaited_swaps_.push_back(
          {v, OpId(static_cast<int32_t>(k_)), pager_.counters().waited_seconds - waited_before});
    }
  } catch (const StoreError&) {
    if (!canRecompute(v)) throw;
    return false;
  }
  if (verify_.enabled()) verify_.checkContent(*plan_, k_, v, pager_.copyOf(v).content_hash, *fresh);
  install(v, *fresh);
  return true;
}

bool Executor::canRecompute(ValueId v) const {
  std::vector<bool> asked(plan_->recipes().recipes().size(), false);
  return canRecompute(*plan_, v, asked);
}

bool Executor::canRecompute(const CompiledPlan& plan, ValueId v, std::vector<bool>& asked) const {
  std::vector<ValueId> todo{v};
  while (!todo.empty()) {
    const ValueId value = todo.back();
    todo.pop_back();
    const int r = plan.recipes().recipeOf(value);
    if (r < 0 || isWrittenElsewhere(value)) return false;
    if (asked[static_cast<size_t>(r)]) continue;  // whoever asked first finds out
    asked[static_cast<size_t>(r)] = true;
    const Recipe& recipe = plan.recipes().recipes()[static_cast<size_t>(r)];
    if (k_ <= static_cast<size_t>(recipe.lastOp().index) ||
        k_ > static_cast<size_t>(recipe.unchanged_until.index))
      return false;
    const bool recorded = std::all_of(recipe.ops.begin(), recipe.ops.end(), [&](OpId op) {
      return records_[static_cast<size_t>(op.index)].isSet();
    });
    if (!recorded) return false;
    for (const ValueId input : recipe.inputs) {
      // What was recorded holds what this plan's records hold.
      if (plan.isHeldByRecords(input) != plan_->isHeldByRecords(input)) return false;
      if (isWrittenElsewhere(input)) return false;
      if (mustComeBack(input) && !pager_.hasCopy(input)) todo.push_back(input);
    }
  }
  return true;
}

// ------------------------------------------------------------------------------------------------
// values from before the step

void Executor::presume(const std::vector<Presumed>& values, const std::vector<StorageHold>& back,
                       AwayBetween& between) {
  between_ = &between;
  const auto come_back = [](auto&& restore) {
    try {
      restore();
      return true;
    } catch (const StoreError&) {  // lost: who touches it hears of it
      return false;
    }
  };
  // What the plan has away leaves before the rest comes back: together they may not fit.
  for (const Presumed& one : values) {
    if (!between.has(one.storage.get())) {
      residency_.presume(one.value, one.storage, false);
    } else if (plan_->isAwayBetweenSteps(one.value) &&
               residency_.presume(one.value, one.storage, true)) {
      pager_.adopt(one.value, between.take(one.storage.get()));
    }
  }
  moveOutAtStart();
  for (const Presumed& one : values) {
    if (between.has(one.storage.get()) && !plan_->isAwayBetweenSteps(one.value) &&
        come_back([&] { between.restore(one.storage.get()); }))
      residency_.presume(one.value, one.storage, false);
  }
  for (const StorageHold& storage : back) come_back([&] { between.restore(storage.get()); });
  for (const ValueId v : plan_->schedule().away_between_steps) {
    if (isUnlocated(v)) unlocated_.push_back(v);
  }
}

void Executor::moveOutAtStart() {
  for (const ValueId v : plan_->schedule().away_between_steps) {
    const Residency::Entry& entry = residency_[v];
    const StorageHold storage = entry.resident ? entry.ref.lock() : StorageHold();
    if (!storage || entry.pinned || !AllocatorTap::mayReleaseNow(*storage)) continue;
    if (!copyToStore(v, storage) || !pager_.settle(v)) continue;
    ++pager_.counters().moved_between_steps;
    residency_.evict(v);
  }
}

// An op shows the value: what was presumed of it, or of its storage, is right or wrong now.
void Executor::confirm(const NewBinding& binding) {
  c10::StorageImpl* storage = binding.tensor->storage().unsafeGetStorageImpl();
  const ValueId known = residency_.valueOf(storage);
  if (known.valid() && known != binding.value) disown(known);
  const Residency::Entry& entry = residency_[binding.value];
  if (entry.bound && entry.address != storage) disown(binding.value);
  residency_.bind(binding.value, *binding.tensor);
  residency_[binding.value].first_offset = binding.tensor->storage_offset();
}

// The storage is not that value's after all. Where it is away it stays so until something shows it:
// the state that an optimizer had before another was loaded, say.
void Executor::disown(ValueId v) {
  handOver(v);
  pager_.drop(v);
  residency_.unbind(v);
}

// What is away of a value that was presumed.
void Executor::handOver(ValueId v) {
  const StorageHold storage = residency_[v].away ? residency_[v].ref.lock() : StorageHold();
  if (storage && pager_.hasCopy(v)) between_->add(storage, pager_.give(v));
}

void Executor::noteStorages(std::vector<OutsideValue>& outside) const {
  for (OutsideValue& one : outside) {
    const auto& early = plan_->movedEarly();
    if (!std::binary_search(early.begin(), early.end(), one.value)) continue;
    const Residency::Entry& entry = residency_[one.value];
    if (entry.bound && !entry.presumed) one.storage = entry.ref;
  }
}

void Executor::handOver(AwayBetween& between) {
  const std::vector<ValueId> away = residency_.away();
  for (const ValueId v : away) {
    const StorageHold storage = residency_[v].ref.lock();
    if (storage && pager_.hasCopy(v)) between.add(storage, pager_.give(v));
  }
}

}  // namespace poet
