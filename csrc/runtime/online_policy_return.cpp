// How the policy brings values back: where they are read, before writes, and at the step's end.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>

#include "runtime/online_policy.h"
#include "runtime/verify.h"
#include "store/stopwatch.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

class Count {
 public:
  explicit Count(int& count) : count_(count) { ++count_; }
  ~Count() { --count_; }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

 private:
  int& count_;
};

}  // namespace

// A value that another thread asks for, and what it needs, must not die on the step's own thread
// meanwhile: it would be wanted no more, and what it is made from would be dropped on the way.
void OnlinePolicy::materialize(ValueId v) {
  Entry& entry = at(v);
  if (!entry.bound || entry.resident) return;
  const StorageHold lives = entry.alive ? entry.ref.lock() : StorageHold();
  if (entry.alive && !lives) {
    died(v);
    if (entry.wanted == 0) return;
  }
  if (hasCopy(v) && load(v)) return;
  POET_INTERNAL_ASSERT(entry.recipe >= 0, "value ", v.index, " is needed before op ",
                       running_.index, " and is gone for good");
  replay(entry.recipe);
  POET_INTERNAL_ASSERT(entry.resident, "value ", v.index, " did not come back");
}

// Bytes, itself included, while v comes back beside what is there, and no others leave.
int64_t OnlinePolicy::bytesToReturn(ValueId v, uint32_t round) {
  Entry& entry = at(v);
  if (!entry.bound || entry.resident) return 0;
  if (entry.mark == round) return entry.bytes_to_return;
  entry.mark = round;
  entry.bytes_to_return = entry.bytes;
  if (hasCopy(v) || entry.recipe < 0) return entry.bytes;
  std::vector<ValueId> needs;
  for (const Need& need : recipes_[static_cast<size_t>(entry.recipe)].needs)
    needs.push_back(need.value);
  int64_t held = 0, most = 0;
  for (const Returning& each : inOrderOfReturn(needs, round)) {
    most = std::max(most, held + each.most_bytes);
    held += each.bytes;
  }
  return entry.bytes_to_return = std::max(most, held + entry.bytes);
}

// What needs the most room on its way back, beyond its own, comes first: the others need not lie
// beside that. (Sethi and Ullman, "The generation of optimal code for arithmetic expressions",
// 1970, for trees.)
std::vector<OnlinePolicy::Returning> OnlinePolicy::inOrderOfReturn(
    const std::vector<ValueId>& values, uint32_t round) {
  std::vector<Returning> order;
  for (const ValueId v : values) {
    const bool absent = at(v).bound && !at(v).resident;
    order.push_back({v, absent ? at(v).bytes : 0, bytesToReturn(v, round)});
  }
  std::stable_sort(order.begin(), order.end(), [](const Returning& a, const Returning& b) {
    return a.most_bytes - a.bytes > b.most_bytes - b.bytes;
  });
  return order;
}

