// Reads and writes of the step's memory that are none of its operators'.
#include <algorithm>

#include "trace/recorder.h"
#include "trace/tensor_args.h"

namespace poet {

// Note [Read beside the step]
// What the program hands to NumPy, say, in the recorded call it will hand out in those to come: the
// value cannot be evicted then, and the plan must not count on it. Where the memory may be written
// from then on (an array shares it), nothing that an operator makes of it can be made again: none
// of them is replayable, before the reading or after it. A call that reads more than the recorded
// one did departs from the plan, Note [Written elsewhere].
void Recorder::noteRead(const at::Tensor& t, bool may_write) {
  const auto found = number_.find(t.storage().unsafeGetStorageImpl());
  if (found != number_.end()) {
    keepInPlace(found->second, may_write);
  } else {
    read_early_.push_back({t.storage().getWeakStorageImpl(), may_write});
  }
}

bool Recorder::knows(const at::Tensor& t) const {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  return number_.count(storage) > 0 || known_at_.count(storage) > 0;
}

// See Note [Memory that others may write].
void Recorder::noteSharing(ValueId value, c10::StorageImpl& storage, bool is_parameter) {
  const bool is_shared = AllocatorTap::isShared(storage);
  Sharing& sharing = sharing_[static_cast<size_t>(value.index)];
  if (is_parameter) {
    sharing = Sharing::kTrusted;
    if (is_shared) trusted_.emplace(value.index, NativeWrites::hashOf(storage));
  } else if (is_shared) {
    sharing = Sharing::kShared;
    may_be_written_.insert(value.index);
  }
}

// Whether it holds what the last operator that read or wrote it saw.
void Recorder::checkTrust(ValueId value, const c10::StorageImpl& storage) {
  const auto found = trusted_.find(value.index);
  if (found == trusted_.end() || !NativeWrites::hasData(storage) ||
      NativeWrites::hashOf(storage) == found->second)
    return;
  may_be_written_.insert(value.index);
  trusted_.erase(found);
}

void Recorder::distrustWhatWasWritten() {
  if (trusted_.empty()) return;
  for (const int32_t number : alive_.numbers()) {
    if (trusted_.count(number) == 0) continue;
    if (const StorageHold storage = alive_.at(number).lock()) checkTrust(ValueId(number), *storage);
  }
}

bool Recorder::readsWhatIsTrusted(const Op& op) const {
  return !trusted_.empty() && !op.reads_no_data &&
         std::any_of(op.inputs.begin(), op.inputs.end(),
                     [this](ValueId v) { return trusted_.count(v.index) > 0; });
}

void Recorder::keepInPlace(ValueId value, bool may_be_written) {
  values_[static_cast<size_t>(value.index)].evictable = false;
  if (may_be_written) may_be_written_.insert(value.index);
}

uint64_t Recorder::keyOf(uint64_t prefix_hash, ValueId value) {
  return mixHash(prefix_hash, static_cast<uint64_t>(value.index));
}

// See Note [Lending].
void Recorder::recordLent() {
  Op& node = graph_ops_.back();
  for (const WeakStorage& weak : lent_) {
    const StorageHold storage = weak.lock();
    const auto found = number_.find(storage.get());
    if (!storage || found == number_.end()) continue;
    const ValueId v = found->second;
    if (!value(v).producer.valid()) {
      keepInPlace(v, false);
    } else if (std::find(node.inputs.begin(), node.inputs.end(), v) == node.inputs.end()) {
      node.inputs.push_back(v);
    }
    node.reads_no_data = false;
  }
}

bool Recorder::readsWhatMayBeWritten(const Op& op) const {
  return !op.metadata_only && !op.reads_no_data &&
         std::any_of(op.inputs.begin(), op.inputs.end(),
                     [this](ValueId v) { return may_be_written_.count(v.index) > 0; });
}

void Recorder::noteMayBeWritten(const std::vector<ValueId>& values) {
  for (const ValueId v : values) {
    if (static_cast<size_t>(v.index) < values_.size()) may_be_written_.insert(v.index);
  }
  freezeReaders();
}

// Those that came before it was known; the others are frozen as they come.
void Recorder::freezeReadersOfWhatMayBeWritten() {
  distrustWhatWasWritten();
  freezeReaders();
}

void Recorder::freezeReaders() {
  if (may_be_written_.empty()) return;
  for (Op& op : graph_ops_) {
    if (readsWhatMayBeWritten(op)) op.replayable = false;
  }
}

// Of a value whose data is there.
bool Recorder::isFromNativeCode(ValueId id) const {
  const StorageHold storage = alive_.at(static_cast<int32_t>(id.index)).lock();
  return storage && native_writes_.wasWritten(id, *storage);
}

// See Note [Written by native code].
void Recorder::noteNative(ValueId value) {
  const OpId op = native_writes_.lastWriter(value);
  values_[static_cast<size_t>(value.index)].evictable = false;
  Op& node = graph_ops_[static_cast<size_t>(op.index)];
  node.replayable = false;
  // What fills torch::empty_like(x) reads x, most likely.
  if (!traitsOf(this->op(op).handle).makes_unwritten) return;
  for (const ValueId v : node.inputs) keepInPlace(v, false);
}

// Looks at what the op is about to read and write, of what the step made; returns what it writes.
std::vector<Recorder::Written> Recorder::beforeAccess(const OpTraits& traits,
                                                      const c10::IValue* args, size_t count) {
  std::vector<Written> written;
  size_t i = 0;
  forEachTensor(args, count, [&](const at::Tensor& t, int arg, int) {
    const ValueId v = ops_.back().in()[i++].value;
    if (!v.valid()) return true;
    const auto a = static_cast<size_t>(arg);
    const bool fills = traits.fills_arg[a];
    if (!value(v).producer.valid()) {
      if (trusted_.count(v.index) == 0) return true;
      if (!traits.looks_only) checkTrust(v, *t.storage().unsafeGetStorageImpl());
      if (traits.writes_arg[a]) written.push_back({v, t, fills});
      return true;
    }
    if (!traits.looks_only) {
      const bool native =
          fills ? native_writes_.isNativeWhenFilled(v, t)
                : native_writes_.isNativeWhenRead(v, *t.storage().unsafeGetStorageImpl());
      if (native) noteNative(v);
    }
    if (traits.writes_arg[a]) written.push_back({v, t, fills});
    return true;
  });
  return written;
}

void Recorder::noteContents(const OpTraits& traits, const std::vector<Written>& written,
                            const c10::IValue* results, size_t count) {
  const OpId self(static_cast<int64_t>(ops_.size()) - 1);
  for (const Written& one : written) {
    if (value(one.value).producer.valid()) {
      native_writes_.noteWritten(one.value, one.tensor, self, one.filled);
    } else if (const auto trusted = trusted_.find(one.value.index); trusted != trusted_.end()) {
      trusted->second = NativeWrites::hashOf(*one.tensor.storage().unsafeGetStorageImpl());
    }
  }
  size_t i = 0;
  ValueId last = kNoValue;  // the results of an op may be views of one storage
  forEachTensor(results, count, [&](const at::Tensor& t, int, int) {
    const ValueId v = ops_.back().out()[i++].value;
    if (!v.valid() || value(v).producer != self || v == last) return true;
    native_writes_.noteMade(v, t, self, traits.makes_unwritten);
    last = v;
    return true;
  });
}

}  // namespace poet
