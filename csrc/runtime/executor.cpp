// Matching and following; executor_replay.cpp and executor_paging.cpp bring values back,
// executor_departure.cpp leaves the plan.
#include "runtime/executor.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <span>
#include <utility>

#include "graph/error.h"
#include "graph/heap_bytes.h"
#include "trace/allocator_tap.h"
#include "trace/kept_storages.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {
void Executor::begin(std::shared_ptr<const CompiledPlan> plan) {
  plan_ = std::move(plan);
  k_ = 0;
  residency_.begin(plan_->graph());
  residency_.handedOut().dropDead();
  for (const ValueId v : plan_->pinned()) residency_[v].pinned = true;
  pager_.end();
  records_.resize(std::max(records_.size(), plan_->numOps()));
  root_holds_.begin(*plan_);
  stay_excess_ = StayExcess();
  beside_bytes_ = 0;
  most_restored_ = 0;
  awaited_swaps_.clear();
  verify_.beginStep();
}

void Executor::end() {
  pager_.end();
  leave();
}

int64_t Executor::ownBytes() const {
  return records_.ownBytes() + residency_.ownBytes() + pager_.ownBytes();
}

void Executor::leave() {
  residency_.clear();
  records_.clear();
  root_holds_.clear();
  temporaries_.clear();
  held_for_copies_.clear();
  stayed_.clear();
  unlocated_.clear();
  written_elsewhere_.clear();
  reads_written_.clear();
}

std::string Executor::describe(ValueId v) const {
  const OpId producer = plan_->graph().value(v).producer;
  return detail::message("value ", v.index, " (",
                         producer.valid() ? detail::message("made by op ", producer.index, ", ",
                                                            plan_->graph().op(producer).name)
                                          : "from before the step",
                         ")");
}

std::string Executor::describe(size_t op) const {
  return op < plan_->numOps() ? detail::message("op ", op, " (", plan_->graph().ops()[op].name, ")")
                              : "end of the step";
}

bool Executor::matches(const c10::OperatorHandle& op, const c10::IValue* args, std::string& why) {
  if (k_ >= plan_->numOps()) {
    why = detail::message("the step goes on after its last traced op with ", traitsOf(op).name);
    return false;
  }
  const HotOp& hot = plan_->hot(k_);
  if (&op.schema() != hot.schema) {
    why = detail::message(describe(k_), " was expected, ", traitsOf(op).name, " came");
    return false;
  }
  if (!matchesSlots(*plan_, args)) {
    why = detail::message(describe(k_), " has other shapes or other tensors than were traced");
    return false;
  }
  for (const NewBinding& binding : new_bindings_) confirm(binding);
  new_bindings_.clear();  // the tensors go with the call
  return true;
}

bool Executor::wouldMatch(const CompiledPlan& plan, const c10::OperatorHandle& op,
                          const c10::IValue* args) {
  return k_ < plan.numOps() && &op.schema() == plan.hot(k_).schema && matchesSlots(plan, args);
}

// Of a value from before the step, which `t` shows: see Note [Batches that are slices].
int64_t Executor::firstOffset(ValueId v, const at::Tensor& t) const {
  if (static_cast<size_t>(v.index) < residency_.size()) {
    const Residency::Entry& entry = residency_[v];
    if (entry.bound && !entry.presumed) return entry.first_offset;
  }
  for (const NewBinding& other : new_bindings_) {
    if (other.value == v) return other.tensor->storage_offset();
  }
  return t.storage_offset();
}

int64_t Executor::shiftOf(ValueId v) const {
  const Residency::Entry& entry = residency_[v];
  if (!entry.bound || entry.presumed) return 0;  // of what the step made both offsets are 0
  return entry.first_offset - plan_->recording().first_offset[static_cast<size_t>(v.index)];
}

// See Note [Memory that others may write].
bool Executor::isSharedAsRecorded(const CompiledPlan& plan, ValueId v,
                                  const c10::StorageImpl& storage) const {
  const Sharing recorded = plan.recording().sharingOf(v);
  if (recorded == Sharing::kTrusted) return true;
  const ValueId known = residency_.valueOf(const_cast<c10::StorageImpl*>(&storage));
  // While a transfer reads it, the storage only points to memory that poet holds.
  const bool is_leaving = known.valid() && pager_.isBeingWritten(known);
  const bool is_shared =
      is_leaving ? KeptStorages::isShared(storage) : AllocatorTap::isShared(storage);
  return is_shared == (recorded == Sharing::kShared);
}

