#include "runtime/executor.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <chrono>

#include "graph/error.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A storage of the right size without data, for ops that look at shapes only.
StorageHold emptyStorage(int64_t bytes) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, at::kCPU), c10::GetAllocator(at::kCPU), false);
}

}  // namespace

void Executor::begin(std::shared_ptr<const CompiledPlan> plan) {
  plan_ = std::move(plan);
  k_ = 0;
  residency_.begin(plan_->graph());
  records_.resize(plan_->numOps());
  root_holds_.clear();
  root_holds_.resize(plan_->graph().values().size());
  verify_.beginStep();
}

void Executor::end() {
  residency_.clear();
  for (OpRecord& record : records_) record.clear();
  root_holds_.clear();
  temporaries_.clear();
}

std::string Executor::describe(size_t op) const {
  return op < plan_->numOps() ? detail::message("op ", op, " (", plan_->graph().ops()[op].name, ")") : "end of the step";
}

// ------------------------------------------------------------------------------------------------ matching

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
  for (const NewBinding& binding : new_bindings_) residency_.bind(binding.value, *binding.tensor);
  return true;
}

bool Executor::wouldMatch(const CompiledPlan& plan, const c10::OperatorHandle& op, const c10::IValue* args) {
  return k_ < plan.numOps() && &op.schema() == plan.hot(k_).schema && matchesSlots(plan, args);
}

bool Executor::matchesSlots(const CompiledPlan& plan, const c10::IValue* args) {
  const HotOp& hot = plan.hot(k_);
  const HotSlot* slot = plan.slots(hot.in);
  const HotSlot* const end = slot + hot.n_in;
  new_bindings_.clear();
  const bool same = forEachTensor(args, hot.n_args, [&](const at::Tensor& t, int, int) {
    if (slot == end || geometryHash(t) != slot->hash) return false;
    const ValueId v(slot->value);
    ++slot;
    if (!v.valid()) return true;
    c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
    if (static_cast<size_t>(v.index) < residency_.size() && residency_[v].bound) return residency_[v].address == storage;
    if (residency_.valueOf(storage).valid()) return false;  // known as another value
    for (const NewBinding& other : new_bindings_) {
      const bool same_storage = other.tensor->storage().unsafeGetStorageImpl() == storage;
      if (same_storage != (other.value == v)) return false;
      if (same_storage) return true;
    }
    new_bindings_.push_back({v, &t});
    return true;
  });
  return same && slot == end;
}

// ------------------------------------------------------------------------------------------------ following

void Executor::before(const c10::IValue* args, c10::DispatchKeySet below) {
  const HotOp& hot = plan_->hot(k_);
  if (hot.has_before) {
    for (const Action& action : plan_->schedule().before[k_]) perform(action);
  }
  if (hot.has_rescue) {
    for (ValueId v : plan_->rescuesBefore(k_)) {
      if (residency_[v].away && !residency_[v].ref.expired()) bringBackUnplanned(v);
    }
  }
  if (!hot.metadata_only && !hot.reads_no_data) {
    const HotSlot* slot = plan_->slots(hot.in);
    for (const HotSlot* end = slot + hot.n_in; slot != end; ++slot) {
      if (slot->value >= 0 && !residency_[ValueId(slot->value)].resident) bringBackUnplanned(ValueId(slot->value));
    }
  }
  if (hot.has_after) {
    // An input may be a temporary of the caller's that dies inside the call: hold it from here on. What decides on
    // in-place accumulation by use count has decided by now.
    for (const Action& action : plan_->schedule().after[k_]) retain(ValueId(action.arg));
  }
  if (hot.record) {
    records_[k_].capture(plan_->recording().ops[k_], *plan_, plan_->graph().ops()[k_].random, args, hot.n_args,
                         below);
  }
  if (verify_.enabled()) verify_.beforeKernel(*plan_, k_);
}

bool Executor::after(const c10::IValue* results, std::string& why) {
  if (verify_.enabled()) verify_.afterKernel(*plan_, k_);
  const HotOp& hot = plan_->hot(k_);
  if (!hot.metadata_only) {
    const HotSlot* slot = plan_->slots(hot.in) + hot.n_in;
    const HotSlot* const end = slot + hot.n_out;
    const bool same = forEachTensor(results, hot.n_returns, [&](const at::Tensor& t, int, int) {
      if (slot == end || geometryHash(t) != slot->hash) return false;
      if (slot->made_here && !residency_.bind(ValueId(slot->value), t)) return false;
      ++slot;
      return true;
    });
    if (!same || slot != end) {
      why = detail::message(describe(k_), " made other results than were traced");
      return false;
    }
  }
  if (hot.has_after) {
    for (const Action& action : plan_->schedule().after[k_]) retain(ValueId(action.arg));
  }
  if (k_ > 0 && plan_->hot(k_ - 1).has_dead) buryDead(k_ - 1);
  ++k_;
  return true;
}

