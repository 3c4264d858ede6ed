// How the policy makes room, and how it brings values back.
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <limits>

#include "runtime/budget.h"
#include "runtime/online_policy.h"
#include "runtime/verify.h"
#include "store/stopwatch.h"
#include "trace/op_traits.h"
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

// ------------------------------------------------------------------------------------------------
// room

void OnlinePolicy::makeRoom(int64_t bytes) {
  if (!isActive()) return;
  // What the step had to take once is taken: below that it would only thrash. The self-checking
  // mode is as harsh as the budget.
  const int64_t most = options_.budget_bytes + (verify_ ? 0 : over_bytes_);
  if (residentBytes() + bytes <= most) return;
  const Stopwatch watch(&seconds_);
  const AllocatorTap::HiddenGuard hidden;
  made_room_ = true;
  noteDeaths();
  while (residentBytes() + bytes > most) {
    if (options_.policy.windows && evictWindow(bytes, most - residentBytes())) continue;
    if (evictOne()) continue;
    exceed(bytes);
    return;
  }
}

bool OnlinePolicy::mayLeave(ValueId v) const {
  const Entry& entry = at(v);
  return entry.resident && entry.locks == 0 && !entry.pinned && !entry.being_written &&
         entry.bytes >= kLeastBytes && recorder_->value(v).evictable && !isForNativeCode(v);
}

// A buffer from a factory is there to be filled, often by code that keeps a pointer to it (the
// buckets of DistributedDataParallel); and where there are collectives, native code looks at
// gradients' storages without an operator.
bool OnlinePolicy::isForNativeCode(ValueId v) const {
  const OpId producer = recorder_->value(v).producer;
  if (!producer.valid()) return collectives_;
  const Op& node = recorder_->node(producer);
  return recorder_->isForNativeCode(v) || (node.inputs.empty() && !node.random) ||
         (collectives_ && node.phase != Phase::kForward);
}

bool OnlinePolicy::isReleasable(ValueId v) const {
  const Entry& entry = at(v);
  if (!entry.alive) return true;
  const StorageHold storage = entry.ref.lock();
  return storage && storage->_mutable_data_ptr_no_checks().get() != nullptr &&
         AllocatorTap::mayReleaseNow(*storage);
}

bool OnlinePolicy::isCurrent(const Need& need) const {
  return at(need.value).version == need.version &&
         (!at(need.value).being_written || still_unwritten_);
}

// Native code may have shown itself since the recipe was made: see Note [Written by native code].
bool OnlinePolicy::mayRun(const LiveRecipe* recipe) const {
  return recipe != nullptr && recipe->ok &&
         std::all_of(recipe->ops.begin(), recipe->ops.end(),
                     [this](OpId op) { return recorder_->node(op).replayable; });
}

// Before a write into x, while that comes back which needs what x is now: what nothing else wants,
// and the program cannot reach any more, may leave and come back until then.
bool OnlinePolicy::mayBeDropped(ValueId v) {
  still_unwritten_ = before_writes_ > 0 && !at(v).alive && onlyForReturning(v, ++round_);
  const bool back = recoverable(v);
  still_unwritten_ = false;
  return back;
}

// Whether all absent values that the program can reach and that need v are on their way back.
bool OnlinePolicy::onlyForReturning(ValueId v, uint32_t round) {
  for (const int32_t recipe : at(v).readers) {
    for (const ValueId made : recipes_[static_cast<size_t>(recipe)].outputs) {
      Entry& entry = at(made);
      if (!entry.active || entry.returning || entry.mark == round) continue;
      entry.mark = round;
      if (entry.alive || !onlyForReturning(made, round)) return false;
    }
  }
  return true;
}

// Whether v could come back if it were absent.
bool OnlinePolicy::recoverable(ValueId v) { return recoverable(v, ++round_); }

bool OnlinePolicy::recoverable(ValueId v, uint32_t round) {
  Entry& entry = at(v);
  if (entry.mark == round) return entry.found;
  entry.mark = round;
  entry.found = false;  // for whoever comes here from itself
  const LiveRecipe* recipe = recipeOf(v);
  if (!mayRun(recipe)) return false;
  for (const ValueId made : recipe->outputs) {
    if (at(made).being_written) return false;
  }
  for (const Need& need : recipe->needs) {
    if (!isCurrent(need)) return false;
    const bool on_the_way = at(need.value).mark == round && !at(need.value).found;
    if (on_the_way) return false;
    if (at(need.value).resident || hasCopy(need.value)) continue;
    if (!recoverable(need.value, round)) return false;
  }
  return entry.found = true;
}