bool Executor::matchesSlots(const CompiledPlan& plan, const c10::IValue* args) {
  const HotOp& hot = plan.hot(k_);
  const Slot* slot = hot.slots;
  const Slot* const end = slot + hot.n_in;
  new_bindings_.clear();
  const bool same = forEachTensor(args, hot.n_args, [&](const at::Tensor& t, int, int) {
    if (slot == end) return false;
    const ValueId v = slot->value;
    const int64_t first_offset = slot->outside ? firstOffset(v, t) : 0;
    if (geometryHash(t, first_offset) != slot->hash) return false;
    ++slot;
    if (!v.valid()) return true;
    c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
    if (static_cast<size_t>(v.index) < residency_.size() && residency_[v].bound &&
        !residency_[v].presumed)
      return residency_[v].address == storage;
    const ValueId known = residency_.valueOf(storage);
    if (known.valid() && !residency_[known].presumed) return false;  // known as another value
    for (const NewBinding& other : new_bindings_) {
      const bool same_storage = other.tensor->storage().unsafeGetStorageImpl() == storage;
      if (same_storage != (other.value == v)) return false;
      if (same_storage) return true;
    }
    if (!isSharedAsRecorded(plan, v, *storage)) return false;
    new_bindings_.push_back({v, &t});
    return true;
  });
  return same && slot == end;
}

void Executor::before(const c10::IValue* args, c10::DispatchKeySet below) {
  const HotOp& hot = plan_->hot(k_);
  if (pager_.isTransferring()) settleDead();
  buryDead();
  if (hot.has_before) {
    for (const Action& action : plan_->schedule().before[k_]) perform(action);
  }
  if (!stayed_.empty() || !unlocated_.empty()) noteStayed();
  if (hot.has_rescue) {
    for (ValueId v : plan_->rescuesBefore(k_)) {
      if (residency_[v].away && !residency_[v].ref.expired() && !pager_.hasCopy(v))
        bringBackUnplanned(v);
    }
  }
  if (!hot.metadata_only && !hot.reads_no_data) {
    const Slot* slot = hot.slots;
    for (const Slot* end = slot + hot.n_in; slot != end; ++slot) {
      if (slot->value.valid() && !residency_[slot->value].resident) bringBackUnplanned(slot->value);
    }
  }
  if (hot.has_after) holdForCopies();
  if (hot.record) {
    const auto held = [this](ValueId v) { return plan_->isHeldByRecords(v); };
    records_.forCapture(k_).capture(plan_->recording().ops[k_], held,
                                    plan_->graph().ops()[k_].random, args, hot.n_args, below);
  }
  if (hot.mutates && pager_.hasCopies()) dropStaleCopies();
  if (verify_.enabled()) verify_.beforeKernel(*plan_, k_, [this] { return bytesMissing(); });
}

// Note [Ahead of the kernel]
// What poet knows of an op is read once a step, so that it comes from main memory each time: some
// ten lines, each found through the last one. They are asked for three ops ahead (the packed op),
// two (its slots) and one (the entries of its values), and come while kernels run. Of many slots
// the first: a processor has few requests under way, and those that lie side by side come of
// themselves. In samples of processor time a sixth less of poet's own code; the pairs of
// benchmarks/hot_path.py do not tell it from noise (benchmarks/nightly.md).
void Executor::prefetch() const {
  static constexpr uint32_t kMost = 12;
  const size_t ops = plan_->numOps();
  if (k_ + 3 < ops) __builtin_prefetch(&plan_->hot(k_ + 3));
  const auto slotsOf = [](const CompiledPlan::HotOp& hot) {
    return std::span<const Slot>(hot.slots, std::min(hot.n_in + hot.n_out, kMost));
  };
  if (k_ + 2 < ops) {
    for (const Slot& slot : slotsOf(plan_->hot(k_ + 2))) __builtin_prefetch(&slot);
  }
  if (k_ + 1 >= ops) return;
  for (const Slot& slot : slotsOf(plan_->hot(k_ + 1))) {
    if (static_cast<size_t>(slot.value.index) < residency_.size())  // kNoValue is beyond it
      __builtin_prefetch(&residency_[slot.value], /*rw=*/1);
  }
}

int64_t Executor::roomForOp() const {
  const std::optional<int64_t> budget = plan_->schedule().ram_budget_bytes;
  if (!budget) return std::numeric_limits<int64_t>::max();
  const Op& op = plan_->graph().ops()[k_];
  int64_t own = op.workspace_bytes;
  for (const ValueId v : op.outputs) {
    const Value& value = plan_->graph().value(v);
    if (value.producer.index == static_cast<int64_t>(k_)) own += value.bytes;
  }
  return own + std::max<int64_t>(0, *budget - plan_->residentBytes()[k_]);
}

