// Random training steps that are chains: forward op i reads value i - 1 and makes value i; backward
// op i reads the last gradient and value i - 1. Whatever a stage needs, one value at most is away
// and one chain of recomputes brings it back, so schedules that run a recipe at most once a stage
// and page in at its start lose nothing.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "device/profile.h"
#include "graph/graph.h"
#include "support/graph_builder.h"

namespace poet::testing {

inline Graph trainingChain(uint64_t seed, int length) {
  std::mt19937_64 random(seed);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  std::vector<Op> ops;
  std::vector<Value> values(1);  // the batch
  values[0].kind = ValueKind::kInput;
  values[0].bytes = draw(1, 8);
  values[0].evictable = false;
  const auto add = [&](Phase phase, std::vector<ValueId> inputs) {
    const OpId id(static_cast<int64_t>(ops.size()));
    Op op;
    op.name = "aten::op";
    op.phase = phase;
    op.seconds = draw(1, 9);
    op.workspace_bytes = draw(0, 1) * draw(1, 6);
    op.inputs = std::move(inputs);
    op.outputs = {ValueId(static_cast<int64_t>(values.size()))};
    Value value;
    value.bytes = draw(1, 12);
    value.producer = id;
    values.push_back(value);
    ops.push_back(std::move(op));
    return ops.back().outputs.front();
  };
  ValueId last(0);
  for (int i = 0; i < length; ++i) last = add(Phase::kForward, {last});
  for (int i = length; i-- > 0;) last = add(Phase::kBackward, {last, ValueId(i)});
  for (size_t k = 0; k < ops.size(); ++k) {
    values[static_cast<size_t>(ops[k].outputs.front().index)].death = OpId(static_cast<int64_t>(k));
    for (const ValueId v : ops[k].inputs)
      values[static_cast<size_t>(v.index)].death = OpId(static_cast<int64_t>(k));
  }
  return Graph(std::move(ops), std::move(values));
}

// A chain of equal links: forward op i reads boundary i - 1 and makes boundary i (`bytes`) and what
// its backward reads (`inside_bytes`, none where 0); backward op i reads that, the last gradient
// (one byte) and boundary i - 1. Every op takes a second.
inline Graph uniformChain(int length, int64_t bytes, int64_t inside_bytes) {
  GraphBuilder g;
  std::vector<ValueId> boundaries = {g.input(1)};
  std::vector<std::vector<ValueId>> inside;
  for (int i = 0; i < length; ++i) {
    OpHandle op = g.op("aten::link").phase(Phase::kForward).reads({boundaries.back()}).seconds(1);
    boundaries.push_back(op.makes(bytes));
    inside.push_back({});
    if (inside_bytes > 0) inside.back().push_back(op.makes(inside_bytes));
  }
  ValueId gradient = boundaries.back();
  for (int i = length; i-- > 0;) {
    std::vector<ValueId> reads = inside[static_cast<size_t>(i)];
    reads.push_back(gradient);
    reads.push_back(boundaries[static_cast<size_t>(i)]);
    OpHandle op = g.op("aten::link_backward").phase(Phase::kBackward).reads(reads).seconds(1);
    gradient = op.makes(1, ValueKind::kGradient);
  }
  return g.build();
}

// Without a store; generator states of three bytes.
inline DeviceProfile smallProfile() {
  DeviceProfile profile;
  profile.name = "small";
  profile.compute_watts = 2;
  profile.idle_watts = 1;
  profile.generator_state_bytes = 3;
  return profile;
}

// With a store of random speed: from much cheaper than a recompute to much dearer.
inline DeviceProfile smallProfileWithStore(uint64_t seed) {
  std::mt19937_64 random(seed * 31 + 7);
  DeviceProfile profile = smallProfile();
  profile.store_watts = static_cast<double>(seed % 3);
  profile.store_read_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_write_rate = std::uniform_real_distribution<double>(0.5, 8)(random);
  profile.store_read_latency_seconds = 0.25;
  profile.store_write_latency_seconds = 0.5;
  return profile;
}

}  // namespace poet::testing
