// While the step runs; recorder_beside.cpp notes what happens beside its operators,
// recorder_finish.cpp makes the recording of what was noted.
#include "trace/recorder.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <chrono>

#include "graph/error.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

using Clock = OpClock;

// Whether an op drew from the default generator although its schema does not say so.
class GeneratorWatch {
 public:
  GeneratorWatch() : before_(read()) {}
  bool moved() const {
    const at::mt19937_data_pod now = read();
    return now.seed_ != before_.seed_ || now.left_ != before_.left_ || now.next_ != before_.next_;
  }

 private:
  static at::mt19937_data_pod read() {
    auto* generator =
        at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator());
    const std::lock_guard<std::mutex> lock(generator->mutex_);
    return generator->engine().data();
  }
  at::mt19937_data_pod before_;
};

// Note [Index lists stay]
// PyTorch's own composite functions read one-dimensional integer tensors by pointer, above the
// dispatcher, and keep the pointer while operators run (an LSTM walks the batch_sizes of a packed
// sequence like that). They are small: they stay. Those of an accelerator nobody can read so.
bool isIndexList(const at::Tensor& t) {
  return t.device().is_cpu() && t.dim() <= 1 &&
         at::isIntegralType(t.scalar_type(), /*includeBool=*/false);
}

// The seeds that an attention kernel leaves on the CPU for its backward pass: what does not come
// back with its op's other results would keep these in memory.
bool isScalarOfAnOp(const at::Tensor& t, OpId producer) {
  return producer.valid() && t.device().is_cpu() && t.dim() == 0;
}

// Two looks have the same key seldom: what the hash leaves out differs then.
uint64_t keyOfLook(const Slot& slot) { return slot.value.valid() ? slot.hash : ~slot.hash; }

bool isLeafParameter(const at::Tensor& t) { return t.requires_grad() && t.is_leaf(); }

}  // namespace

Recorder::Recorder(std::vector<KnownStorage> known, bool all_are_known, c10::Device device)
    : device_(device), unshown_(device.is_cpu()), all_are_known_(all_are_known) {
  if (!device_.is_cpu()) accelerator_.emplace(device_);
  for (size_t i = 0; i < known.size(); ++i) {
    const StorageHold storage = known[i].storage.lock();
    if (!storage) continue;
    if (const auto found = known_at_.find(storage.get()); found != known_at_.end()) {
      ValueKind& kind = known_[found->second].storage.kind;
      if (known[i].kind == ValueKind::kParameter && kind == ValueKind::kBuffer)
        kind = ValueKind::kParameter;
      continue;
    }
    expect(known[i], *storage, static_cast<int32_t>(i));
  }
  if (accelerator_) inherited_base_bytes_ = bytesOfNobody();
}

void Recorder::expect(const KnownStorage& known, c10::StorageImpl& storage, int32_t position) {
  const size_t place = known_.size();
  if (!known_at_.emplace(&storage, place).second) return;
  known_.push_back({known, &storage, kNoOp, position});
  known_alive_.add(static_cast<int32_t>(place), known.storage);
}

void Recorder::noteLiving(ValueId id, c10::StorageImpl& storage, WeakStorage weak) {
  const auto v = static_cast<size_t>(id.index);
  if (address_.size() <= v) address_.resize(v + 1, nullptr);
  address_[v] = &storage;
  number_[&storage] = id;
  alive_.add(static_cast<int32_t>(id.index), std::move(weak));
}

// What an accelerator's allocator has given out beyond the storages that are known: workspaces that
// its libraries keep, tensors of C++ programs, what rounding adds.
int64_t Recorder::bytesOfNobody() const {
  int64_t bytes = accelerator_->memory().taken_bytes;
  for (const Known& known : known_) bytes -= known.storage.bytes;
  return std::max<int64_t>(0, bytes);
}

