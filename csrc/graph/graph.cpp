#include "graph/graph.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "graph/error.h"
#include "graph/file_io.h"
#include "graph/graph_validation.h"
#include "graph/heap_bytes.h"

namespace poet {
namespace {

// Note [Raw reads behind a view]
// A view touches no bytes, so its input need not be resident when it runs. `detach` and `alias` are
// the exception: they are what a program calls right before it leaves PyTorch's sight
// (`x.detach().numpy()`, `x.data`, a tensor handed to foreign code), and what follows reads the
// memory without another op. So they count as reads of their input: its bytes are there when they
// run, and until the next op starts (Note [Semantics of a schedule]). Every other view does so,
// too, where no plan foresees it: its call departs from the plan, or has none, and what it touches
// comes back.
bool mayBeReadRaw(const Op& op) {
  constexpr std::string_view kNames[] = {"aten::detach", "aten::alias"};
  return std::any_of(std::begin(kNames), std::end(kNames), [&](std::string_view name) {
    return std::string_view(op.name).starts_with(name) &&
           (op.name.size() == name.size() || op.name[name.size()] == '.');
  });
}

void sortUnique(std::vector<ValueId>* list) {
  std::sort(list->begin(), list->end());
  list->erase(std::unique(list->begin(), list->end()), list->end());
}

// What is written is touched, even where nothing is read (zero_ writes into bytes that must be
// there).
std::vector<ValueId> touchedBy(const Op& op) {
  std::vector<ValueId> touched = op.mutates;
  if ((!op.metadata_only || mayBeReadRaw(op)) && !op.reads_no_data) {
    touched.insert(touched.end(), op.inputs.begin(), op.inputs.end());
  }
  sortUnique(&touched);
  return touched;
}

// FNV-1a over 64-bit words, with the finisher of MurmurHash3 so that every bit of the result
// depends on every word.
class StructureHash {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x100000001b3ULL;
    state_ ^= state_ >> 29;
  }
  void add(std::string_view text) {
    add(text.size());
    for (char c : text) add(static_cast<uint64_t>(static_cast<unsigned char>(c)));
  }
  template <class IdType>
  void add(const std::vector<IdType>& ids) {
    add(ids.size());
    for (IdType id : ids) add(static_cast<uint64_t>(static_cast<int64_t>(id.index)));
  }
  uint64_t finish() const {
    uint64_t h = state_;
    h = (h ^ (h >> 33)) * 0xff51afd7ed558ccdULL;
    h = (h ^ (h >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    h ^= h >> 33;
    return h == 0 ? 1 : h;  // 0 asks for a hash
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325ULL;
};

uint64_t hashStructure(const std::vector<Op>& ops, const std::vector<Value>& values,
                       int64_t base_bytes) {
  StructureHash hash;
  hash.add(ops.size());
  for (const Op& op : ops) {
    hash.add(std::string_view(op.name));
    hash.add(static_cast<uint64_t>(op.phase));
    hash.add(static_cast<uint64_t>(op.workspace_bytes));
    for (const auto* list : {&op.inputs, &op.outputs, &op.mutates, &op.statistics}) hash.add(*list);
    hash.add(static_cast<uint64_t>(op.metadata_only) |
             static_cast<uint64_t>(op.reads_no_data) << 1 | static_cast<uint64_t>(op.random) << 2 |
             static_cast<uint64_t>(op.replayable) << 3);
  }
  hash.add(values.size());
  for (const Value& value : values) {
    hash.add(static_cast<uint64_t>(value.kind));
    hash.add(static_cast<uint64_t>(value.bytes));
    hash.add(std::vector<OpId>{value.producer, value.death});
    hash.add(static_cast<uint64_t>(value.evictable));
    hash.add(std::string_view(value.dtype));
    hash.add(value.shape.size());
    for (int64_t size : value.shape) hash.add(static_cast<uint64_t>(size));
  }
  hash.add(static_cast<uint64_t>(base_bytes));
  return hash.finish();
}

}  // namespace

std::string_view toString(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kBackward:
      return "backward";
    case Phase::kOptimizer:
      return "optimizer";
    case Phase::kOther:
      return "other";
  }
  return "?";
}

std::string_view toString(ValueKind kind) {
  switch (kind) {
    case ValueKind::kInput:
      return "input";
    case ValueKind::kParameter:
      return "parameter";
    case ValueKind::kBuffer:
      return "buffer";
    case ValueKind::kActivation:
      return "activation";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kOptimizerState:
      return "optimizer_state";
  }
  return "?";
}

Graph::Graph(std::vector<Op> ops, std::vector<Value> values, int64_t base_bytes, uint64_t signature)
    : ops_(std::move(ops)),
      values_(std::move(values)),
      base_bytes_(base_bytes),
      signature_(signature) {
  // The end of the step is an OpId as well, so one index stays free.
  constexpr size_t kMost = std::numeric_limits<int32_t>::max() - 1;
  POET_CHECK_AS(FormatError, ops_.size() <= kMost && values_.size() <= kMost, "graph: at most ",
                kMost, " ops and values, got ", ops_.size(), " ops and ", values_.size(),
                " values");
  detail::checkValues(ops_, values_, base_bytes_);
  detail::checkOps(ops_, values_);
  buildTables();
  if (signature_ == 0) signature_ = hashStructure(ops_, values_, base_bytes_);
}

void Graph::buildTables() {
  std::vector<std::vector<ValueId>> made_by(ops_.size()), data_inputs(ops_.size());
  std::vector<std::vector<OpId>> writers(values_.size()), uses(values_.size());
  last_shown_.assign(values_.size(), kNoOp);
  for (int64_t v = 0; v < numValues(); ++v) {
    const OpId producer = value(ValueId(v)).producer;
    if (producer != kNoOp) made_by[static_cast<size_t>(producer.index)].emplace_back(v);
  }
  for (int64_t k = 0; k < numOps(); ++k) {
    const Op& current = op(OpId(k));
    plain_seconds_ += current.seconds + current.host_seconds;
    for (ValueId v : current.mutates) writers[static_cast<size_t>(v.index)].emplace_back(k);
    for (const auto* shown : {&current.inputs, &current.outputs, &current.mutates}) {
      for (ValueId v : *shown) last_shown_[static_cast<size_t>(v.index)] = OpId(k);
    }
    auto& touched = data_inputs[static_cast<size_t>(k)];
    touched = touchedBy(current);
    for (ValueId v : touched) uses[static_cast<size_t>(v.index)].emplace_back(k);
  }
  made_by_ = IdLists(made_by);
  writers_ = IdLists(writers);
  uses_ = IdLists(uses);
  data_inputs_ = IdLists(data_inputs);
  detail::checkDeaths(ops_, values_, last_shown_);
  for (OpId& shown : last_shown_) shown = std::max(shown, OpId(0));
}

void Graph::save(const std::string& path) const { writeFileAtomically(path, toJson()); }

Graph Graph::load(const std::string& path) {
  const std::string text = readFile(path);
  try {
    return fromJson(text);
  } catch (const FormatError& error) {
    throw FormatError(detail::message("'", path, "': ", error.what()));
  }
}

int64_t Graph::ownBytes() const {
  const auto of_op = [](const Op& op) {
    return heapBytes(op.name) + heapBytes(op.inputs) + heapBytes(op.outputs) +
           heapBytes(op.mutates) + heapBytes(op.statistics);
  };
  const auto of_value = [](const Value& v) { return heapBytes(v.dtype) + heapBytes(v.shape); };
  return static_cast<int64_t>(sizeof(*this)) + heapBytes(ops_, of_op) +
         heapBytes(values_, of_value) + made_by_.ownBytes() + writers_.ownBytes() +
         uses_.ownBytes() + heapBytes(last_shown_) + data_inputs_.ownBytes();
}

}  // namespace poet