bool Executor::bindResults(const c10::IValue* results, std::string& why) {
  if (verify_.enabled()) verify_.afterKernel(*plan_, k_, [this] { return bytesHeldLonger(); });
  const HotOp& hot = plan_->hot(k_);
  if (hot.raises) {
    why = detail::message(describe(k_), " raised an error when it was traced, and none now");
    return false;
  }
  if (!hot.metadata_only) {
    const Slot* slot = hot.slots + hot.n_in;
    const Slot* const end = slot + hot.n_out;
    const bool same = forEachTensor(results, hot.n_returns, [&](const at::Tensor& t, int, int) {
      if (slot == end) return false;
      const ValueId v = slot->value;
      const int64_t first_offset = slot->outside ? firstOffset(v, t) : 0;
      if (geometryHash(t, first_offset) != slot->hash) return false;
      if (slot->outside && (!residency_[v].bound || residency_[v].presumed)) {
        if (!isSharedAsRecorded(*plan_, v, *t.storage().unsafeGetStorageImpl())) return false;
        confirm({v, &t});
      }
      if (slot->made_here && !residency_.bind(slot->value, t)) return false;
      ++slot;
      return true;
    });
    if (!same || slot != end) {
      why = detail::message(describe(k_), " made other results than were traced");
      return false;
    }
  }
  return true;
}

void Executor::unbindResults() {
  const HotOp& hot = plan_->hot(k_);
  const Slot* slot = hot.slots + hot.n_in;
  for (const Slot* end = slot + hot.n_out; slot != end; ++slot) {
    if (slot->made_here && residency_[slot->value].bound) residency_.unbind(slot->value);
  }
}

// Of values that the plan moves before an op shows them, and that nobody has found: what it would
// have in memory of them by now. A page_in of what is unknown does nothing, a page_out or a free
// marks it as gone.
int64_t Executor::bytesMissing() const {
  int64_t bytes = 0;
  for (const ValueId v : plan_->movedEarly()) {
    if (!residency_[v].bound && residency_[v].resident && !plan_->isAwayBetweenSteps(v))
      bytes += plan_->graph().value(v).bytes;
  }
  return bytes;
}

int64_t Executor::bytesHeldLonger() const {
  const std::vector<bool> held_by_poet_only = heldOnly();
  int64_t bytes = 0;
  // After a switch there may be more entries than the plan has values.
  for (ValueId v(0); v.index < plan_->graph().numValues(); ++v.index) {
    const Value& value = plan_->graph().value(v);
    const bool is_dead = value.death.valid() && static_cast<size_t>(value.death.index) < k_;
    // Whatever the plan says: NumPy shares it, say, or another thread has touched it.
    const bool stays = residency_[v].kept || residency_[v].pinned ||
                       std::find(stayed_.begin(), stayed_.end(), v) != stayed_.end();
    const bool longer = is_dead && !held_by_poet_only[static_cast<size_t>(v.index)];
    const bool unseen = is_dead && residency_[v].foreign;  // the tap never counted it
    if (unseen || (residency_.isAvailable(v) && (stays || longer))) bytes += value.bytes;
  }
  return bytes;
}

bool Executor::afterRaise() {
  if (!plan_->hot(k_).raises) return false;
  advance();
  return true;
}

void Executor::advance() {
  if (plan_->hot(k_).has_after) performAfter();
  ++k_;
}

// What died with the op before. Ahead of the actions: the plan counts on the memory of what is held
// for their sake.
void Executor::buryDead() {
  if (k_ == 0 || !plan_->hot(k_ - 1).has_dead) return;
  const Recording& recording = plan_->recording();
  const auto forEachDead = [&](auto&& bury) {
    for (auto i = recording.dead_begin[k_ - 1]; i < recording.dead_begin[k_]; ++i) {
      const ValueId v = recording.dead_after[static_cast<size_t>(i)];
      bury(v, residency_[v]);
    }
  };
  forEachDead([&](ValueId v, const Residency::Entry& entry) {
    if (entry.away && entry.ref.expired()) root_holds_.release(v);
  });
  forEachDead([&](ValueId v, const Residency::Entry& entry) {
    if (root_holds_.isHeld(v)) {
      root_holds_.replace(v);
      // Alive for the sake of something that may have to be recomputed from it: the copy will do.
      if (root_holds_.isHeld(v) && entry.resident && !entry.hold && pager_.hasCopy(v))
        residency_.evict(v);
    }
    residency_.forgetIfDead(v);
    if (!entry.ref.expired() && outlivesThePlan(v)) stayed_.push_back(v);
  });
}

// It died here when the step was recorded, and the program has it still: a list, a hook, a graph
// that is kept.
bool Executor::outlivesThePlan(ValueId v) const {
  const Residency::Entry& entry = residency_[v];
  if (!entry.resident || entry.hold || root_holds_.isHeld(v)) return false;
  return std::find(stayed_.begin(), stayed_.end(), v) == stayed_.end();
}

void Executor::finish() {
  if (pager_.isTransferring()) settleDead();
  buryDead();
  for (const Action& action : plan_->schedule().before[k_]) perform(action);
}