Recorder::Recorder(const Recording& prefix, size_t done, const std::vector<WeakStorage>& bound,
                   const std::vector<int64_t>& shifts, const std::vector<WeakStorage>& inputs,
                   c10::Device device)
    : ops_(prefix.ops.begin(), prefix.ops.begin() + static_cast<int64_t>(done)),
      graph_ops_(prefix.graph->ops().begin(),
                 prefix.graph->ops().begin() + static_cast<int64_t>(done)),
      prefix_hash_(prefix.prefix_hash.begin(),
                   prefix.prefix_hash.begin() + static_cast<int64_t>(done) + 1),
      device_(device),
      unshown_(device.is_cpu()),
      inherited_base_bytes_(prefix.graph->baseBytes() - prefix.grown_bytes) {
  if (!device_.is_cpu()) accelerator_.emplace(device_);
  const OpId now(static_cast<int64_t>(done));
  for (size_t v = 0; v < prefix.graph->values().size(); ++v) {
    Value value = prefix.graph->values()[v];
    if (prefix.first_shown[v] >= now) {  // untouched so far
      const bool lives = value.producer < now && value.death >= now;
      if (lives && prefix.first_shown[v] == prefix.graph->endOfStep())
        inherited_base_bytes_ += value.bytes;
      continue;
    }
    POET_INTERNAL_ASSERT(values_.size() == v,
                         "values are numbered in the order in which they are shown");
    const ValueId id(static_cast<int64_t>(v));
    if (value.kind == ValueKind::kInput) inputs_.insert(id.index);
    if (value.kind == ValueKind::kParameter) parameters_.insert(id.index);
    if (const StorageHold storage = bound[v].lock()) {
      value.death = kNoOp;
      noteLiving(id, *storage, bound[v]);
      const auto bytes = counts(*storage) ? static_cast<int64_t>(storage->nbytes()) : 0;
      if (bytes > value.bytes) grown_bytes_[id.index] = bytes - value.bytes;  // in the base by now
    } else if (value.death >= now) {
      value.death = OpId(now.index - 1);
    }
    values_.push_back(std::move(value));
    first_offset_.push_back(prefix.first_offset[v] + shifts[v]);
    sharing_.push_back(prefix.sharingOf(id));
    keys_.push_back(
        keyOf(prefix.prefix_hash[static_cast<size_t>(prefix.first_shown[v].index)], id));
    if (sharing_.back() == Sharing::kShared) may_be_written_.insert(id.index);
  }
  for (RecordedOp& op : ops_) {
    Slot* own = nullptr;
    size_t count = 0;
    for (Slot slot : op.all()) {
      if (slot.outside) slot.offset += shifts[static_cast<size_t>(slot.value.index)];
      slot.look = slots_->shared(keyOfLook(slot), *slot.look);
      own = slots_->add(own, count++, slot);
    }
    op.slots = own;
  }
  inherited_values_ = values_.size();
  for (Op& op : graph_ops_) {  // what no op shows, growths, is in the base by now
    std::erase_if(op.outputs,
                  [this](ValueId v) { return static_cast<size_t>(v.index) >= values_.size(); });
  }
  for (const Op& op : graph_ops_) seen_backward_ |= op.phase == Phase::kBackward;
  for (const int32_t number : alive_.numbers()) {  // `empty` whose filling would have come
    const ValueId living(number);
    const OpId maker = value(living).producer;
    if (!maker.valid() || !traitsOf(op(maker).handle).makes_unwritten) continue;
    const bool is_touched = std::any_of(graph_ops_.begin(), graph_ops_.end(), [&](const Op& by) {
      return !by.metadata_only && !by.reads_no_data &&
             std::find(by.inputs.begin(), by.inputs.end(), living) != by.inputs.end();
    });
    if (!is_touched) native_writes_.noteUnwritten(living, maker);
  }
  for (const OutsideValue& known : prefix.outside) {
    if (static_cast<size_t>(known.value.index) >= values_.size()) break;
    if (known.input_position >= 0) input_position_[known.value.index] = known.input_position;
    if (known.is_gradient) parameter_of_gradient_.emplace(known.value.index, known.parameter);
  }
  parameter_tensors_ = prefix.parameters;
  for (const KnownTensor& weak : parameter_tensors_) {
    if (const auto impl = weak.lock()) noteOldGradient(at::Tensor(impl), weak);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const StorageHold storage = inputs[i].lock();
    if (storage && number_.count(storage.get()) == 0)
      inputs_to_come_.emplace(storage.get(), static_cast<int32_t>(i));
  }
}

