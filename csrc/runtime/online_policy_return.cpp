// How the policy brings values back: where they are read, before writes, and at the step's end.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <unordered_map>
#include <utility>

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
  if (depth_ < kDeepest) {
    const Count deeper(depth_);
    replay(entry.recipe);
  } else {
    comeBackInStages(v);
  }
  POET_INTERNAL_ASSERT(entry.resident, "value ", v.index, " did not come back");
}

// Note [Deep replays]
// A replay needs its inputs, whose replays need theirs: a chain of thousands of operators, of which
// one value is left, would take as many calls within calls as a thread's stack does not hold. What
// is kDeepest replays deep comes back in stages of half as many: the values at the end of a stage
// that later ones are made from are held until the next stage has come to its end.

// For each stage on the way to v the absent values that its later part is made from, those first
// that others are made from. A value's level is the longest chain of replays to it.
std::vector<std::vector<ValueId>> OnlinePolicy::stagesTo(ValueId v) const {
  constexpr int kLevels = kDeepest / 2;
  struct Way {
    int level = 0;  // 0: not known yet
    int last = 0;   // level of what is made from it
  };
  std::unordered_map<int64_t, Way> ways;
  std::vector<ValueId> order;
  const auto is_on_the_way = [this](ValueId value) {
    const Entry& entry = at(value);
    return entry.bound && !entry.resident && entry.recipe >= 0 && !hasCopy(value);
  };
  const auto needsOf = [this](ValueId value) -> const std::vector<Need>& {
    return recipes_[static_cast<size_t>(at(value).recipe)].needs;
  };
  std::vector<std::pair<ValueId, size_t>> open{{v, 0}};
  ways[v.index];
  while (!open.empty()) {
    auto& [value, next] = open.back();
    const std::vector<Need>& needs = needsOf(value);
    if (next < needs.size()) {
      const ValueId input = needs[next++].value;
      if (is_on_the_way(input) && ways.emplace(input.index, Way()).second)
        open.emplace_back(input, 0);
      continue;
    }
    int level = 1;
    for (const Need& need : needs) {
      if (is_on_the_way(need.value)) level = std::max(level, ways[need.value.index].level + 1);
    }
    ways[value.index].level = level;
    for (const Need& need : needs) {
      if (!is_on_the_way(need.value)) continue;
      int& last = ways[need.value.index].last;
      last = std::max(last, level);
    }
    order.push_back(value);
    open.pop_back();
  }
  std::vector<std::vector<ValueId>> stages(static_cast<size_t>(ways[v.index].level - 1) / kLevels);
  for (const ValueId value : order) {
    const auto [level, last] = ways[value.index];
    for (int end = (level + kLevels - 1) / kLevels * kLevels; end < last; end += kLevels)
      stages[static_cast<size_t>(end / kLevels - 1)].push_back(value);
  }
  return stages;
}

void OnlinePolicy::comeBackInStages(ValueId v) {
  std::vector<ValueId> held;
  const auto end = [&, depth = std::exchange(depth_, 0)] {
    for (const ValueId each : held) --at(each).locks;
    depth_ = depth;
  };
  try {
    for (const std::vector<ValueId>& stage : stagesTo(v)) {
      const size_t before = held.size();
      for (const ValueId each : stage) {
        if (at(each).alive || at(each).wanted > 0) materialize(each);
        ++at(each).locks;
        held.push_back(each);
      }
      for (size_t i = 0; i < before; ++i) --at(held[i]).locks;
      held.erase(held.begin(), held.begin() + static_cast<std::ptrdiff_t>(before));
    }
    if (!at(v).resident) replay(at(v).recipe);
  } catch (...) {
    end();
    throw;
  }
  end();
}

// Bytes, itself included, while v comes back beside what is there, and no others leave. Of deep
// replays the last ones, as far as they are told apart.
int64_t OnlinePolicy::bytesToReturn(ValueId v, uint32_t round, int depth) {
  Entry& entry = at(v);
  if (!entry.bound || entry.resident) return 0;
  if (entry.mark == round) return entry.bytes_to_return;
  entry.mark = round;
  entry.bytes_to_return = entry.bytes;
  if (hasCopy(v) || entry.recipe < 0 || depth == kDeepest) return entry.bytes;
  const LiveRecipe& recipe = recipes_[static_cast<size_t>(entry.recipe)];
  int64_t made = 0, most = 0;
  for (const OpId op : recipe.ops) {
    int64_t held = made;
    for (const Returning& each : inOrderOfReturn(readBy(op, recipe), round, depth + 1)) {
      most = std::max(most, held + each.most_bytes);
      held += each.bytes;
    }
    most = std::max(most, held - made + entry.bytes);
    made = entry.bytes;
  }
  return entry.bytes_to_return = most;
}

