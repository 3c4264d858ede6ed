// Small random training steps for property tests: several outputs an op, in-place chains, views,
// workspaces, random ops, parameters that change at the end, values that outlive the step.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "graph/graph.h"

namespace poet::testing {

class SmallRandomGraph {
 public:
  // `longer`: so many ops more, forward and backward each.
  explicit SmallRandomGraph(uint64_t seed, int longer = 0) : random_(seed), longer_(longer) {}

  Graph make() {
    const int parameters = draw(1, 2);
    for (int i = 0; i < parameters; ++i) addValue(kNoOp, ValueKind::kParameter, draw(1, 6));
    addValue(kNoOp, ValueKind::kInput, draw(1, 8));
    const int forward = draw(3, 5) + longer_;
    const int backward = draw(2, 4) + longer_;
    for (int k = 0; k < forward; ++k) addOp(Phase::kForward);
    for (int k = 0; k < backward; ++k) addOp(Phase::kBackward);
    if (chance(0.5)) addUpdate(parameters);
    setDeaths();
    return Graph(std::move(ops_), std::move(values_), draw(0, 3));
  }

 private:
  int draw(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  bool chance(double p) { return std::uniform_real_distribution<double>(0, 1)(random_) < p; }

  ValueId addValue(OpId producer, ValueKind kind, int64_t bytes) {
    Value value;
    value.kind = kind;
    value.bytes = bytes;
    value.producer = producer;
    value.evictable = !chance(0.05);
    values_.push_back(value);
    return ValueId(static_cast<int64_t>(values_.size()) - 1);
  }

  // Forward ops read recent values, backward ops read old ones: that is what makes training need
  // memory.
  ValueId pick(Phase phase) {
    const int last = static_cast<int>(values_.size()) - 1;
    if (phase == Phase::kForward && chance(0.7)) return ValueId(std::max(0, last - draw(0, 1)));
    return ValueId(draw(0, last));
  }

  void addOp(Phase phase) {
    Op op;
    op.name = "aten::op";
    op.phase = phase;
    op.seconds = draw(1, 9);
    op.workspace_bytes = chance(0.4) ? draw(1, 8) : 0;
    const int reads = draw(1, phase == Phase::kForward ? 2 : 3);
    for (int i = 0; i < reads; ++i) op.inputs.push_back(pick(phase));
    const OpId id(static_cast<int64_t>(ops_.size()));
    const double kind = std::uniform_real_distribution<double>(0, 1)(random_);
    if (kind < 0.12) {  // in place
      op.mutates = {op.inputs.front()};
      op.outputs = {op.inputs.front()};
    } else if (kind < 0.18) {  // a view
      op.metadata_only = true;
      op.workspace_bytes = 0;
      op.inputs.resize(1);
      op.outputs = op.inputs;
      if (chance(0.3)) op.name = "aten::detach";
    } else {
      const int made = chance(0.25) ? 2 : 1;
      for (int i = 0; i < made; ++i) {
        op.outputs.push_back(addValue(id, ValueKind::kActivation, chance(0.05) ? 0 : draw(1, 12)));
      }
      op.reads_no_data = chance(0.05);
      op.random = chance(0.12);
      op.replayable = !chance(0.06);
    }
    ops_.push_back(std::move(op));
  }

  // As an optimizer: parameters get new versions, and recipes that read them end.
  void addUpdate(int parameters) {
    for (int i = 0; i < parameters; ++i) {
      Op op;
      op.name = "aten::add_";
      op.phase = Phase::kOptimizer;
      op.seconds = 1;
      op.inputs = {ValueId(i), pick(Phase::kBackward)};
      op.outputs = {ValueId(i)};
      op.mutates = {ValueId(i)};
      ops_.push_back(std::move(op));
    }
  }

  void setDeaths() {
    std::vector<int64_t> last(values_.size(), 0);
    for (size_t v = 0; v < values_.size(); ++v)
      last[v] = std::max<int64_t>(0, values_[v].producer.index);
    for (size_t k = 0; k < ops_.size(); ++k) {
      for (const auto* list : {&ops_[k].inputs, &ops_[k].outputs, &ops_[k].mutates}) {
        for (const ValueId v : *list) last[static_cast<size_t>(v.index)] = static_cast<int64_t>(k);
      }
    }
    const auto end = static_cast<int64_t>(ops_.size());
    for (size_t v = 0; v < values_.size(); ++v) {
      const bool stays = values_[v].kind == ValueKind::kParameter || chance(0.15);
      const int64_t late =
          chance(0.3) ? draw(0, 2) : 0;  // autograd lets go of a value some ops after its last use
      values_[v].death = OpId(stays ? end : std::min(end, last[v] + late));
    }
  }

  std::mt19937_64 random_;
  const int longer_;
  std::vector<Op> ops_;
  std::vector<Value> values_;
};

inline Graph smallRandomGraph(uint64_t seed, int longer = 0) {
  return SmallRandomGraph(seed, longer).make();
}

}  // namespace poet::testing
