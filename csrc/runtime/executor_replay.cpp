// How the executor brings values back.
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>

#include "graph/error.h"
#include "runtime/executor.h"
#include "store/stopwatch.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {

void Executor::recompute(int recipe) {
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
  for (const ValueId v : r.outputs) std::erase(stayed_, v);  // the plan has them here again
  const auto is_here = [this](ValueId v) { return residency_.isAvailable(v); };
  // It could not be evicted, and what it was made from may have gone.
  if (isStale(recipe) || std::all_of(r.outputs.begin(), r.outputs.end(), is_here)) {
    for (ValueId v : r.outputs) {
      if (is_here(v) && k_ > static_cast<size_t>(plan_->graph().lastShown(v).index)) retain(v);
    }
    return;
  }
  for (ValueId input : r.inputs) {
    if (mustComeBack(input)) bringBack(input);
  }
  replay(r);
  ++counters_.planned_recomputes;
  dropTemporaries();
}

// The records hold what came from outside, but not its data.
bool Executor::mustComeBack(ValueId input) const {
  return residency_[input].away ||
         (!plan_->isHeldByRecords(input) && !residency_.isAvailable(input));
}

void Executor::bringBack(ValueId v) {
  const bool was_planned = pager_.isArriving(v);
  if (was_planned && load(v)) return;
  if (pager_.hasCopy(v) && !was_planned) {
    const bool dead = residency_[v].ref.expired();
    if (load(v)) {
      if (dead) temporaries_.push_back(v);
      ++pager_.counters().unplanned_page_ins;
      noteUnplanned(v, "read back");
      return;
    }
  }
  const int recipe = plan_->recipes().recipeOf(v);
  POET_INTERNAL_ASSERT(recipe >= 0, "value ", v.index, " is needed at ", describe(k_),
                       " and is gone for good");
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
  POET_INTERNAL_ASSERT(k_ <= static_cast<size_t>(r.unchanged_until.index), "value ", v.index,
                       " is needed at ", describe(k_), ", and what it was made from has changed");
  for (ValueId input : r.inputs) {
    if (mustComeBack(input)) bringBack(input);
  }
  for (ValueId output : r.outputs) {
    if (!residency_.isAvailable(output) && residency_[output].ref.expired())
      temporaries_.push_back(output);
  }
  replay(r);
  pager_.drop(v);  // it could not be read; a recompute that fails leaves it to later attempts
  ++counters_.unplanned_recomputes;
  noteUnplanned(v, "recomputed");
}

void Executor::noteUnplanned(ValueId v, const char* how) {
  verify_.noteUnplanned();
  if (!counters_.first_unplanned.empty()) return;
  counters_.first_unplanned = detail::message(describe(v), " ", how, " before ", describe(k_));
}

void Executor::bringBackUnplanned(ValueId v) {
  bringBack(v);
  dropTemporaries();
}

void Executor::dropTemporaries() {
  for (ValueId v : temporaries_) {
    Residency::Entry& entry = residency_[v];
    entry.hold.reset();
    if (entry.ref.expired()) entry.resident = false;
  }
  temporaries_.clear();
}

void Executor::replay(const Recipe& recipe) {
  const Stopwatch watch(&counters_.replay_seconds);
  std::vector<std::pair<ValueId, StorageHold>> made;
  for (OpId op : recipe.ops) replayOp(op, made);
  for (auto& [v, storage] : made) {
    if (!residency_.isAvailable(v)) install(v, *storage);
  }
  counters_.replayed_ops += static_cast<int64_t>(recipe.ops.size());
}

void Executor::install(ValueId v, c10::StorageImpl& fresh) {
  Residency::Entry& entry = residency_[v];
  // Of what was written elsewhere, only a replay can come back, for the sake of nothing.
  if (entry.content_hash != 0 && verify_.enabled() && !isWrittenElsewhere(v)) {
    verify_.checkContent(*plan_, k_, v, entry.content_hash, fresh);
  }
  entry.content_hash = 0;  // of that eviction: the value may change now
  const bool was_away = entry.away;
  residency_.install(v, fresh, k_ > static_cast<size_t>(plan_->graph().lastShown(v).index));
  if (was_away) root_holds_.release(v);
}

at::Tensor Executor::tensorFor(const Slot& slot, bool reads_no_data,
                               const std::vector<std::pair<ValueId, StorageHold>>& made) const {
  StorageHold storage;
  for (const auto& [v, scratch] : made) {
    if (v == slot.value) storage = scratch;
  }
  if (!storage && (reads_no_data || residency_.isAvailable(slot.value)))
    storage = residency_[slot.value].ref.lock();
  if (!storage && reads_no_data)
    storage = emptyStorage(plan_->graph().value(slot.value).bytes, slot.look->device);
  POET_INTERNAL_ASSERT(storage, "a replay before ", describe(k_), " needs value ", slot.value.index,
                       ", which is not there");
  return tensorOn(std::move(storage), slot, slot.offset + shiftOf(slot.value));
}

// Runs op `id` again on this step's arguments; what it makes goes to `made`, which later ops of the
// chain write into.
void Executor::replayOp(OpId id, std::vector<std::pair<ValueId, StorageHold>>& made) {
  const RecordedOp& op = plan_->recording().ops[static_cast<size_t>(id.index)];
  const Graph& graph = plan_->graph();
  const OpRecord& record = records_[static_cast<size_t>(id.index)];
  POET_INTERNAL_ASSERT(record.isSet(), describe(static_cast<size_t>(id.index)),
                       " has not been recorded");
  const bool reads_no_data = graph.op(id).reads_no_data;
  const torch::jit::Stack stack =
      runAgain(op, record, [&](const Slot& slot) { return tensorFor(slot, reads_no_data, made); });
  size_t i = 0;
  forEachTensor(stack.data(), stack.size(), [&](const at::Tensor& t, int, int) {
    const Slot& slot = op.out()[i++];
    if (slot.value.valid() && graph.value(slot.value).producer == id) {
      made.emplace_back(slot.value, StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()));
    }
    return true;
  });
}

}  // namespace poet