// What needs the most room on its way back, beyond its own, comes first: the others need not lie
// beside that. (Sethi and Ullman, "The generation of optimal code for arithmetic expressions",
// 1970, for trees.)
std::vector<OnlinePolicy::Returning> OnlinePolicy::inOrderOfReturn(
    const std::vector<ValueId>& values, uint32_t round, int depth) {
  std::vector<Returning> order;
  for (const ValueId v : values) {
    const bool absent = at(v).bound && !at(v).resident;
    order.push_back({v, absent ? at(v).bytes : 0, bytesToReturn(v, round, depth)});
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
  Made made;
  const std::vector<OpId> ops = recipes_[static_cast<size_t>(recipe)].ops;
  // What later ops read comes back for them: a sum of many gradients does not need all at once.
  std::vector<std::vector<ValueId>> reads;
  std::unordered_map<int64_t, size_t> last_read;
  for (size_t i = 0; i < ops.size(); ++i) {
    reads.push_back(readBy(ops[i], recipes_[static_cast<size_t>(recipe)]));
    if (ops.size() == 1) break;
    for (const ValueId v : reads[i]) last_read[v.index] = i;
  }
  // Such inputs come and go: what those that were away are made from stays until the last of them.
  std::vector<ValueId> passing;
  for (const Need& need : needs) {
    if (ops.size() > 1 && at(need.value).active && !at(need.value).alive)
      passing.push_back(need.value);
  }
  for (const ValueId v : passing) ++at(v).passing;
  const auto no_more = c10::make_scope_exit([&] {
    for (const ValueId v : passing) {
      --at(v).passing;
      update(v);
    }
  });
  for (size_t i = 0; i < ops.size(); ++i) {
    bringTogether(reads[i]);
    {
      const auto unlock = c10::make_scope_exit([&] {
        for (const ValueId v : reads[i]) --at(v).locks;
      });
      const Stopwatch watch(&counters_.replay_seconds);
      const Count count(replaying_);
      const AllocatorTap::RoomGuard room(this);
      std::optional<StepArena::SideGuard> side;
      if (options_.policy.windows) side.emplace(sideOf(recorder_->op(ops.front()).handle));
      replayOp(ops[i], made);
    }
    if (i + 1 == ops.size()) break;
    for (const ValueId v : reads[i]) {
      if (last_read[v.index] == i) letGoOf(v, recipe);
    }
  }
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

// What a recipe that is under way has read, and will not read any more: plain training let go of it
// there. It may leave though replays have run out: for this recipe it does not come back again.
void OnlinePolicy::letGoOf(ValueId v, int32_t recipe) {
  const std::vector<ValueId>& outputs = recipes_[static_cast<size_t>(recipe)].outputs;
  const auto wants = std::count_if(outputs.begin(), outputs.end(),
                                   [this](ValueId made) { return at(made).active; });
  const Entry& entry = at(v);
  if (!entry.alive && mayLeave(v) && entry.turns + entry.waits == 0 && entry.wanted == wants)
    evict(v, false);
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

void OnlinePolicy::addDependents(ValueId x, std::vector<ValueId>& values) const {
  for (const int32_t recipe : at(x).readers) {
    const std::vector<ValueId>& made = recipes_[static_cast<size_t>(recipe)].outputs;
    values.insert(values.end(), made.begin(), made.end());
  }
}

// Of the absent ones among `values`, and among what is made from those by way of dead ones, those
// that the program can reach. Each once a round.
void OnlinePolicy::takeAbsent(std::vector<ValueId> values, std::vector<ValueId>& todo) {
  while (!values.empty()) {
    const ValueId v = values.back();
    values.pop_back();
    Entry& entry = at(v);
    if (!entry.active || entry.mark == round_) continue;
    entry.mark = round_;
    entry.found = false;
    if (entry.alive) {
      todo.push_back(v);
    } else {
      addDependents(v, values);
    }
  }
}

// What would be lost with this version of x comes back; what x's recipe makes besides, too, because
// the write may end the recipe.
void OnlinePolicy::beforeWrite(ValueId x) {
  std::vector<ValueId> todo, concerned;
  ++round_;
  addDependents(x, concerned);
  if (const LiveRecipe* recipe = recipeOf(x)) {
    for (const ValueId made : recipe->outputs) {
      if (made != x) concerned.push_back(made);
    }
  }
  takeAbsent(std::move(concerned), todo);
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
