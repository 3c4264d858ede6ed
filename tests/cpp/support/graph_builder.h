// Small graphs by hand:
//
//   GraphBuilder g;
//   const ValueId x = g.input(8);
//   const ValueId a = g.op("relu").reads({x}).seconds(2).makes(100);
//   g.op("add_").reads({x}).writes({a});
//   const ValueId loss = g.op("sum").reads({a}).makes(4);
//   g.outlives(loss);
//   const Graph graph = g.build();
//
// A value dies after the last op that shows it unless it is told otherwise; inputs outlive the
// step.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/graph.h"

namespace poet::testing {

class GraphBuilder;

// The op that was added last; every call adds to it.
class OpHandle {
 public:
  OpHandle(GraphBuilder* builder, OpId id) : builder_(builder), id_(id) {}

  OpHandle& seconds(double seconds);
  OpHandle& workspace(int64_t bytes);
  OpHandle& phase(Phase phase);
  OpHandle& reads(const std::vector<ValueId>& values);
  // In-place: also inputs and outputs, as ATen's in-place ops have them.
  OpHandle& writes(const std::vector<ValueId>& values);
  // Running statistics: inputs that the op updates and a replay leaves alone.
  OpHandle& updates(const std::vector<ValueId>& values);
  // The outputs alias these (views).
  OpHandle& returns(const std::vector<ValueId>& values);
  OpHandle& view();       // metadata_only
  OpHandle& shapeOnly();  // reads_no_data
  OpHandle& random();
  OpHandle& notReplayable();
  ValueId makes(int64_t bytes, ValueKind kind = ValueKind::kActivation);
  std::vector<ValueId> makes(const std::vector<int64_t>& bytes);

  OpId id() const { return id_; }

 private:
  Op& op();

  GraphBuilder* builder_;
  OpId id_;
};

class GraphBuilder {
 public:
  // A value that is there before the step and after it.
  ValueId input(int64_t bytes, ValueKind kind = ValueKind::kInput) {
    return add(kind, bytes, kNoOp);
  }
  ValueId parameter(int64_t bytes) { return input(bytes, ValueKind::kParameter); }
  OpHandle op(std::string name) {
    ops.emplace_back().name = std::move(name);
    return {this, OpId(static_cast<int64_t>(ops.size()) - 1)};
  }
  OpHandle view(ValueId v) { return op("aten::view").reads({v}).returns({v}).view(); }

  void outlives(ValueId v) { deaths_[index(v)] = kEnd; }
  void diesAfter(ValueId v, OpId op) { deaths_[index(v)] = op.index; }
  void notEvictable(ValueId v) { values[index(v)].evictable = false; }
  void base(int64_t bytes) { base_bytes = bytes; }

  Graph build() const { return Graph(ops, valuesWithDeaths(), base_bytes); }

  ValueId add(ValueKind kind, int64_t bytes, OpId producer) {
    Value& value = values.emplace_back();
    value.kind = kind;
    value.bytes = bytes;
    value.producer = producer;
    deaths_.emplace_back();
    return ValueId(static_cast<int64_t>(values.size()) - 1);
  }
  std::vector<Value> valuesWithDeaths() const;

  // Open to tests that break them.
  std::vector<Op> ops;
  std::vector<Value> values;
  int64_t base_bytes = 0;

 private:
  static constexpr int64_t kEnd = -2;
  static size_t index(ValueId v) { return static_cast<size_t>(v.index); }

  std::vector<std::optional<int64_t>> deaths_;
};

inline std::vector<Value> GraphBuilder::valuesWithDeaths() const {
  std::vector<int64_t> last(values.size(), 0);
  for (size_t v = 0; v < values.size(); ++v) last[v] = values[v].producer.index;
  for (size_t k = 0; k < ops.size(); ++k) {
    for (const auto* shown : {&ops[k].inputs, &ops[k].outputs, &ops[k].mutates}) {
      for (ValueId v : *shown) last[index(v)] = static_cast<int64_t>(k);
    }
  }
  std::vector<Value> result = values;
  const auto end = static_cast<int64_t>(ops.size());
  for (size_t v = 0; v < values.size(); ++v) {
    const int64_t natural = values[v].producer == kNoOp ? end : last[v];
    const int64_t death = deaths_[v].value_or(natural);
    result[v].death = OpId(death == kEnd ? end : death);
  }
  return result;
}

inline Op& OpHandle::op() { return builder_->ops[static_cast<size_t>(id_.index)]; }

inline OpHandle& OpHandle::seconds(double seconds) {
  op().seconds = seconds;
  return *this;
}

inline OpHandle& OpHandle::workspace(int64_t bytes) {
  op().workspace_bytes = bytes;
  return *this;
}

inline OpHandle& OpHandle::phase(Phase phase) {
  op().phase = phase;
  return *this;
}

inline OpHandle& OpHandle::reads(const std::vector<ValueId>& values) {
  op().inputs.insert(op().inputs.end(), values.begin(), values.end());
  return *this;
}

inline OpHandle& OpHandle::writes(const std::vector<ValueId>& values) {
  auto& mutates = op().mutates;
  mutates.insert(mutates.end(), values.begin(), values.end());
  std::sort(mutates.begin(), mutates.end());
  return reads(values).returns(values);
}

inline OpHandle& OpHandle::updates(const std::vector<ValueId>& values) {
  for (auto* list : {&op().mutates, &op().statistics}) {
    list->insert(list->end(), values.begin(), values.end());
    std::sort(list->begin(), list->end());
  }
  return reads(values);
}

inline OpHandle& OpHandle::returns(const std::vector<ValueId>& values) {
  op().outputs.insert(op().outputs.end(), values.begin(), values.end());
  return *this;
}

inline OpHandle& OpHandle::view() {
  op().metadata_only = true;
  return *this;
}

inline OpHandle& OpHandle::shapeOnly() {
  op().reads_no_data = true;
  return *this;
}

inline OpHandle& OpHandle::random() {
  op().random = true;
  return *this;
}

inline OpHandle& OpHandle::notReplayable() {
  op().replayable = false;
  return *this;
}

inline ValueId OpHandle::makes(int64_t bytes, ValueKind kind) {
  const ValueId v = builder_->add(kind, bytes, id_);
  returns({v});
  return v;
}

inline std::vector<ValueId> OpHandle::makes(const std::vector<int64_t>& bytes) {
  std::vector<ValueId> made;
  for (int64_t size : bytes) made.push_back(makes(size));
  return made;
}

}  // namespace poet::testing
