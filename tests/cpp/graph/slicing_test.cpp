#include "graph/slicing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/profile.h"
#include "device/retarget.h"
#include "graph/error.h"
#include "graph/op_class.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/random.h"
#include "support/random_graph.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;

// A layer with a weight of `bytes`, and its update as AdamW's single-tensor form has it: an op on
// the step counter stands between those on the weight.
Graph adamStep(int64_t bytes) {
  GraphBuilder g;
  const ValueId x = g.input(64);
  const ValueId w = g.parameter(bytes);
  const ValueId m = g.input(bytes, ValueKind::kOptimizerState);
  const ValueId v = g.input(bytes, ValueKind::kOptimizerState);
  const ValueId count = g.input(4, ValueKind::kOptimizerState);
  const ValueId y = g.op("aten::mm").reads({x, w}).seconds(3).makes(64);
  const ValueId grad = g.op("aten::mm").reads({x, y}).seconds(3).makes(bytes, ValueKind::kGradient);
  const auto update = [&](const char* name) {
    return g.op(name).phase(Phase::kOptimizer).seconds(1).workspace(10);
  };
  update("aten::add_.Tensor").writes({count});
  update("aten::lerp_.Scalar").writes({m}).reads({grad});
  update("aten::mul_.Tensor").writes({v});
  update("aten::addcmul_").writes({v}).reads({grad, grad});
  g.op("aten::_local_scalar_dense").phase(Phase::kOptimizer).reads({count});
  const ValueId root = update("aten::sqrt").reads({v}).makes(bytes);
  update("aten::div_.Tensor").writes({root}).reads({count});
  update("aten::addcdiv_").writes({w}).reads({m, root});
  for (Op& op : g.ops) op.flops = 64 * op.seconds;
  return g.build();
}

int64_t totalBytes(const Graph& graph) {
  int64_t bytes = graph.baseBytes();
  for (const Value& value : graph.values()) bytes += value.bytes;
  return bytes;
}

double totalFlops(const Graph& graph) {
  double flops = 0;
  for (const Op& op : graph.ops()) flops += op.flops;
  return flops;
}

int64_t touchedBy(const Graph& graph, OpId op) {
  int64_t bytes = 0;
  for (ValueId v : graph.dataInputs(op)) bytes += graph.value(v).bytes;
  for (ValueId v : graph.madeBy(op)) bytes += graph.value(v).bytes;
  return bytes;
}

DeviceProfile board() {
  DeviceProfile device;
  device.name = "board";
  device.compute_watts = 2;
  device.convolution_rate = device.matmul_rate = device.elementwise_rate = 8;
  device.direct_kernels = true;
  return device;
}

// What holds of every sliced graph; `graph` and `cut` as they were recorded.
void expectFaithful(const Graph& graph, const Graph& cut) {
  EXPECT_EQ(totalBytes(cut), totalBytes(graph));
  EXPECT_NEAR(totalFlops(cut), totalFlops(graph), 1e-9 * totalFlops(graph));
  EXPECT_NEAR(cut.plainSeconds(), graph.plainSeconds(), 1e-9 * graph.plainSeconds());
  // Every op and value is there once, or in all of its slices.
  std::map<int64_t, std::vector<int32_t>> ops, values;
  for (const Op& op : cut.ops()) {
    const Op& whole = graph.op(OpId(op.slice.of));
    ops[op.slice.of].push_back(op.slice.index);
    EXPECT_EQ(op.name, whole.name);
    EXPECT_TRUE(op.slice.count == 1 || isPointwise(op.name)) << op.name;
    EXPECT_TRUE(op.slice.count == 1 || op.phase == Phase::kOptimizer);
    for (ValueId v : op.inputs) {
      const Slice& read = cut.value(v).slice;
      EXPECT_TRUE(op.slice.count == 1 || read.count == 1 || read.index == op.slice.index);
    }
  }
  int64_t bytes = 0;
  for (const Value& value : cut.values()) {
    const Value& whole = graph.value(ValueId(value.slice.of));
    values[value.slice.of].push_back(value.slice.index);
    EXPECT_EQ(value.kind, whole.kind);
    EXPECT_EQ(value.producer.valid(), whole.producer.valid());
    if (value.producer.valid()) {
      EXPECT_EQ(cut.op(value.producer).slice.of, whole.producer.index);
    }
    EXPECT_EQ(value.death == cut.endOfStep(), whole.death == graph.endOfStep());
    bytes += value.bytes;
    if (value.slice.index + 1 < value.slice.count) {
      EXPECT_EQ(value.bytes % kSliceAlignment, 0);
    }
    if (value.slice.index + 1 == value.slice.count) {
      EXPECT_EQ(bytes, whole.bytes);
      bytes = 0;
    }
  }
  EXPECT_EQ(static_cast<int64_t>(ops.size()), graph.numOps());
  EXPECT_EQ(static_cast<int64_t>(values.size()), graph.numValues());
  for (auto* all : {&ops, &values}) {
    for (auto& [of, indices] : *all) {
      std::sort(indices.begin(), indices.end());
      for (size_t j = 0; j < indices.size(); ++j) EXPECT_EQ(indices[j], static_cast<int>(j));
    }
  }
  EXPECT_EQ(Graph::fromJson(cut.toJson()).toJson(), cut.toJson());
}