bool OnlinePolicy::paging() {
  if (!options_.paging || store_failed_ || !options_.profile.hasStore()) return false;
  store_failed_ = !help_.open_store();
  return !store_failed_;
}

double OnlinePolicy::pageSeconds(int64_t bytes, bool has_copy) const {
  const DeviceProfile& profile = options_.profile;
  const double read = profile.pageInSeconds(bytes);
  return has_copy ? read : read + profile.pageOutSeconds(bytes);
}

// Steps that went above the budget all the same have thrashed for nothing: later ones do so less.
bool OnlinePolicy::thrashes() const {
  const int64_t in_vain = verify_ ? 0 : std::min<int64_t>(counters_.steps_over_budget, 4);
  const int64_t per_op = std::max<int64_t>(kMostReplaysPerOp >> in_vain, 2);
  return replays_ > per_op * (static_cast<int64_t>(records_.size()) + 100);
}

// What is there from before the step and may leave at a score no greater than that: the one that is
// touched last.
bool OnlinePolicy::putAwayOne(double most_score) {
  if (!from_before_) from_before_ = help_.from_before();
  while (!from_before_->empty()) {
    const StorageHold storage = from_before_->back().lock();
    const auto bytes = storage ? static_cast<int64_t>(storage->nbytes()) : 0;
    if (bytes >= kLeastBytes && value_of_.count(storage.get()) == 0) {
      const double weight =
          static_cast<double>(bytes) * methods::DtrScores<Recipes>::stalenessSince(0, clock_);
      if (pageSeconds(bytes, false) / weight > most_score) return false;
      const int64_t counted = AllocatorTap::liveBytes();
      AllocatorTap::enroll(*storage);
      base_bytes_ -= AllocatorTap::liveBytes() - counted;
      from_before_->pop_back();
      if (!help_.put_away(storage)) continue;
      ++counters_.evictions;
      ++counters_.page_outs;
      return true;
    }
    from_before_->pop_back();
  }
  return false;
}

// The value with the least score, if any may leave. Where there have been too many replays, to the
// store only.
bool OnlinePolicy::evictOne() {
  const bool pages = paging();
  const bool replays = !thrashes();
  if (!pages && !replays) return false;
  struct Candidate {
    double score;
    ValueId value;
    bool to_store;
    bool operator<(const Candidate& other) const { return score > other.score; }  // least on top
  };
  std::vector<Candidate> heap;
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    const bool again = replays && mayRun(recipeOf(v));
    if ((!again && !pages) || !mayLeave(v) || at(v).waits + at(v).turns > 0) continue;
    const double weight = static_cast<double>(at(v).bytes) * scores_->stalenessOf(v.index, clock_);
    if (again) heap.push_back({scores_->costOf(v.index) / weight, v, false});
    if (pages && at(v).alive)
      heap.push_back({pageSeconds(at(v).bytes, hasCopy(v)) / weight, v, true});
  }
  std::make_heap(heap.begin(), heap.end());
  for (; !heap.empty(); heap.pop_back()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate& best = heap.back();
    if (pages && putAwayOne(best.score)) return true;
    if (at(best.value).resident && evict(best.value, best.to_store)) return true;
  }
  if (pages && putAwayOne(std::numeric_limits<double>::infinity())) return true;
  return evictInput(pages, replays);
}

// Inputs of ops to come leave last: those whose turn to come back is yet to be, then those that
// wait for others, and these only to the store: they come back alone.
bool OnlinePolicy::evictInput(bool pages, bool replays) {
  for (const bool waiting : {false, true}) {
    for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
      const Entry& entry = at(v);
      if (!mayLeave(v) || (waiting ? entry.waits == 0 : entry.waits > 0 || entry.turns == 0))
        continue;
      if (pages && evict(v, true)) return true;
      if (!waiting && replays && mayRun(recipeOf(v)) && evict(v, false)) return true;
    }
  }
  return false;
}

bool OnlinePolicy::copyToStore(ValueId v) {
  if (hasCopy(v)) return true;
  const StorageHold storage = storageOf(v);
  if (!storage) return false;
  if (pager_.write(v, storage, verify_ ? contentHash(v, *storage) : 0) && pager_.settle(v))
    return true;
  store_failed_ = true;
  return false;
}