void OnlinePolicy::comeBackInTurn(const std::vector<ValueId>& values) {
  for (const ValueId v : values) ++at(v).turns;
  std::vector<ValueId> waiting;
  const auto end = [&] {
    for (const ValueId v : values) --at(v).turns;
    for (const ValueId v : waiting) --at(v).waits;
  };
  try {
    for (const ValueId v : values) {
      materialize(v);
      ++at(v).waits;
      waiting.push_back(v);
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

// All of them at once, locked. They come back one after the other, by replays that may go deep: the
// later ones may leave meanwhile, the earlier ones to the store: only together must they fit beside
// the op that reads them.
void OnlinePolicy::bringTogether(const std::vector<ValueId>& values) {
  const auto is_absent = [this](ValueId v) { return at(v).bound && !at(v).resident; };
  const auto absent = std::count_if(values.begin(), values.end(), is_absent);
  if (absent == 1) {  // whatever way it has
    std::vector<ValueId> order = values;
    std::stable_partition(order.begin(), order.end(), is_absent);
    comeBackInTurn(order);
  } else if (absent > 1) {
    std::vector<ValueId> order;
    for (const Returning& each : inOrderOfReturn(values, ++round_)) order.push_back(each.value);
    comeBackInTurn(order);
  }
  for (const ValueId v : values) ++at(v).locks;
  try {
    for (const ValueId v : values) materialize(v);
  } catch (...) {
    for (const ValueId v : values) --at(v).locks;
    throw;
  }
}

// False if the copy is lost and the value can be computed again. Throws StoreError if it cannot.
bool OnlinePolicy::load(ValueId v) {
  StorageHold fresh;
  try {
    const AllocatorTap::RoomGuard room(this);
    pager_.beginRead(v, true);
    fresh = pager_.arrive(v);
  } catch (const StoreError&) {
    if (!recoverable(v)) throw;
    pager_.drop(v);
    leave(v);
    update(v);
    return false;
  }
  ++counters_.page_ins;
  install(v, std::move(fresh));
  return true;
}

void OnlinePolicy::replay(int32_t recipe) {
  const std::vector<Need> needs = recipes_[static_cast<size_t>(recipe)].needs;
  for (const Need& need : needs) {  // an error is better than a wrong number
    POET_INTERNAL_ASSERT(at(need.value).version == need.version, "value ",
                         recipes_[static_cast<size_t>(recipe)].outputs.front().index,
                         " is needed before op ", running_.index, ", and value ", need.value.index,
                         ", which it was made from, has changed");
  }
  std::vector<ValueId> inputs;
  for (const Need& need : needs) inputs.push_back(need.value);
  bringTogether(inputs);
  const auto unlock = [&] {
    for (const ValueId v : inputs) --at(v).locks;
  };
  Made made;
  try {
    const Stopwatch watch(&counters_.replay_seconds);
    const Count count(replaying_);
    const AllocatorTap::RoomGuard room(this);
    for (const OpId op : recipes_[static_cast<size_t>(recipe)].ops) replayOp(op, made);
  } catch (...) {
    unlock();
    throw;
  }
  unlock();
  const LiveRecipe& done = recipes_[static_cast<size_t>(recipe)];
  clock_ += done.seconds;
  ++replays_;
  ++counters_.recomputes;
  counters_.replayed_ops += static_cast<int64_t>(done.ops.size());
  for (const Need& need : needs) scores_->noteTouch(need.value.index, clock_);
  for (auto& [v, storage] : made) {
    const Entry& entry = at(v);
    if (!entry.resident && (entry.alive || entry.wanted > 0)) install(v, std::move(storage));
  }
}

void OnlinePolicy::replayOp(OpId id, Made& made) {
  const RecordedOp& op = recorder_->op(id);
  const bool reads_no_data = recorder_->node(id).reads_no_data;
  const torch::jit::Stack stack =
      runAgain(op, records_[static_cast<size_t>(id.index)],
               [&](const Slot& slot) { return tensorFor(slot, reads_no_data, made); });
  size_t i = 0;
  forEachTensor(stack.data(), stack.size(), [&](const at::Tensor& t, int, int) {
    const Slot& slot = op.out()[i++];
    if (slot.value.valid() && recorder_->value(slot.value).producer == id)
      made.emplace_back(slot.value, StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()));
    return true;
  });
}

uint64_t OnlinePolicy::contentHash(ValueId v, const c10::StorageImpl& storage) const {
  const OpId producer = recorder_->value(v).producer;
  return Verifier::contentHash(storage, v, producer.valid() ? &recorder_->op(producer) : nullptr);
}

// With its data, if that is there.
StorageHold OnlinePolicy::storageOf(ValueId v) const {
  const Entry& entry = at(v);
  if (entry.own) return entry.own;
  StorageHold storage = entry.ref.lock();
  if (!storage && entry.hold) {  // its storage is dead, its memory is not
    storage = emptyStorage(entry.bytes, at::kCPU);
    storage->set_data_ptr_noswap(c10::DataPtr(entry.hold.block(), at::kCPU));
  }
  return storage;
}

at::Tensor OnlinePolicy::tensorFor(const Slot& slot, bool reads_no_data, const Made& made) const {
  for (const auto& [v, scratch] : made) {
    if (v == slot.value) return tensorOn(scratch, slot);
  }
  const Entry& entry = at(slot.value);
  StorageHold storage = storageOf(slot.value);
  if (!storage && reads_no_data) storage = emptyStorage(entry.bytes, slot.look->device);
  POET_INTERNAL_ASSERT(storage && (reads_no_data || entry.resident), "a replay before op ",
                       running_.index, " needs value ", slot.value.index, ", which is not there");
  return tensorOn(std::move(storage), slot);
}

void OnlinePolicy::install(ValueId v, StorageHold fresh) {
  Entry& entry = at(v);
  if (verify_ && entry.content_hash != 0) {
    POET_CHECK_AS(Error, contentHash(v, *fresh) == entry.content_hash,
                  "poet (POET_VERIFY): before op ", running_.index, " value ", v.index,
                  " (made by op ", recorder_->value(v).producer.index,
                  ") came back with other bytes than it was evicted with. Please report this.");
  }
  entry.content_hash = 0;
  const StorageHold storage = entry.ref.lock();
  if (entry.alive && storage) {
    putBack(*storage, *fresh);
  } else {
    entry.own = std::move(fresh);
  }
  entry.resident = true;
  scores_->noteReturn(v.index);
  scores_->noteTouch(v.index, clock_);
  update(v);
}

void OnlinePolicy::restoreAll(bool to_budget) {
  const AllocatorTap::HiddenGuard hidden;
  unlockAll();
  noteDeaths();
  const bool may_stay = to_budget && options_.away_between_steps && paging();
  std::exception_ptr first;
  const auto bring_back = [&](ValueId v) {
    try {
      materialize(v);
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  };
  const auto is_away = [this](ValueId v) { return at(v).bound && !at(v).resident && at(v).alive; };
  // Making room for what comes back must not evict what is to stay, whether it has just come back
  // or never left; or to the store only, from where the next step takes it.
  for (Entry& entry : entries_) {
    const bool stays = entry.bound && entry.alive;
    entry.locks += stays && !may_stay;
    entry.waits += stays && may_stay;
  }
  const auto bring_all_back = [&] {
    first = nullptr;
    for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
      if (is_away(v) && !(may_stay && hasCopy(v))) bring_back(v);
    }
    for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
      if (may_stay && is_away(v) && hasRoomFor(at(v).bytes)) bring_back(v);
    }
  };
  bring_all_back();
  if (first) bring_all_back();  // as Executor::restoreAll
  for (Entry& entry : entries_) entry.locks = entry.waits = 0;
  AllocatorTap::forgetHidden();
  if (first) std::rethrow_exception(first);
}

void OnlinePolicy::handOver(AwayBetween& between) {
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    if (!at(v).alive || at(v).resident) continue;
    const StorageHold storage = at(v).ref.lock();
    if (storage && hasCopy(v)) between.add(storage, pager_.give(v));
  }
}