// How a value is used: each write, and between two of them the ops that read it, in any order.
using History = std::vector<std::pair<int64_t, std::set<int64_t>>>;

std::map<std::pair<int64_t, int32_t>, History> historiesOf(const Graph& graph) {
  std::map<std::pair<int64_t, int32_t>, History> all;
  for (int64_t k = 0; k < graph.numOps(); ++k) {
    const Op& op = graph.op(OpId(k));
    const int64_t number = op.slice.of < 0 ? k : op.slice.of;
    for (ValueId v : std::set<ValueId>(op.inputs.begin(), op.inputs.end())) {
      const Slice& slice = graph.value(v).slice;
      const int64_t of = slice.of < 0 ? v.index : slice.of;
      History& history = all[{of, slice.index}];
      if (history.empty()) history.push_back({-1, {}});
      if (std::binary_search(op.mutates.begin(), op.mutates.end(), v)) {
        history.push_back({number, {}});
      } else {
        history.back().second.insert(number);
      }
    }
  }
  return all;
}

// Every slice of a value is written by the same ops in the same order, and read between the same
// writes, as the whole.
void expectSameOrderOfWrites(const Graph& graph, const Graph& cut) {
  const auto whole = historiesOf(graph);
  for (const auto& [slice, history] : historiesOf(cut)) {
    const auto found = whole.find({slice.first, 0});
    ASSERT_NE(found, whole.end());
    EXPECT_EQ(history, found->second) << "value " << slice.first << ", slice " << slice.second;
  }
}

TEST(Slicing, AnUpdateRunsSliceBySlice) {
  const Graph graph = adamStep(1000);
  const Graph cut = sliceOptimizer(graph, {.threshold_bytes = 1500, .most_bytes = 1000});
  expectFaithful(graph, cut);
  expectSameOrderOfWrites(graph, cut);
  // Three weights at once at most: three slices of at most 384 bytes each.
  std::vector<std::string> names;
  for (const Op& op : cut.ops())
    names.push_back(op.slice.count == 1 ? "-" : op.name.substr(6) + std::to_string(op.slice.index));
  EXPECT_THAT(names,
              ElementsAre("-", "-", "-", "-",  // products, the counter, its reader
                          "lerp_.Scalar0", "mul_.Tensor0", "addcmul_0", "sqrt0", "div_.Tensor0",
                          "addcdiv_0", "lerp_.Scalar1", "mul_.Tensor1", "addcmul_1", "sqrt1",
                          "div_.Tensor1", "addcdiv_1", "lerp_.Scalar2", "mul_.Tensor2", "addcmul_2",
                          "sqrt2", "div_.Tensor2", "addcdiv_2"));
  for (int64_t k = 4; k < cut.numOps(); ++k) EXPECT_LE(touchedBy(cut, OpId(k)), 3 * 384 + 4);
  EXPECT_EQ(cut.op(OpId(1)).outputs.size(), 3U) << "the gradient comes in slices from one product";
  EXPECT_EQ(cut.op(OpId(0)).inputs.size(), 4U) << "the input, and all slices of the weight";
  EXPECT_NE(cut.signature(), graph.signature());
}

TEST(Slicing, WhereNothingIsTooLargeTheGraphComesBack) {
  const Graph graph = adamStep(1000);
  EXPECT_EQ(sliceOptimizer(graph, {.threshold_bytes = 3004, .most_bytes = 100}).toJson(),
            graph.toJson());
  const Graph cut = sliceOptimizer(graph, {.threshold_bytes = 100, .most_bytes = 500});
  EXPECT_EQ(sliceOptimizer(cut, {.threshold_bytes = 1, .most_bytes = 1}).toJson(), cut.toJson())
      << "it has slices already";
}