bool OnlinePolicy::evict(ValueId v, bool to_store) {
  Entry& entry = at(v);
  if (!isReleasable(v) || (to_store ? !copyToStore(v) : !mayBeDropped(v))) return false;
  const StorageHold storage = entry.alive ? entry.ref.lock() : StorageHold();
  if (storage && !to_store && recorder_->isFromNativeCode(v)) {
    entry.pinned = true;
    return false;
  }
  if (storage && verify_) entry.content_hash = contentHash(v, *storage);
  entry.hold = AllocatorTap::BlockHold();
  entry.foreign.reset();
  entry.own.reset();
  if (storage) releaseData(*storage, v);
  if (!to_store && hasCopy(v)) to_store = true;  // it has one from before
  leave(v);
  update(v);
  ++counters_.evictions;
  counters_.page_outs += to_store;
  return true;
}

// Nothing more can leave.
void OnlinePolicy::exceed(int64_t bytes) {
  const int64_t needed = residentBytes() + bytes;
  const int64_t budget = options_.budget_bytes;
  const auto size = [](int64_t n) { return detail::message(n, " bytes (", formatBytes(n), ")"); };
  const std::string where = running_.valid() ? detail::message("op ", running_.index, " (",
                                                               recorder_->node(running_).name, ")")
                                             : std::string("the step");
  const int64_t certain = running_.valid() && replaying_ == 0 ? certainNeed(bytes) : 0;
  const bool raises = over_budget_ == OverBudget::kRaise ||
                      (over_budget_ == OverBudget::kRaiseImpossible && certain > budget);
  if (running_.valid() && replaying_ == 0 && raises) {
    budget_error_ = detail::message(
        "expected the step to fit into ", size(budget), "; ", where, " needs ", size(bytes),
        " more, ", size(residentBytes()), " were resident, and nothing else can leave memory. ",
        certain > budget ? "No plan could do with less than "
                         : "The least budget that is known to do here is ",
        size(std::max(certain, certain > budget ? certain : needed)),
        ". Nothing has been trained: parameters, buffers and generators are as they were; "
        "gradients "
        "may be set. Give it ",
        certain > budget ? "more than that (later operators may need more still)" : "that or more",
        options_.paging ? "" : ", or let it page (paging=True)",
        ", or let it go on above its budget (strict=False).");
    throw BudgetError("ram_budget: " + budget_error_);
  }
  if (needed - budget <= over_bytes_) return;
  over_bytes_ = needed - budget;
  over_text_ = detail::message(where, " needed ", size(needed), " of ", size(budget));
}

// What is taken between operators, or on other threads, comes unasked.
void OnlinePolicy::noteMost() {
  const int64_t most = base_bytes_ + AllocatorTap::mostLiveBytes();
  if (most - options_.budget_bytes <= over_bytes_) return;
  over_bytes_ = most - options_.budget_bytes;
  over_text_ = detail::message("memory that was taken outside operators brought the step to ",
                               formatBytes(most), " of ", formatBytes(options_.budget_bytes));
}

// Bytes without which no plan could run this op: what it works on, and without a store everything
// that it has not made itself.
int64_t OnlinePolicy::certainNeed(int64_t bytes) const {
  int64_t need = AllocatorTap::shownBytes() - kernel_start_bytes_ + bytes;
  // Not all that is locked: what had to come back before a write another plan may have kept.
  std::vector<ValueId> inputs = recorder_->node(running_).inputs;
  if (recorder_->node(running_).reads_no_data) inputs.clear();
  std::sort(inputs.begin(), inputs.end());
  inputs.erase(std::unique(inputs.begin(), inputs.end()), inputs.end());
  for (const ValueId v : inputs) {
    if (at(v).resident) need += at(v).bytes;
  }
  if (options_.paging) return need;
  for (const KnownStorage& known : fixed_) {
    const StorageHold storage = known.storage.lock();
    if (!storage) continue;
    const auto found = value_of_.find(storage.get());
    const bool counted =
        found != value_of_.end() && std::binary_search(inputs.begin(), inputs.end(), found->second);
    if (!counted) need += known.bytes;
  }
  return need;
}

// ------------------------------------------------------------------------------------------------
// back

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
