// How the policy makes room.
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <limits>

#include "runtime/budget.h"
#include "runtime/online_policy.h"
#include "runtime/verify.h"
#include "store/stopwatch.h"
#include "trace/op_clock.h"
#include "trace/op_traits.h"

namespace poet {

void OnlinePolicy::makeRoom(int64_t bytes) {
  if (!isActive()) return;
  // What the step had to take once is taken: below that it would only thrash. The self-checking
  // mode is as harsh as the budget.
  const int64_t most = options_.budget_bytes + (verify_ ? 0 : over_bytes_);
  if (residentBytes() + bytes <= most) return;
  const StopwatchOf<OpClock> watch(&seconds_);  // taken off the time of an op
  const AllocatorTap::HiddenGuard hidden;
  made_room_ = true;
  noteDeaths();
  while (residentBytes() + bytes > most) {
    if (options_.policy.windows && evictWindow(bytes, most - residentBytes())) continue;
    if (evictOne()) continue;
    exceed(bytes);
    return;
  }
  ++counters_.rooms;
  counters_.free_shares +=
      static_cast<double>(most - residentBytes() - bytes) / static_cast<double>(most);
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
  still_unwritten_ = before_writes_ > 0 && !at(v).alive && onlyForReturning(v);
  const bool back = recoverable(v);
  still_unwritten_ = false;
  return back;
}

// Whether all absent values that the program can reach and that need v are on their way back.
bool OnlinePolicy::onlyForReturning(ValueId v) {
  const uint32_t round = ++round_;
  std::vector<ValueId> todo{v};
  std::vector<ValueId> made;
  while (!todo.empty()) {
    made.clear();
    addDependents(todo.back(), made);
    todo.pop_back();
    for (const ValueId each : made) {
      Entry& entry = at(each);
      if (!entry.active || entry.returning || entry.mark == round) continue;
      entry.mark = round;
      if (entry.alive) return false;
      todo.push_back(each);
    }
  }
  return true;
}

bool OnlinePolicy::mayBeMade(ValueId v) const {
  const int32_t recipe = at(v).recipe;
  if (at(v).banished || recipe < 0 || !mayRun(&recipes_[static_cast<size_t>(recipe)])) return false;
  const std::vector<ValueId>& outputs = recipes_[static_cast<size_t>(recipe)].outputs;
  return std::none_of(outputs.begin(), outputs.end(),
                      [this](ValueId made) { return at(made).being_written; });
}

// Whether v could come back if it were absent: what its recipe needs is there, or could, and is not
// made from v. Depth first, on a stack of its own: chains are as long as steps.
bool OnlinePolicy::recoverable(ValueId v) {
  struct Visit {
    ValueId value;
    size_t next;  // need
  };
  const uint32_t round = ++round_;
  c10::SmallVector<Visit, 16> way;
  const auto enter = [&](ValueId value) {
    at(value).mark = round;
    at(value).found = false;  // for whoever comes here from itself
    if (!mayBeMade(value)) return false;
    way.push_back({value, 0});
    return true;
  };
  if (!enter(v)) return false;
  while (!way.empty()) {
    Entry& entry = at(way.back().value);
    const std::vector<Need>& needs = recipes_[static_cast<size_t>(entry.recipe)].needs;
    if (way.back().next == needs.size()) {
      entry.found = true;
      way.pop_back();
      continue;
    }
    const Need& need = needs[way.back().next++];
    const Entry& needed = at(need.value);
    const bool is_seen = needed.mark == round;
    if (!isCurrent(need) || (is_seen && !needed.found)) return false;
    if (is_seen || needed.resident || hasCopy(need.value)) continue;
    if (!enter(need.value)) return false;
  }
  return true;
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
  const OpId op = bringing_for_.valid() ? bringing_for_ : running_;
  const std::string where =
      op.valid()
          ? detail::message("op ", op.index, " (", recorder_->node(op).name, ")",
                            bringing_for_.valid() ? ", for what it touches to come back," : "")
          : std::string("the step");
  const int64_t certain = running_.valid() && replaying_ == 0 ? certainNeed(bytes) : 0;
  const bool raises = over_budget_ == OverBudget::kRaise ||
                      (over_budget_ == OverBudget::kRaiseImpossible && certain > budget);
  const bool may_raise = bringing_for_.valid() ? over_budget_ == OverBudget::kRaise
                                               : running_.valid() && replaying_ == 0 && raises;
  if (may_raise) {
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

}  // namespace poet