TEST(Slicing, OtherPhasesOpsAndShapesAreLeftWhole) {
  GraphBuilder g;
  const ValueId a = g.parameter(1000), b = g.parameter(1000), row = g.parameter(40);
  g.op("aten::mul_.Tensor").phase(Phase::kBackward).writes({a}).reads({b});
  g.op("aten::mm").phase(Phase::kOptimizer).writes({a}).reads({b});
  g.op("aten::mul_.Tensor").phase(Phase::kOptimizer).writes({a}).reads({row});
  g.op("aten::copy_").phase(Phase::kOptimizer).writes({row}).reads({a});
  g.op("aten::view").phase(Phase::kOptimizer).reads({a}).returns({a}).view();
  g.values[1].dtype = "float64";
  g.op("aten::add_.Tensor").phase(Phase::kOptimizer).writes({a}).reads({b});
  const Graph graph = g.build();
  EXPECT_EQ(sliceOptimizer(graph, {.threshold_bytes = 0, .most_bytes = 1}).toJson(),
            graph.toJson());
}

TEST(Slicing, SumsStayAndThePeakDoesNotRise) {
  const Graph graph = onDevice(adamStep(1 << 16), board());
  const Graph cut = onDevice(
      sliceOptimizer(adamStep(1 << 16), {.threshold_bytes = 1, .most_bytes = 1 << 14}), board());
  const SimulationResult whole = simulatePlain(graph, board());
  const SimulationResult sliced = simulatePlain(cut, board());
  EXPECT_LE(sliced.peak_bytes, whole.peak_bytes);
  EXPECT_NEAR(sliced.energy_joules, whole.energy_joules, 1e-9 * whole.energy_joules);
  EXPECT_NEAR(sliced.makespan_seconds, whole.makespan_seconds, 1e-9 * whole.makespan_seconds);
}

TEST(Slicing, HoldsOnRandomSteps) {
  Random random(11);
  int cuts = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    RandomGraphOptions options;
    options.largest_bytes = 1 << 10;
    options.workspace = 0;
    const Graph made = randomGraph(seed, options);
    // Names and sizes as an optimizer has them, some of them, in any phase's place.
    std::vector<Op> ops = made.ops();
    std::vector<Value> values = made.values();
    constexpr const char* kNames[] = {"aten::add_.Tensor", "aten::mm", "aten::sqrt", "aten::mul"};
    for (Op& op : ops) {
      op.name = kNames[random.below(4)];
      op.phase = random.below(3) == 0 ? Phase::kBackward : Phase::kOptimizer;
      op.flops = op.seconds;
    }
    for (Value& value : values) value.bytes = random.below(4) == 0 ? 4 : 512;
    const Graph graph(std::move(ops), std::move(values), made.baseBytes());
    const Graph cut = sliceOptimizer(
        graph, {.threshold_bytes = random.below(1024), .most_bytes = 1 + random.below(1024)});
    if (cut.numOps() == graph.numOps()) {
      EXPECT_EQ(cut.numValues(), graph.numValues());
      continue;
    }
    ++cuts;
    SCOPED_TRACE(seed);
    expectFaithful(graph, cut);
    expectSameOrderOfWrites(graph, cut);
    const SimulationResult sliced = simulatePlain(onDevice(cut, board()), board());
    const SimulationResult whole = simulatePlain(onDevice(graph, board()), board());
    EXPECT_LE(sliced.peak_bytes, whole.peak_bytes);
    EXPECT_NEAR(sliced.energy_joules, whole.energy_joules, 1e-9 * whole.energy_joules);
    if (HasFailure()) return;
  }
  EXPECT_GT(cuts, 50);
}

TEST(Slicing, RefusesOptionsThatMakeNoSense) {
  const Graph graph = adamStep(1000);
  EXPECT_THROW(sliceOptimizer(graph, {.threshold_bytes = -1, .most_bytes = 1}), ArgumentError);
  EXPECT_THROW(sliceOptimizer(graph, {.threshold_bytes = 1, .most_bytes = 0}), ArgumentError);
}

TEST(Slicing, FilesWithSlicesThatMakeNoSenseAreRefused) {
  const Graph graph = adamStep(1000);
  std::string text = sliceOptimizer(graph, {.threshold_bytes = 1, .most_bytes = 1500}).toJson();
  const std::string good = "\"slice\":[4,0,2]";
  ASSERT_NE(text.find(good), std::string::npos);
  for (const char* bad : {"\"slice\":[4,2,2]", "\"slice\":[4,0]", "\"slice\":[-1,0,2]",
                          "\"slice\":[4,0,0]", "\"slice\":\"4\""}) {
    std::string broken = text;
    broken.replace(broken.find(good), good.size(), bad);
    EXPECT_THROW(Graph::fromJson(broken), FormatError) << bad;
  }
}

}  // namespace
}  // namespace poet::testing
