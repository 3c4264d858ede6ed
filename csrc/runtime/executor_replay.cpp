// How the executor brings values back.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "graph/error.h"
#include "runtime/executor.h"
#include "store/stopwatch.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

// A storage of the right size without data, for ops that look at shapes only.
StorageHold emptyStorage(int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, at::kCPU),
                                               c10::GetAllocator(at::kCPU), false);
}

}  // namespace

void Executor::recompute(int recipe) {
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
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
  if (pager_.isArriving(v) && load(v)) return;  // as planned
  if (pager_.hasCopy(v)) {
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
  for (ValueId input : r.inputs) {
    if (mustComeBack(input)) bringBack(input);
  }
  for (ValueId output : r.outputs) {
    if (!residency_.isAvailable(output) && residency_[output].ref.expired())
      temporaries_.push_back(output);
  }
  replay(r);
  ++counters_.unplanned_recomputes;
  noteUnplanned(v, "recomputed");
}

void Executor::noteUnplanned(ValueId v, const char* how) {
  if (!counters_.first_unplanned.empty()) return;
  const OpId producer = plan_->graph().value(v).producer;
  const std::string origin = producer.valid() ? detail::message("made by op ", producer.index, ", ",
                                                                plan_->graph().op(producer).name)
                                              : "from before the step";
  counters_.first_unplanned =
      detail::message("value ", v.index, " (", origin, ") ", how, " before ", describe(k_));
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
  if (entry.content_hash != 0 && verify_.enabled()) {
    verify_.checkContent(*plan_, k_, v, entry.content_hash, fresh);
  }
  entry.content_hash = 0;  // of that eviction: the value may change now
  const bool was_away = entry.away;
  residency_.install(v, fresh, k_ > static_cast<size_t>(plan_->graph().lastShown(v).index));
  if (was_away) releaseRoots(v);
}

at::Tensor Executor::tensorFor(const Slot& slot, bool reads_no_data,
                               const std::vector<std::pair<ValueId, StorageHold>>& made) const {
  StorageHold storage;
  for (const auto& [v, scratch] : made) {
    if (v == slot.value) storage = scratch;
  }
  if (!storage && (reads_no_data || residency_.isAvailable(slot.value)))
    storage = residency_[slot.value].ref.lock();
  if (!storage && reads_no_data) storage = emptyStorage(plan_->graph().value(slot.value).bytes);
  POET_INTERNAL_ASSERT(storage, "a replay before ", describe(k_), " needs value ", slot.value.index,
                       ", which is not there");
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), slot.keys,
                                                    slot.dtype);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(slot.sizes, slot.strides, slot.offset);
  if (slot.wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

// Runs op `id` again on this step's arguments; what it makes goes to `made`, which later ops of the
// chain write into.
void Executor::replayOp(OpId id, std::vector<std::pair<ValueId, StorageHold>>& made) {
  const RecordedOp& op = plan_->recording().ops[static_cast<size_t>(id.index)];
  const Graph& graph = plan_->graph();
  const OpRecord& record = records_[static_cast<size_t>(id.index)];
  POET_INTERNAL_ASSERT(record.isSet(), describe(static_cast<size_t>(id.index)),
                       " has not been recorded");
  torch::jit::Stack stack(record.args());
  int copied_list = -1;
  // Running statistics move only once, and training does not read them: see Note [Statistics of
  // batch norm]. They may be away, or dead by now.
  const auto is_statistic = [&](size_t i) {
    const auto& all = op.statistic_slots;
    return std::find(all.begin(), all.end(), static_cast<int16_t>(i)) != all.end();
  };
  const auto& schema_args = op.handle.schema().arguments();
  for (size_t i = 0; i < op.in.size(); ++i) {
    const Slot& slot = op.in[i];
    if (is_statistic(i)) {
      const bool optional =
          schema_args[static_cast<size_t>(slot.arg)].type()->kind() == c10::TypeKind::OptionalType;
      stack[static_cast<size_t>(slot.arg)] =
          optional ? at::Tensor() : at::zeros(slot.sizes, c10::typeMetaToScalarType(slot.dtype));
    } else if (slot.value.valid() && !plan_->isHeldByRecords(slot.value)) {
      placeTensor(stack, slot, tensorFor(slot, graph.op(id).reads_no_data, made), copied_list);
    }
  }
  {
    const ExecutionStateGuard as_then(record.state());
    std::optional<GeneratorGuard> generator;
    if (record.generatorState() != nullptr)
      generator.emplace(*generatorOf(record.args()), *record.generatorState());
    op.handle.redispatchBoxed(record.keys(), &stack);
  }
  size_t i = 0;
  forEachTensor(stack.data(), stack.size(), [&](const at::Tensor& t, int, int) {
    const Slot& slot = op.out[i++];
    if (slot.value.valid() && graph.value(slot.value).producer == id) {
      made.emplace_back(slot.value, StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()));
    }
    return true;
  });
}

}  // namespace poet