std::vector<WeakStorage> OnlinePolicy::leftBehind() const {
  std::vector<WeakStorage> left;
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    const Entry& entry = at(v);
    if (entry.bound && entry.alive && !entry.pinned && entry.bytes >= kLeastBytes &&
        recorder_->value(v).evictable && !isForNativeCode(v))
      left.push_back(entry.ref);
  }
  return left;
}

// ------------------------------------------------------------------------------------------------
// writes

void OnlinePolicy::takeAbsent(ValueId v, std::vector<ValueId>& todo) {
  Entry& entry = at(v);
  if (!entry.active || entry.mark == round_) return;
  entry.mark = round_;
  entry.found = false;
  if (entry.alive) {
    todo.push_back(v);
  } else {
    takeDependents(v, todo);
  }
}

void OnlinePolicy::takeDependents(ValueId x, std::vector<ValueId>& todo) {
  for (const int32_t recipe : at(x).readers) {
    for (const ValueId made : recipes_[static_cast<size_t>(recipe)].outputs) takeAbsent(made, todo);
  }
}

// What would be lost with this version of x comes back; what x's recipe makes besides, too, because
// the write may end the recipe.
void OnlinePolicy::beforeWrite(ValueId x) {
  std::vector<ValueId> todo;
  ++round_;
  takeDependents(x, todo);
  if (const LiveRecipe* recipe = recipeOf(x)) {
    for (const ValueId made : recipe->outputs) {
      if (made != x) takeAbsent(made, todo);
    }
  }
  at(x).being_written = true;  // nothing may be evicted that this version would be needed for
  // In the order in which they were made: what one of them leaves behind is soon of use to others,
  // and then to none.
  std::sort(todo.begin(), todo.end());
  const Count count(before_writes_);
  for (const ValueId v : todo) at(v).returning = true;
  const auto no_more = c10::make_scope_exit([&] {
    for (const ValueId v : todo) at(v).returning = false;
  });
  for (const ValueId v : todo) {
    if (at(v).alive || at(v).wanted > 0) materialize(v);
    lock(v);
  }
  if (hasCopy(x)) pager_.drop(x);
}

void OnlinePolicy::touchStorage(c10::StorageImpl* storage) {
  const auto found = value_of_.find(storage);
  if (found == value_of_.end()) return;
  const AllocatorTap::HiddenGuard hidden;
  const ValueId v = found->second;
  noteDeaths();
  materialize(v);
  const size_t locked = locked_.size();
  beforeWrite(v);
  while (locked_.size() > locked) {
    --at(locked_.back()).locks;
    locked_.pop_back();
  }
  Entry& entry = at(v);
  entry.being_written = false;
  entry.pinned = true;
  ++entry.version;  // it may be written from now on
  if (LiveRecipe* recipe = recipeOf(v)) recipe->ok = false;
}

void OnlinePolicy::touch(const c10::IValue* args, size_t count) {
  forEachTensor(args, count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t)) touchStorage(t.storage().unsafeGetStorageImpl());
    return true;
  });
}

}  // namespace poet