void Executor::buryDead(size_t op) {
  const Recording& recording = plan_->recording();
  for (auto i = recording.dead_begin[op]; i < recording.dead_begin[op + 1]; ++i) {
    const ValueId v = recording.dead_after[static_cast<size_t>(i)];
    if (residency_[v].away && residency_[v].ref.expired()) releaseRoots(v);
    residency_.forgetIfDead(v);
  }
}

void Executor::finish() {
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
    default:
      POET_INTERNAL_ASSERT(false, "the executor cannot ", toString(action.kind), " yet");
  }
}

void Executor::free(ValueId v) {
  Residency::Entry& entry = residency_[v];
  if (entry.resident && verify_.enabled()) {
    if (const StorageHold storage = entry.ref.lock()) entry.content_hash = Verifier::contentHash(*storage);
  }
  entry.hold.reset();
  if (entry.ref.expired()) {
    entry.resident = false;
    return;
  }
  // Somebody holds it longer than in the trace: it is theirs now.
  if (static_cast<size_t>(plan_->graph().value(v).death.index) < k_) return;
  if (!residency_.evict(v)) return;
  ++counters_.evictions;
  holdRoots(v);
}

void Executor::retain(ValueId v) {
  Residency::Entry& entry = residency_[v];
  if (entry.bound && entry.resident && !entry.hold) entry.hold = entry.ref.lock();
}

void Executor::holdRoots(ValueId v) {
  for (ValueId root : plan_->rootsOf(v)) {
    auto& [count, hold] = root_holds_[static_cast<size_t>(root.index)];
    if (++count == 1) hold = residency_[root].ref.lock();
  }
}

void Executor::releaseRoots(ValueId v) {
  for (ValueId root : plan_->rootsOf(v)) {
    auto& [count, hold] = root_holds_[static_cast<size_t>(root.index)];
    if (count > 0 && --count == 0) hold.reset();
  }
}

// ------------------------------------------------------------------------------------------------ replaying

void Executor::recompute(int recipe) {
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
  for (ValueId input : r.inputs) {
    if (!plan_->isHeldByRecords(input) && !residency_.isAvailable(input)) bringBack(input);
  }
  replay(r);
  ++counters_.planned_recomputes;
  dropTemporaries();
}

void Executor::bringBack(ValueId v) {
  const int recipe = plan_->recipes().recipeOf(v);
  POET_INTERNAL_ASSERT(recipe >= 0, "value ", v.index, " is needed at ", describe(k_), " and is gone for good");
  const Recipe& r = plan_->recipes().recipes()[static_cast<size_t>(recipe)];
  for (ValueId input : r.inputs) {
    if (!plan_->isHeldByRecords(input) && !residency_.isAvailable(input)) bringBack(input);
  }
  for (ValueId output : r.outputs) {
    if (!residency_.isAvailable(output) && residency_[output].ref.expired()) temporaries_.push_back(output);
  }
  replay(r);
  ++counters_.unplanned_recomputes;
  if (counters_.first_unplanned.empty()) {
    counters_.first_unplanned = detail::message("value ", v.index, " (made by op ", r.producer().index, ", ",
                                                plan_->graph().op(r.producer()).name, ") before ", describe(k_));
  }
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
  const auto start = Clock::now();
  std::vector<std::pair<ValueId, StorageHold>> made;
  for (OpId op : recipe.ops) replayOp(op, made);
  for (auto& [v, storage] : made) {
    if (!residency_.isAvailable(v)) install(v, *storage);
  }
  counters_.replayed_ops += static_cast<int64_t>(recipe.ops.size());
  counters_.replay_seconds += secondsSince(start);
}

