// After the step: what recorder.cpp noted of it becomes a Recording.
#include <algorithm>
#include <tuple>

#include "trace/flops.h"
#include "trace/recorder.h"
#include "trace/tensor_args.h"

namespace poet {

ValueKind Recorder::kindOf(size_t v) const {
  const auto in = [v](const std::unordered_set<int32_t>& set) {
    return set.count(static_cast<int32_t>(v)) > 0;
  };
  const Value& value = values_[v];
  if (in(gradients_)) return ValueKind::kGradient;
  if (value.producer.valid()) {
    const Phase phase = graph_ops_[static_cast<size_t>(value.producer.index)].phase;
    if (phase == Phase::kBackward) return ValueKind::kGradient;
    return phase == Phase::kOptimizer ? ValueKind::kOptimizerState : ValueKind::kActivation;
  }
  if (in(parameters_)) return ValueKind::kParameter;
  if (in(inputs_)) return ValueKind::kInput;
  if (in(optimizer_only_)) return ValueKind::kOptimizerState;
  return in(written_early_) ? ValueKind::kBuffer : ValueKind::kInput;
}

void Recorder::labelGradients() {
  for (const auto& weak : parameter_tensors_) {
    const auto impl = weak.lock();
    if (!impl) continue;
    const at::Tensor gradient = at::Tensor(impl).grad();
    if (!gradient.defined() || !isManaged(gradient)) continue;
    const auto found = number_.find(gradient.storage().unsafeGetStorageImpl());
    if (found != number_.end()) gradients_.insert(found->second.index);
  }
}

void Recorder::labelValues() {
  labelGradients();
  const OpId end(static_cast<int64_t>(ops_.size()));
  for (size_t v = 0; v < values_.size(); ++v) {
    values_[v].kind = kindOf(v);
    // Small things from outside (Python numbers above all) are held by the records of the ops that
    // read them.
    const bool held = isHeldByRecords(ValueId(static_cast<int64_t>(v)));
    if (!values_[v].death.valid() || held) values_[v].death = end;
  }
}

// Storages that no op touched: those that died in the step become values, the others are the base.
// Returns its bytes. They are known in the order in which the program's objects lie in memory,
// which is another one in each process: two recordings of a step are to be the same graph.
int64_t Recorder::addUntouched() {
  int64_t base = inherited_base_bytes_;
  const size_t first = values_.size();
  for (const Known& known : known_) {
    if (known.touched) continue;
    if (!known.death.valid()) {
      base += known.storage.bytes;
      continue;
    }
    Value value;
    value.kind = known.storage.kind;
    value.bytes = known.storage.bytes;
    value.death = known.death;
    value.evictable = false;
    values_.push_back(std::move(value));
  }
  std::sort(values_.begin() + static_cast<std::ptrdiff_t>(first), values_.end(),
            [](const Value& a, const Value& b) {
              return std::tuple(a.death, a.bytes, a.kind) < std::tuple(b.death, b.bytes, b.kind);
            });
  return base;
}

// The op that what came after `before` is made an output of: the last that is not run again anyway.
OpId Recorder::makerOf(OpId before) const {
  while (before.valid() && !node(before).metadata_only &&
         (node(before).replayable || op(before).raises))
    before = OpId(before.index - 1);
  return before;
}

// See Note [Memory that no operator shows].
void Recorder::addArrivals() {
  for (const auto& [v, after] : arrivals_) {
    const OpId maker = makerOf(after);
    if (!maker.valid()) continue;
    Value& value = values_[static_cast<size_t>(v.index)];
    value.producer = maker;
    value.evictable = false;
    Op& node = graph_ops_[static_cast<size_t>(maker.index)];
    node.outputs.push_back(v);
    node.replayable = false;
  }
}

// See Note [Memory that no operator shows]. Returns the bytes of those that no op precedes.
int64_t Recorder::addUnshown() {
  int64_t without_op = 0;
  const OpId end(static_cast<int64_t>(ops_.size()));
  for (const UnshownMemory::Block& block : unshown_.take(end)) {
    Value value;
    value.kind = ValueKind::kBuffer;
    value.bytes = block.bytes;
    value.death = block.death;
    value.evictable = false;
    const OpId before = block.is_result ? block.before : makerOf(block.before);
    value.producer = before;
    if (before.valid()) {
      Op& maker = graph_ops_[static_cast<size_t>(before.index)];
      maker.outputs.emplace_back(static_cast<int64_t>(values_.size()));
      maker.replayable = false;
    } else {
      without_op += block.bytes;
    }
    values_.push_back(std::move(value));
  }
  return without_op;
}

// See Note [Storages that grow].
void Recorder::addGrowths() {
  for (const Growth& growth : growths_) {
    const Value& of = values_[static_cast<size_t>(growth.value.index)];
    Value value;
    value.kind = of.kind;
    value.bytes = growth.bytes;
    value.producer = growth.op;
    value.death = of.death;
    value.evictable = false;
    graph_ops_[static_cast<size_t>(growth.op.index)].outputs.emplace_back(
        static_cast<int64_t>(values_.size()));
    values_.push_back(std::move(value));
  }
}

void Recorder::fillDeaths(Recording& recording) const {
  const size_t n = ops_.size();
  std::vector<std::vector<ValueId>> by_op(n);
  for (size_t v = 0; v < values_.size(); ++v) {
    const OpId death = values_[v].death;
    if (static_cast<size_t>(death.index) < n)
      by_op[static_cast<size_t>(death.index)].emplace_back(static_cast<int64_t>(v));
  }
  recording.dead_begin.push_back(0);
  for (const auto& list : by_op) {
    recording.dead_after.insert(recording.dead_after.end(), list.begin(), list.end());
    recording.dead_begin.push_back(static_cast<int32_t>(recording.dead_after.size()));
  }
}

void Recorder::fillFirstShown(Recording& recording, size_t shown_values) const {
  recording.first_shown.assign(values_.size(), OpId(static_cast<int64_t>(ops_.size())));
  for (size_t v = 0; v < shown_values; ++v) {  // parts of sparse tensors have no slots
    if (values_[v].producer.valid()) recording.first_shown[v] = values_[v].producer;
  }
  for (size_t k = ops_.size(); k-- > 0;) {
    for (const Slot& slot : ops_[k].all()) {
      if (slot.value.valid())
        recording.first_shown[static_cast<size_t>(slot.value.index)] =
            OpId(static_cast<int64_t>(k));
    }
  }
}

// What was there before the step, and is neither an input nor a gradient nor still there when it
// ends, another step cannot find before an op shows it: see Note [Values from before the step]. A
// plan that moves it earlier could not be followed, so none moves it.
void Recorder::keepWhatCannotBeFound() {
  std::vector<bool> lives(values_.size(), false);
  for (const int32_t v : alive_.numbers()) lives[static_cast<size_t>(v)] = true;
  for (size_t v = inherited_values_; v < values_.size(); ++v) {
    Value& value = values_[v];
    const auto index = static_cast<int32_t>(v);
    if (value.producer.valid() || input_position_.count(index) > 0 ||
        parameter_of_gradient_.count(index) > 0)
      continue;
    // Records may hold small ones beyond their life, so that says nothing.
    if (!lives[v] && value.bytes > kHeldBytes) value.evictable = false;
  }
}

void Recorder::fillOutside(Recording& recording) const {
  for (size_t v = 0; v < first_offset_.size(); ++v) {  // those that an op has shown
    if (values_[v].producer.valid()) continue;
    const auto index = static_cast<int32_t>(v);
    const WeakStorage& storage = alive_.at(index);
    const bool lives = !storage.expired();
    const auto at = input_position_.find(index);
    const auto of = parameter_of_gradient_.find(index);
    OutsideValue outside;
    outside.value = ValueId(index);
    outside.is_gradient = of != parameter_of_gradient_.end();
    if (at != input_position_.end()) outside.input_position = at->second;
    if (outside.is_gradient) outside.parameter = of->second;
    if (lives) outside.storage = storage;
    const bool can_be_found = lives || outside.is_gradient || outside.input_position >= 0;
    if (can_be_found) recording.outside.push_back(std::move(outside));
  }
}

// From what was recorded, once the step is over: the step itself does not wait for it.
void Recorder::countFlops() {
  for (size_t k = 0; k < ops_.size(); ++k) {
    Op& node = graph_ops_[k];
    if (!node.metadata_only && !node.reads_no_data && !ops_[k].raises)
      node.flops = flopsOf(node.name, ops_[k].in(), ops_[k].out());
  }
}

// What a replay reads and writes lies in the order of one stream.
void Recorder::keepWhatSeveralStreamsUse() {
  if (!several_streams_) return;
  for (Value& value : values_) value.evictable = false;
}

std::unique_ptr<Recording> Recorder::finish() {
  freezeReadersOfWhatMayBeWritten();
  noteDeaths(/*look_at_all=*/true);
  unshown_.noteGap(OpId(static_cast<int64_t>(ops_.size()) - 1));
  labelValues();
  keepWhatCannotBeFound();
  keepWhatSeveralStreamsUse();
  addArrivals();
  auto recording = std::make_unique<Recording>();
  const size_t touched_values = values_.size();
  const int64_t base = addUntouched();
  const size_t shown_values = values_.size();
  for (size_t v = touched_values; v < shown_values; ++v)
    recording->untouched_bytes.push_back(values_[v].bytes);
  recording->unshown_bytes = addUnshown();
  addGrowths();
  fillDeaths(*recording);
  fillFirstShown(*recording, shown_values);
  fillOutside(*recording);
  recording->first_offset = std::move(first_offset_);
  recording->first_offset.resize(values_.size(), 0);
  recording->sharing = std::move(sharing_);
  recording->sharing.resize(values_.size(), Sharing::kNone);
  countFlops();
  recording->parameters = parameter_tensors_;
  ops_.shrink_to_fit();
  recording->ops = std::move(ops_);
  slots_->close();
  recording->slots = std::move(slots_);
  recording->prefix_hash = std::move(prefix_hash_);
  recording->graph = std::make_shared<const Graph>(std::move(graph_ops_), std::move(values_), base,
                                                   recording->prefix_hash.back());
  number_.clear();
  alive_ = LivingStorages();
  return recording;
}

std::vector<WeakStorage> Recorder::madeAndAlive() const {
  std::vector<WeakStorage> made;
  for (const int32_t v : alive_.numbers()) {
    if (value(ValueId(v)).producer.valid() && !alive_.at(v).expired()) made.push_back(alive_.at(v));
  }
  return made;
}

}  // namespace poet
