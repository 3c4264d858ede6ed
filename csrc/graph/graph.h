// Graph: what one training step computes, in the order in which it ran. No torch header.
//
// A *value* is one storage, not one tensor: views share it, and an op with several outputs makes
// several values. Values have versions: producing a value makes version 0, every op that lists it
// in `mutates` ends one version and begins the next. Sources: POET (Patil et al., ICML 2022)
// section 3 for the problem; docs/design.md section 2.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "graph/export.h"
#include "graph/id_lists.h"
#include "graph/ids.h"

namespace poet {

enum class Phase : uint8_t { kForward, kBackward, kOptimizer, kOther };
enum class ValueKind : uint8_t {
  kInput,
  kParameter,
  kBuffer,
  kActivation,
  kGradient,
  kOptimizerState
};

POET_API std::string_view toString(Phase);
POET_API std::string_view toString(ValueKind);

// Where an op or a value of a sliced graph comes from (graph/slicing.h).
struct Slice {
  int64_t of = -1;    // op or value of the graph that was sliced; -1: this is no sliced graph
  int32_t index = 0;  // which slice, of ...
  int32_t count = 1;  // ... how many; 1: it is whole

  friend bool operator==(const Slice&, const Slice&) = default;
};

// One ATen operator call below autograd.
struct Op {
  std::string name;  // "aten::convolution", with ".overload" where there is one
  Phase phase = Phase::kOther;
  double seconds = 0;       // measured wall time of the kernel
  double host_seconds = 0;  // before it, of the program itself: Python, autograd, the dispatcher
  double flops = 0;         // 0: unknown
  int64_t workspace_bytes = 0;  // transient peak inside the op, above its inputs and outputs
  std::vector<ValueId> inputs;  // one a tensor argument that has a storage, in order; may repeat
  std::vector<ValueId>
      outputs;  // likewise, of the results; a view's or in-place op's output is an input's value
  std::vector<ValueId>
      mutates;  // of which this op makes a new version (in-place, out=, running statistics); sorted
  // Subset of `mutates`: running statistics (batch norm in training). A replay neither reads nor
  // writes them.
  std::vector<ValueId> statistics;
  bool metadata_only = false;  // a view, or an op without data: touches no bytes of any storage
  bool reads_no_data = false;  // empty_like and kin: only the shape of the inputs matters
  bool random = false;     // draws from a generator; a replay restores the generator's state first
  bool replayable = true;  // may run again with the same results and no visible side effect
  Slice slice = {};

  friend bool operator==(const Op&, const Op&) = default;
};

// One storage.
struct Value {
  ValueKind kind = ValueKind::kActivation;
  int64_t bytes = 0;
  OpId producer = kNoOp;  // kNoOp: existed before the step
  // Last op after which plain training still holds the value: its bytes are given back before op
  // death+1 starts. The number of ops (Graph::endOfStep()) when the value outlives the step.
  OpId death = kNoOp;
  bool evictable =
      true;  // its memory belongs to the framework's allocator and may be released and put back
  std::string dtype;           // "float32"; empty where unknown. For people only.
  std::vector<int64_t> shape;  // of the first tensor seen on it. For people only.
  Slice slice = {};

  friend bool operator==(const Value&, const Value&) = default;
};

// Immutable once built; safe to read from many threads.
class POET_API Graph {
 public:
  // Checks everything (ids in range, producers, bytes >= 0 and their sum below 2^63, finite seconds
  // >= 0, uses after production, deaths after the last use ...). Throws FormatError naming the op
  // or the value. base_bytes: storages that no op touches but that are resident all through the
  // step. signature: identity of the recorded op stream (names, geometry, dtypes, devices); 0 takes
  // a hash of the structure.
  Graph(std::vector<Op> ops, std::vector<Value> values, int64_t base_bytes = 0,
        uint64_t signature = 0);

  const std::vector<Op>& ops() const { return ops_; }
  const std::vector<Value>& values() const { return values_; }
  const Op& op(OpId id) const { return ops_[static_cast<size_t>(id.index)]; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id.index)]; }
  int64_t numOps() const { return static_cast<int64_t>(ops_.size()); }
  int64_t numValues() const { return static_cast<int64_t>(values_.size()); }
  OpId endOfStep() const { return OpId(numOps()); }
  int64_t baseBytes() const { return base_bytes_; }
  uint64_t signature() const { return signature_; }
  double plainSeconds() const { return plain_seconds_; }

  // Values of which `op` is the producer, ascending.
  std::span<const ValueId> madeBy(OpId op) const { return made_by_[static_cast<size_t>(op.index)]; }
  // Ops that list `value` in `mutates`, ascending.
  std::span<const OpId> writersOf(ValueId value) const {
    return writers_[static_cast<size_t>(value.index)];
  }
  // Ops that touch the bytes of `value` (read or write), ascending, without repetition, producer
  // excluded.
  std::span<const OpId> usesOf(ValueId value) const {
    return uses_[static_cast<size_t>(value.index)];
  }
  // Last op that shows the value at all, as input or output, views included; its producer (or op 0)
  // where none does.
  OpId lastShown(ValueId value) const { return last_shown_[static_cast<size_t>(value.index)]; }
  // Values whose bytes op needs resident when it runs first: its inputs, distinct, ascending; empty
  // for metadata_only (except aten::detach and aten::alias, see Note [Raw reads behind a view]) and
  // for reads_no_data.
  std::span<const ValueId> dataInputs(OpId op) const {
    return data_inputs_[static_cast<size_t>(op.index)];
  }

  // What it takes of memory itself.
  int64_t ownBytes() const;

  std::string toJson() const;
  static Graph fromJson(std::string_view text);  // throws FormatError
  void save(const std::string& path)
      const;  // throws Error on an I/O failure; replaces the file atomically
  static Graph load(const std::string& path);  // throws Error, FormatError

  static constexpr int kFormatVersion = 1;

 private:
  void buildTables();

  std::vector<Op> ops_;
  std::vector<Value> values_;
  int64_t base_bytes_;
  uint64_t signature_;
  double plain_seconds_ = 0;
  IdLists<ValueId> made_by_;
  IdLists<OpId> writers_;
  IdLists<OpId> uses_;
  std::vector<OpId> last_shown_;
  IdLists<ValueId> data_inputs_;
};

}  // namespace poet