void Executor::install(ValueId v, c10::StorageImpl& fresh) {
  Residency::Entry& entry = residency_[v];
  if (entry.content_hash != 0 && verify_.enabled()) {
    verify_.checkContent(*plan_, k_, v, entry.content_hash, fresh);
  }
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
  if (!storage && (reads_no_data || residency_.isAvailable(slot.value))) storage = residency_[slot.value].ref.lock();
  if (!storage && reads_no_data) storage = emptyStorage(plan_->graph().value(slot.value).bytes);
  POET_INTERNAL_ASSERT(storage, "a replay before ", describe(k_), " needs value ", slot.value.index,
                       ", which is not there");
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), slot.keys, slot.dtype);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(slot.sizes, slot.strides, slot.offset);
  if (slot.wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

// Runs op `id` again on this step's arguments; what it makes goes to `made`, which later ops of the chain write into.
void Executor::replayOp(OpId id, std::vector<std::pair<ValueId, StorageHold>>& made) {
  const RecordedOp& op = plan_->recording().ops[static_cast<size_t>(id.index)];
  const Graph& graph = plan_->graph();
  const OpRecord& record = records_[static_cast<size_t>(id.index)];
  POET_INTERNAL_ASSERT(record.isSet(), describe(static_cast<size_t>(id.index)), " has not been recorded");
  torch::jit::Stack stack(record.args());
  int copied_list = -1;
  for (const Slot& slot : op.in) {
    if (!slot.value.valid() || plan_->isHeldByRecords(slot.value)) continue;
    placeTensor(stack, slot, tensorFor(slot, graph.op(id).reads_no_data, made), copied_list);
  }
  const auto& schema_args = op.handle.schema().arguments();
  for (int16_t i : op.statistic_slots) {  // running statistics move only once; see Note [Statistics of batch norm]
    c10::IValue& arg = stack[static_cast<size_t>(op.in[static_cast<size_t>(i)].arg)];
    const bool optional = schema_args[static_cast<size_t>(op.in[static_cast<size_t>(i)].arg)].type()->kind() ==
                          c10::TypeKind::OptionalType;
    arg = optional ? at::Tensor() : arg.toTensor().clone();
  }
  {
    const ExecutionStateGuard as_then(record.state());
    std::optional<GeneratorGuard> generator;
    if (record.generatorState() != nullptr) generator.emplace(*generatorOf(record.args()), *record.generatorState());
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

// ------------------------------------------------------------------------------------------------ departures

void Executor::restoreAll() {
  std::exception_ptr first;
  const std::vector<ValueId> away = residency_.away();
  for (ValueId v : away) {
    const Residency::Entry& entry = residency_[v];
    if (!entry.away || entry.ref.expired()) continue;
    try {
      bringBackUnplanned(v);
    } catch (...) {
      temporaries_.clear();
      if (!first) first = std::current_exception();
    }
  }
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index) residency_[v].hold.reset();
  for (auto& [count, hold] : root_holds_) {
    count = 0;
    hold.reset();
  }
  if (first) std::rethrow_exception(first);
}

void Executor::touchStorage(c10::StorageImpl* storage) {
  const ValueId v = residency_.valueOf(storage);
  if (!v.valid()) return;
  if (residency_[v].away) bringBackUnplanned(v);
  residency_[v].pinned = true;
}

void Executor::touch(const c10::IValue* args, size_t count) {
  forEachTensor(args, count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t)) touchStorage(t.storage().unsafeGetStorageImpl());
    return true;
  });
}

// Where the plan has its values just before the actions of op k.
void Executor::expectedState(size_t k, std::vector<bool>& resident, std::vector<bool>& retained) const {
  const Graph& graph = plan_->graph();
  const Recording& recording = plan_->recording();
  resident.assign(graph.values().size(), false);
  retained.assign(graph.values().size(), false);
  const auto apply = [&](const Action& action, size_t at) {
    const auto arg = static_cast<size_t>(action.arg);
    if (action.kind == ActionKind::kFree) resident[arg] = retained[arg] = false;
    if (action.kind == ActionKind::kRetain) retained[arg] = true;
    if (action.kind != ActionKind::kRecompute) return;
    for (ValueId v : plan_->recipes().recipes()[static_cast<size_t>(plan_->recipeOfAction(action.arg))].outputs) {
      resident[static_cast<size_t>(v.index)] = true;
      if (at > static_cast<size_t>(graph.lastShown(v).index)) retained[static_cast<size_t>(v.index)] = true;
    }
  };
  for (size_t op = 0; op < k; ++op) {
    for (const Action& action : plan_->schedule().before[op]) apply(action, op);
    for (ValueId v : graph.madeBy(OpId(static_cast<int64_t>(op)))) resident[static_cast<size_t>(v.index)] = true;
    for (const Action& action : plan_->schedule().after[op]) apply(action, op);
    for (auto i = recording.dead_begin[op]; i < recording.dead_begin[op + 1]; ++i) {
      const auto v = static_cast<size_t>(recording.dead_after[static_cast<size_t>(i)].index);
      if (!retained[v]) resident[v] = false;
    }
  }
}

void Executor::switchTo(std::shared_ptr<const CompiledPlan> plan) {
  plan_ = std::move(plan);
  ++counters_.switches;
  const Graph& graph = plan_->graph();
  // Values are numbered in the order in which they are shown, so those shown so far have the same numbers.
  residency_.resize(graph.values().size());
  records_.resize(std::max(records_.size(), plan_->numOps()));
  root_holds_.resize(std::max(root_holds_.size(), graph.values().size()));
  std::vector<bool> resident, retained;
  expectedState(k_, resident, retained);
  const auto in_step = [&](size_t v) {
    return graph.values()[v].producer.valid() && static_cast<size_t>(graph.values()[v].producer.index) < k_;
  };
  for (size_t v = 0; v < resident.size(); ++v) {
    const ValueId id(static_cast<int64_t>(v));
    if (in_step(v) && !resident[v] && residency_.isAvailable(id)) free(id);
  }
  for (size_t v = 0; v < resident.size(); ++v) {
    const ValueId id(static_cast<int64_t>(v));
    if (!in_step(v) || !resident[v]) continue;
    if (!residency_.isAvailable(id) && (retained[v] || !residency_[id].ref.expired())) {
      bringBack(id);
      std::erase(temporaries_, id);
    }
    if (retained[v] && !residency_[id].hold) residency_[id].hold = residency_[id].ref.lock();
  }
  dropTemporaries();
}

}  // namespace poet