void Recorder::expectFromBefore(const std::vector<KnownStorage>& known) {
  for (const KnownStorage& one : known) {
    const StorageHold storage = one.storage.lock();
    if (!storage || number_.count(storage.get()) > 0 || old_gradients_.count(storage.get()) > 0 ||
        inputs_to_come_.count(storage.get()) > 0)
      continue;
    expect(one, *storage, 0);
  }
}

void Recorder::noteDeaths(bool look_at_all) {
  const OpId last(static_cast<int64_t>(ops_.size()) - 1);
  freed_log_.take(freed_);
  for (const int32_t number : alive_.takeDead(freed_, look_at_all)) {
    const auto v = static_cast<size_t>(number);
    values_[v].death = last;
    number_.erase(address_[v]);  // from here on the address may come again
    if (companion_ != nullptr) companion_->died(ValueId(number));
  }
  noteKnownDeaths(known_alive_.takeDead(freed_, look_at_all));
}

void Recorder::noteKnownDeaths(const std::vector<int32_t>& dead) {
  for (const int32_t place : dead) {
    Known& known = known_[static_cast<size_t>(place)];
    known_at_.erase(known.address);
    if (ops_.empty()) {
      known.touched = true;  // gone before the first op: no part of the step
    } else {
      known.death = OpId(static_cast<int64_t>(ops_.size()) - 1);
    }
  }
}

ValueId Recorder::valueOf(const at::Tensor& t, OpId producer) {
  if (!isManaged(t)) return kNoValue;
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const auto found = number_.find(storage);
  if (found != number_.end()) return found->second;
  const auto known = known_at_.find(storage);
  if (known != known_at_.end()) producer = kNoOp;  // set_() shows it as its result
  Value value;
  const bool is_counted = counts(*storage);
  value.bytes = is_counted ? static_cast<int64_t>(storage->nbytes()) : 0;
  value.producer = producer;
  // A number of Python's is made for this very op.
  const bool is_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  const bool may_leave =
      is_counted ? !isIndexList(t) : accelerator_.has_value() && isScalarOfAnOp(t, producer);
  value.evictable = may_leave && AllocatorTap::mayRelease(*storage) && !is_number;
  value.dtype = c10::toString(t.scalar_type());
  value.shape.assign(t.sizes().begin(), t.sizes().end());
  const ValueId id(static_cast<int64_t>(values_.size()));
  const std::optional<OpId> taken_after = unshown_.show(*storage);
  if (known == known_at_.end() && !producer.valid()) noteArrival(id, *storage, taken_after);
  // Native code took it within the step, and may go on working on it.
  if (taken_after && !producer.valid()) may_be_written_.insert(id.index);
  bool is_parameter = isLeafParameter(t);
  if (known != known_at_.end()) {
    const ValueKind kind = known_[known->second].storage.kind;
    is_parameter = kind == ValueKind::kParameter || (is_parameter && kind != ValueKind::kInput);
    known_[known->second].touched = true;
    known_alive_.drop(static_cast<int32_t>(known->second));
    if (known_[known->second].storage.kind == ValueKind::kInput) {
      inputs_.insert(id.index);
      input_position_[id.index] = known_[known->second].position;
    }
    if (known_[known->second].storage.kind == ValueKind::kGradient) gradients_.insert(id.index);
    known_at_.erase(known);
  }
  if (const auto input = inputs_to_come_.find(storage); input != inputs_to_come_.end()) {
    if (!producer.valid()) {
      inputs_.insert(id.index);
      input_position_[id.index] = input->second;
    }
    inputs_to_come_.erase(input);
  }
  if (const auto old = old_gradients_.find(storage); old != old_gradients_.end()) {
    if (!producer.valid()) parameter_of_gradient_.emplace(id.index, old->second);
    old_gradients_.erase(old);
  }
  if (!producer.valid() && in_optimizer_) optimizer_only_.insert(id.index);
  values_.push_back(std::move(value));
  first_offset_.push_back(producer.valid() ? 0 : t.storage_offset());
  sharing_.push_back(Sharing::kNone);
  keys_.push_back(keyOf(prefix_hash_.back(), id));
  if (kept_ != nullptr && kept_->count(keys_.back()) > 0) values_.back().evictable = false;
  if (!producer.valid()) noteSharing(id, *storage, is_parameter);
  for (const ReadBeside& one : read_early_) {
    if (one.storage.lock().get() == storage) keepInPlace(id, one.may_write);
  }
  noteLiving(id, *storage, t.storage().getWeakStorageImpl());
  return id;
}

