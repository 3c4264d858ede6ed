// Recording: a traced step as the runtime needs it, the Graph plus what PyTorch must be given to
// run an op again.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "graph/graph.h"
#include "trace/known_tensor.h"
#include "trace/slots.h"

namespace poet {

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;
using StorageHold = c10::intrusive_ptr<c10::StorageImpl>;

inline WeakStorage noStorage() { return WeakStorage(StorageHold()); }

// Note [Batches that are slices]
// A loop may take its batches as slices of one tensor: at each step at another place of the same
// storage. Such steps are the same step. So what an op shows of a value from before the step counts
// from the offset at which the step shows that value first: hashes do not tell where that is, and a
// replay looks where this step has it.

struct RecordedOp {
  c10::OperatorHandle handle;
  uint64_t numbers = 0;         // hash of whole numbers among the arguments; 0: none
  const Slot* slots = nullptr;  // of the arguments, behind them those of the results
  uint32_t n_in = 0;
  uint32_t n_out = 0;
  bool raises = false;  // it threw, and the step went on

  explicit RecordedOp(const c10::OperatorHandle& h) : handle(h) {}
  std::span<const Slot> in() const { return {slots, n_in}; }
  std::span<const Slot> out() const { return {slots + n_in, n_out}; }
  std::span<const Slot> all() const { return {slots, size_t{n_in} + n_out}; }
};

// Note [Values from before the step]
// Parameters, optimizer state, inputs and old gradients are there before any op shows them, and a
// plan may move them before that. So a later step looks for them where the last one had them: an
// input at its place among the step's arguments, a gradient at its parameter, all others in the
// storage of the last step. That is a guess until an op shows the value: what it shows counts.
struct OutsideValue {
  ValueId value;
  WeakStorage storage = noStorage();
  int32_t input_position = -1;  // among the known storages that a step begins with
  bool is_gradient = false;
  KnownTensor parameter;  // whose gradient it is
};

// Note [Memory that others may write]
// NumPy, DLPack, or whoever was given a pointer may write a value's memory without an operator.
// What an operator made of such a value is not made of it again: no op that reads it is replayable.
// So whether others share a value from before the step is part of what the step is (a batch of
// torch.from_numpy and one of PyTorch's own are two variants), and an op that shows a value shared
// otherwise than the plan's is another op. Parameters are trusted: whole models are read through
// NumPy (for a histogram), or lie in a file's memory, and nobody writes weights between a forward
// pass and its backward pass. Where a recorded call shows that somebody does (what they hold is
// compared whenever an operator reads them, and at the end), none that reads them is replayable
// either. Before there are recorded calls that show nothing of the kind nobody is trusted: the
// online policy computes nothing again from what others share.
enum class Sharing : uint8_t { kNone, kShared, kTrusted };

// Immutable once made.
struct Recording {
  std::vector<RecordedOp> ops;
  std::shared_ptr<const SlotTable> slots;  // theirs; null: they have none
  std::vector<uint64_t> prefix_hash;       // [k]: identity of ops 0..k-1; [N] is the signature
  std::vector<ValueId> dead_after;         // values that die in the step, by op of death
  std::vector<int32_t> dead_begin;         // [k]..[k+1]: range in dead_after of op k
  // First op that shows the value, as input or output; N: none does (it only occupies memory).
  std::vector<OpId> first_shown;
  // By value: the offset at which the step showed it first; 0 for those that it made.
  std::vector<int64_t> first_offset;
  std::vector<Sharing> sharing;  // by value; kNone for what the step made
  // Ascending: those that a later step can look for. Inputs and old gradients may have died in
  // this.
  std::vector<OutsideValue> outside;
  std::vector<KnownTensor> parameters;  // the leaf tensors that the step showed
  // Of the graph's values without producer: see Note [Memory that no operator shows].
  int64_t unshown_bytes = 0;
  // Of those that were known before the step, that no op shows, and that died in it: each one's.
  std::vector<int64_t> untouched_bytes;
  // Of the graph's base: what was found after the recording (Note [Outgrown plans]). Ops of another
  // stream may show it.
  int64_t grown_bytes = 0;
  std::shared_ptr<const Graph> graph;

  Sharing sharingOf(ValueId v) const {
    const auto i = static_cast<size_t>(v.index);
    return i < sharing.size() ? sharing[i] : Sharing::kNone;
  }
  uint64_t signature() const { return prefix_hash.back(); }
  int64_t ownBytes() const;  // that it takes of memory itself, the graph left out
};

}  // namespace poet