void Executor::perform(const Action& action) {
  switch (action.kind) {
    case ActionKind::kFree:
      free(ValueId(action.arg));
      return;
    case ActionKind::kRecompute:
      recompute(plan_->recipeOfAction(action.arg));
      return;
    case ActionKind::kPageOut:
      pageOut(ValueId(action.arg));
      return;
    case ActionKind::kPageIn:
      pageIn(ValueId(action.arg));
      return;
    case ActionKind::kRetain:
      retain(ValueId(action.arg));
      return;
  }
}

void Executor::free(ValueId v) {
  Residency::Entry& entry = residency_[v];
  if (isUnlocated(v)) unlocated_.push_back(v);
  pager_.cancelRead(v);  // nothing needed it
  if (entry.kept || !settleCopy(v)) {
    stayed_.push_back(v);
    return;
  }
  if (entry.resident && verify_.enabled()) {
    if (const StorageHold storage = entry.ref.lock()) entry.content_hash = contentHash(v, *storage);
  }
  entry.hold.reset();
  const bool is_dead = static_cast<size_t>(plan_->graph().value(v).death.index) < k_;
  if (is_dead) root_holds_.replace(v);
  if (entry.ref.expired()) {
    entry.resident = false;
    return;
  }
  // Where somebody holds it longer than in the trace it is theirs now.
  if (entry.away || (!is_dead && letGo(v))) return;
  ++counters_.skipped_frees;
  stayed_.push_back(v);
}

bool Executor::letGo(ValueId v) {
  std::optional<RootHolds::Roots> roots;
  if (!pager_.hasCopy(v) && !pageOutLate(v)) {
    if (plan_->wouldBeLost(v, k_) || isStale(plan_->recipes().recipeOf(v))) return false;
    roots = root_holds_.rootsOf(v);
    if (!roots) return false;
  }
  if (!residency_.evict(v)) return false;
  ++counters_.evictions;
  if (roots) root_holds_.hold(v, std::move(*roots));
  return true;
}

// What the plan has away and is there all the same may take the step above its budget.
void Executor::noteStayed() {
  std::erase_if(stayed_,
                [this](ValueId v) { return residency_[v].away || residency_[v].ref.expired(); });
  std::erase_if(unlocated_, [this](ValueId v) { return residency_[v].bound; });
  const std::optional<int64_t> budget = plan_->schedule().ram_budget_bytes;
  if ((stayed_.empty() && unlocated_.empty()) || !budget) return;
  int64_t bytes = 0;
  for (const ValueId v : stayed_) bytes += plan_->graph().value(v).bytes;
  for (const ValueId v : unlocated_) bytes += plan_->graph().value(v).bytes;
  const int64_t excess = plan_->residentBytes()[k_] + beside_bytes_ + bytes - *budget;
  if (excess > stay_excess_.bytes) {
    const ValueId first = stayed_.empty() ? unlocated_.front() : stayed_.front();
    stay_excess_ = {excess, bytes, describe(k_), describe(first), stayed_.empty()};
  }
}

std::vector<WeakStorage> Executor::outlived(bool failed) const {
  std::vector<WeakStorage> alive;
  const auto add = [&](ValueId v) {
    const Residency::Entry& entry = residency_[v];
    if (entry.bound && plan_->graph().value(v).producer.valid() && !entry.ref.expired())
      alive.push_back(entry.ref);
  };
  if (failed) {
    const auto last =
        std::min<int64_t>(static_cast<int64_t>(residency_.size()), plan_->graph().numValues());
    for (ValueId v(0); v.index < last; ++v.index) add(v);
  } else {
    for (const ValueId v : stayed_) add(v);
  }
  return alive;
}

// Gradients may be None by now, and inputs other ones: such a value is not anywhere.
bool Executor::isUnlocated(ValueId v) const {
  const auto& early = plan_->movedEarly();
  if (residency_[v].bound || !std::binary_search(early.begin(), early.end(), v)) return false;
  const auto& outside = plan_->recording().outside;
  const auto found = std::find_if(outside.begin(), outside.end(),
                                  [v](const OutsideValue& one) { return one.value == v; });
  return found != outside.end() && found->input_position < 0 && !found->is_gradient;
}

uint64_t Executor::contentHash(ValueId v, const c10::StorageImpl& storage) const {
  const OpId producer = plan_->graph().value(v).producer;
  const auto& ops = plan_->recording().ops;
  return Verifier::contentHash(
      storage, v, producer.valid() ? &ops[static_cast<size_t>(producer.index)] : nullptr);
}

void Executor::retain(ValueId v) {
  Residency::Entry& entry = residency_[v];
  if (pager_.isArriving(v)) bringBack(v);
  if (entry.bound && entry.resident && !entry.hold) entry.hold = entry.ref.lock();
}

}  // namespace poet