// See Note [Memory that no operator shows]. Of foreign memory nobody tells when it came: it counts
// from the op before the one that shows it.
void Recorder::noteArrival(ValueId value, const c10::StorageImpl& storage,
                           std::optional<OpId> after) {
  if (static_cast<int64_t>(storage.nbytes()) <= kHeldBytes || accelerator_ || !counts(storage))
    return;
  const bool is_foreign = all_are_known_ && !AllocatorTap::isFromAllocator(storage);
  if (!after && is_foreign) after = OpId(static_cast<int64_t>(ops_.size()) - 2);
  if (after && after->valid()) arrivals_.emplace_back(value, *after);
}

Slot Recorder::slotFor(const at::Tensor& t, int arg, int element, OpId producer) {
  Slot slot;
  slot.value = valueOf(t, producer);
  const auto v = static_cast<size_t>(slot.value.index);
  slot.outside = slot.value.valid() && !values_[v].producer.valid();
  slot.made_here = producer.valid() && slot.value.valid() && values_[v].producer == producer;
  slot.hash = geometryHash(t, slot.outside ? first_offset_[v] : 0);
  POET_INTERNAL_ASSERT(arg <= Slot::kMostArgs, "an operator of ", arg, " arguments");
  slot.arg = static_cast<uint64_t>(arg) & Slot::kMostArgs;
  slot.element = element;
  if (slot.value.valid()) slot.offset = t.storage_offset();
  slot.look = lookOf(t, slot);
  return slot;
}

const Look* Recorder::lookOf(const at::Tensor& t, const Slot& slot) {
  Look look;
  look.dtype = t.dtype();
  look.keys = t.key_set();
  look.wrapped_number = t.unsafeGetTensorImpl()->is_wrapped_number();
  if (slot.value.valid()) {
    look.device = t.device();
    look.sizes.append(t.sizes().begin(), t.sizes().end());
    look.strides.append(t.strides().begin(), t.strides().end());
  }
  return slots_->shared(keyOfLook(slot), std::move(look));
}

// Of the running op; `counter` is its n_in or n_out.
void Recorder::addSlot(const Slot& slot, uint32_t& counter) {
  RecordedOp& op = ops_.back();
  slots_of_op_ = slots_->add(slots_of_op_, op.all().size(), slot);
  op.slots = slots_of_op_;
  ++counter;
}

Phase Recorder::currentPhase() {
  if (in_optimizer_) return Phase::kOptimizer;
  if (torch::autograd::get_current_graph_task_id() != -1) {
    seen_backward_ = true;
    return Phase::kBackward;
  }
  return !seen_backward_ || at::GradMode::is_enabled() ? Phase::kForward : Phase::kOther;
}

void Recorder::noteParameter(const at::Tensor& t, ValueId value) {
  if (!isLeafParameter(t) || values_[static_cast<size_t>(value.index)].producer.valid()) return;
  if (!parameters_.insert(value.index).second) return;
  parameter_tensors_.emplace_back(t);
  noteOldGradient(t, parameter_tensors_.back());
}

