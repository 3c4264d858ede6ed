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

// What it is made from first, on a stack of its own: chains may be as long as the step.
void Executor::bringBack(ValueId v) {
  std::vector<std::pair<ValueId, size_t>> way{{v, 0}};
  while (!way.empty()) {
    auto& [value, next] = way.back();
    if (next == 0 && comesFromStore(value)) {
      way.pop_back();
      continue;
    }
    const Recipe& recipe = recipeNow(value);
    if (next < recipe.inputs.size()) {
      const ValueId input = recipe.inputs[next++];
      if (mustComeBack(input)) way.emplace_back(input, 0);
      continue;
    }
    for (ValueId output : recipe.outputs) {
      if (!residency_.isAvailable(output) && residency_[output].ref.expired())
        temporaries_.push_back(output);
    }
    replay(recipe);
    pager_.drop(value);  // it could not be read; a recompute that fails leaves it to later attempts
    ++counters_.unplanned_recomputes;
    noteUnplanned(value, "recomputed");
    way.pop_back();
  }
}

bool Executor::comesFromStore(ValueId v) {
  const bool was_planned = pager_.isArriving(v);
  if (was_planned) return load(v);
  if (!pager_.hasCopy(v)) return false;
  const bool dead = residency_[v].ref.expired();
  if (!load(v)) return false;
  if (dead) temporaries_.push_back(v);
  ++pager_.counters().unplanned_page_ins;
  noteUnplanned(v, "read back");
  return true;
}

// By which v can come back where the step stands.
const Recipe& Executor::recipeNow(ValueId v) const {
  const int recipe = plan_->recipes().recipeOf(v);
  POET_INTERNAL_ASSERT(recipe >= 0, "value ", v.index, " is needed at ", describe(k_),
                       " and is gone for good");
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
  POET_INTERNAL_ASSERT(k_ <= static_cast<size_t>(r.unchanged_until.index), "value ", v.index,
                       " is needed at ", describe(k_), ", and what it was made from has changed");
  return r;
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