void Recorder::noteOldGradient(const at::Tensor& parameter, const KnownTensor& weak) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || !isManaged(gradient)) return;
  c10::StorageImpl* storage = gradient.storage().unsafeGetStorageImpl();
  if (number_.count(storage) == 0) old_gradients_.emplace(storage, weak);
}

void Recorder::recordInputs(const OpTraits& traits, const c10::IValue* args, size_t count) {
  RecordedOp& op = ops_.back();
  Op& node = graph_ops_.back();
  op.numbers = numbersHash(args, count);
  const bool statistics = traits.updatesStatistics(args);
  forEachTensor(args, count, [&](const at::Tensor& t, int arg, int element) {
    Slot slot = slotFor(t, arg, element, kNoOp);
    const auto& stats = traits.statistic_args;
    slot.statistic = slot.value.valid() && statistics &&
                     std::find(stats.begin(), stats.end(), arg) != stats.end();
    addSlot(slot, op.n_in);
    const ValueId value = slot.value;
    if (!value.valid()) {
      node.replayable = false;
      return true;
    }
    if (!mayReplayOn(t.device())) node.replayable = false;
    noteParameter(t, value);
    node.inputs.push_back(value);
    if (slot.statistic) {
      node.statistics.push_back(value);
      node.mutates.push_back(value);
    } else if (traits.writes_arg[static_cast<size_t>(arg)]) {
      node.mutates.push_back(value);
    }
    if (traits.rebinds_storage || traits.lends_inputs)
      values_[static_cast<size_t>(value.index)].evictable = false;
    return true;
  });
  for (auto* list : {&node.mutates, &node.statistics}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  if (node.phase != Phase::kOptimizer) {
    for (ValueId v : node.mutates) written_early_.insert(v.index);
  }
}

// Of an accelerator whose memory does not count nobody says on which of its streams ops run.
bool Recorder::mayReplayOn(c10::Device device) const {
  return device.is_cpu() || Accelerator::isSame(device, device_);
}

// A sparse tensor reads its indices and values without showing them to an op: what one is made of,
// and what is taken out of one, keeps its memory.
void Recorder::keepWhatUnmanagedTensorsHold(bool makes_unmanaged, size_t known_values) {
  const std::span<const Slot> in = ops_.back().in();
  if (makes_unmanaged) {
    for (ValueId v : graph_ops_.back().inputs)
      values_[static_cast<size_t>(v.index)].evictable = false;
  }
  const bool takes_unmanaged =
      std::any_of(in.begin(), in.end(), [](const Slot& slot) { return !slot.value.valid(); });
  for (size_t v = known_values; takes_unmanaged && v < values_.size(); ++v)
    values_[v].evictable = false;
}

// Memory of a sparse tensor, say, that no op has shown on its own.
void Recorder::recordPart(const at::Tensor& part, OpId producer) {
  if (!part.defined() || !isManaged(part) ||
      number_.count(part.storage().unsafeGetStorageImpl()) > 0)
    return;
  const ValueId value = valueOf(part, producer);
  values_[static_cast<size_t>(value.index)].evictable = false;
  graph_ops_.back().outputs.push_back(value);
}

// Note [Storages that grow]
// resize_() and an out= argument that is too small give a storage more memory than it had when an
// op showed it first, which is what its value takes. The rest is a value of its own, made by that
// op and as long-lived; neither can be evicted.
void Recorder::noteGrowth(const at::Tensor& t, ValueId value) {
  if (!counts(*t.storage().unsafeGetStorageImpl())) return;
  Value& grown = values_[static_cast<size_t>(value.index)];
  const auto bytes = static_cast<int64_t>(t.storage().nbytes());
  if (bytes <= grown.bytes) return;
  int64_t& before = grown_bytes_[value.index];
  const int64_t more = bytes - grown.bytes - before;
  if (more <= 0) return;
  before += more;
  grown.evictable = false;
  growths_.push_back({value, OpId(static_cast<int64_t>(ops_.size()) - 1), more});
  Op& node = graph_ops_.back();
  node.replayable = false;
  node.workspace_bytes -= more;
}

void Recorder::recordOutputs(const c10::IValue* results, size_t count) {
  RecordedOp& op = ops_.back();
  Op& node = graph_ops_.back();
  const OpId self(static_cast<int64_t>(ops_.size()) - 1);
  const size_t known_values = values_.size();
  bool all_alias = true, makes_unmanaged = false;
  forEachTensor(results, count, [&](const at::Tensor& t, int arg, int element) {
    const Slot slot = slotFor(t, arg, element, self);
    addSlot(slot, op.n_out);
    const ValueId value = slot.value;
    if (!value.valid()) node.replayable = false;
    makes_unmanaged |= !value.valid();
    if (value.valid()) {
      if (!mayReplayOn(t.device())) node.replayable = false;
      node.outputs.push_back(value);
      if (static_cast<size_t>(value.index) < known_values) noteGrowth(t, value);
    } else {  // what it is made of takes memory too
      forEachPart(t, [&](const at::Tensor& part) { recordPart(part, self); });
    }
    all_alias &= value.valid() && static_cast<size_t>(value.index) < known_values;
    return true;
  });
  keepWhatUnmanagedTensorsHold(makes_unmanaged, known_values);
  if (makes_unmanaged && kernels_ == 0) node.workspace_bytes -= unshown_.keepWhatOpLeft(self);
  node.metadata_only =
      op.n_out > 0 && all_alias && node.mutates.empty() && !node.random && lent_.empty();
  if (readsWhatMayBeWritten(node)) node.replayable = false;
  int64_t made_bytes = 0;
  for (size_t v = known_values; v < values_.size(); ++v)
    made_bytes += values_[v].producer.valid() ? values_[v].bytes : 0;
  node.workspace_bytes -= made_bytes;
  // What else stays is a library's for good (the first matrix product takes such a workspace): the
  // base of the recordings to come has it.
  node.workspace_bytes -= std::max<int64_t>(0, left_bytes_ - made_bytes);
  node.workspace_bytes = node.metadata_only ? 0 : std::max<int64_t>(0, node.workspace_bytes);
}

// See Note [Steps on an accelerator].
void Recorder::runOnDevice(const c10::OperatorHandle& op, const OpTraits& traits,
                           c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const GeneratorWatch watch;
  const at::Generator generator = accelerator_->defaultGenerator();
  const AnyGeneratorState drawn_before = AnyGeneratorState::of(generator);
  accelerator_->synchronize();
  accelerator_->resetMost();
  const int64_t before = accelerator_->memory().bytes;
  const auto start = Clock::now();
  op.redispatchBoxed(below, stack);
  accelerator_->synchronize();
  Op& node = graph_ops_.back();
  node.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  const Accelerator::Memory after = accelerator_->memory();
  node.workspace_bytes = after.most_bytes - before;
  left_bytes_ = after.bytes - before;
  node.random =
      traits.random || watch.moved() || !(AnyGeneratorState::of(generator) == drawn_before);
}

void Recorder::runMeasured(const c10::OperatorHandle& op, const OpTraits& traits,
                           c10::DispatchKeySet below, torch::jit::Stack* stack) {
  if (accelerator_) {
    runOnDevice(op, traits, below, stack);
    return;
  }
  const GeneratorWatch watch;
  const int64_t before = AllocatorTap::resetHighWater();
  const auto start = Clock::now();
  {
    const AllocatorTap::RoomGuard room(companion_ == nullptr ? nullptr : companion_->roomMaker());
    op.redispatchBoxed(below, stack);
  }
  Op& node = graph_ops_.back();
  node.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  if (companion_ != nullptr) node.seconds = std::max(0.0, node.seconds - companion_->takeSeconds());
  node.workspace_bytes =
      AllocatorTap::highWaterBytes() - before;  // recordOutputs() takes the outputs off
  node.random = traits.random || watch.moved();
}

void Recorder::extendHash() {
  const RecordedOp& op = ops_.back();
  uint64_t hash = mixHash(prefix_hash_.back(), std::hash<std::string>()(graph_ops_.back().name));
  for (const Slot& slot : op.all()) {
    hash = mixHash(mixHash(hash, slot.hash), static_cast<uint64_t>(slot.value.index));
    if (slot.outside && sharing_[static_cast<size_t>(slot.value.index)] == Sharing::kShared)
      hash = mixHash(hash, 2);
  }
  prefix_hash_.push_back(op.raises ? mixHash(hash, 1) : hash);
}

void Recorder::begin(const c10::OperatorHandle& op, const OpTraits& traits,
                     const torch::jit::Stack& stack) {
  noteDeaths();
  left_bytes_ = 0;
  if (kernels_ == 0) unshown_.noteGap(OpId(static_cast<int64_t>(ops_.size()) - 1));
  ops_.emplace_back(op);
  slots_of_op_ = nullptr;
  graph_ops_.emplace_back();
  Op& node = graph_ops_.back();
  node.host_seconds = std::exchange(host_seconds_, 0);
  node.name = traits.name;
  node.phase = currentPhase();
  node.reads_no_data = traits.reads_no_data;
  node.replayable = traits.known_pure && !traits.rebinds_storage;
  const size_t args = op.schema().arguments().size();
  recordInputs(traits, stack.data() + (stack.size() - args), args);
  recordLent();
}

void Recorder::noteKernelEnd(OpId op) {
  if (--kernels_ == 0) unshown_.noteOp(op);
}

// Nobody knows how far it came: it is never run again.
void Recorder::noteRaised() {
  ops_.back().raises = true;
  graph_ops_.back().replayable = false;
  graph_ops_.back().workspace_bytes = 0;
  extendHash();
}

// A device is at work meanwhile: what the program takes beside it says nothing of the step.
void Recorder::noteArrival() {
  const bool counts = kernels_ == 0 && !accelerator_;
  host_seconds_ = counts ? std::chrono::duration<double>(Clock::now() - left_at_).count() : 0;
}

void Recorder::run(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                   torch::jit::Stack* stack, std::unique_lock<std::mutex>* lock) {
  const OpTraits& traits = traitsOf(op);
  if (traits.without_tensors) {
    if (lock != nullptr) lock->unlock();
    op.redispatchBoxed(below, stack);
    return;
  }
  begin(op, traits, *stack);
  const OpId id(static_cast<int64_t>(ops_.size()) - 1);
  ++kernels_;
  std::vector<Written> written;
  try {
    const size_t args = op.schema().arguments().size();
    if (companion_ != nullptr)
      companion_->beforeKernel(id, stack->data() + (stack->size() - args), args, below);
    written = beforeAccess(traits, stack->data() + (stack->size() - args), args);
    if (lock != nullptr) lock->unlock();
    runMeasured(op, traits, below, stack);
  } catch (...) {
    if (lock != nullptr && !lock->owns_lock()) lock->lock();
    noteKernelEnd(id);
    noteRaised();
    if (companion_ != nullptr) companion_->afterRaise(id);
    left_at_ = Clock::now();
    throw;
  }
  if (lock != nullptr) lock->lock();
  noteKernelEnd(id);
  const size_t results = op.schema().returns().size();
  recordOutputs(stack->data() + (stack->size() - results), results);
  noteContents(traits, written, stack->data() + (stack->size() - results), results);
  extendHash();
  if (companion_ != nullptr)
    companion_->afterKernel(id, stack->data() + (stack->size() - results), results);
  left_at_ = Clock::now();
}

bool Recorder::isHeldByRecords(ValueId id) const {
  return !value(id).producer.valid() && value(id).bytes <= kHeldBytes;
}

}  // namespace poet
