#include "device/retarget.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "graph/accounting.h"
#include "graph/error.h"
#include "graph/op_class.h"

namespace poet::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// A product that makes an activation, its use, and an update by the activation's gradient.
Graph step(double flops) {
  std::vector<Op> ops(3);
  for (Op& op : ops) {
    op.seconds = 9;
    op.host_seconds = 2;
    op.flops = flops;
  }
  ops[0].name = "aten::mm";
  ops[0].phase = Phase::kForward;
  ops[0].workspace_bytes = 64;
  ops[0].inputs = {ValueId(0)};
  ops[0].outputs = {ValueId(1)};
  ops[1].name = "aten::relu";
  ops[1].phase = Phase::kBackward;
  ops[1].inputs = {ValueId(1)};
  ops[1].outputs = {ValueId(2)};
  ops[2].name = "aten::add_.Tensor";
  ops[2].phase = Phase::kOptimizer;
  ops[2].inputs = {ValueId(0), ValueId(2)};
  ops[2].outputs = {ValueId(0)};
  ops[2].mutates = {ValueId(0)};
  std::vector<Value> values(3);
  const auto make = [](ValueKind kind, int64_t bytes, OpId producer, OpId death) {
    Value value;
    value.kind = kind;
    value.bytes = bytes;
    value.producer = producer;
    value.death = death;
    return value;
  };
  values[0] = make(ValueKind::kParameter, 400, kNoOp, OpId(3));
  values[1] = make(ValueKind::kActivation, 800, OpId(0), OpId(2));
  values[2] = make(ValueKind::kGradient, 400, OpId(1), OpId(2));
  return Graph(std::move(ops), std::move(values), /*base_bytes=*/16, /*signature=*/7);
}

DeviceProfile device() {
  DeviceProfile profile;
  profile.name = "board";
  profile.convolution_rate = 1000;
  profile.matmul_rate = 100;
  profile.elementwise_rate = 10;
  profile.op_overhead_seconds = 0.5;
  return profile;
}

TEST(OnDevice, SecondsAreFlopsOverTheRateOfTheClassAndTheCostOfStarting) {
  const Graph graph = onDevice(step(200), device());
  EXPECT_DOUBLE_EQ(graph.op(OpId(0)).seconds, 2.5);
  EXPECT_DOUBLE_EQ(graph.op(OpId(1)).seconds, 20.5);
  EXPECT_EQ(graph.op(OpId(0)).host_seconds, 0) << "of the machine that recorded it";
  EXPECT_EQ(graph.signature(), 7u);
  EXPECT_EQ(graph.op(OpId(0)).workspace_bytes, 64);
}

TEST(OnDevice, MemoryIsWhatLimitsAnOpThatMovesMore) {
  DeviceProfile slow = device();
  slow.memory_rate = 12;
  EXPECT_DOUBLE_EQ(onDevice(step(200), slow).op(OpId(0)).seconds, 100.5);
  // At most eight bytes of each value a flop: a lookup does not read its whole table.
  EXPECT_DOUBLE_EQ(onDevice(step(3), slow).op(OpId(0)).seconds, 2 * 24 / 12.0 + 0.5);
}

TEST(OnDevice, DirectKernelsNeedNoWorkspaceAndHoldNothingBeyondItsLastUse) {
  DeviceProfile direct = device();
  direct.direct_kernels = true;
  const Graph graph = onDevice(step(200), direct);
  EXPECT_EQ(graph.op(OpId(0)).workspace_bytes, 0);
  EXPECT_EQ(graph.value(ValueId(1)).death, OpId(1));
  EXPECT_EQ(graph.value(ValueId(0)).death, OpId(3));
}

TEST(OnDevice, TwiceIsOnce) {
  const Graph once = onDevice(step(200), device());
  EXPECT_EQ(onDevice(once, device()).toJson(), once.toJson());
}

TEST(OnDevice, LeavesAStepAloneOnTheMachineItWasRecordedOn) {
  EXPECT_EQ(onDevice(step(0), hostProfile()).toJson(), step(0).toJson());
}

TEST(OnDevice, AsksForFlops) {
  EXPECT_THAT([] { onDevice(step(0), device()); },
              ThrowsMessage<ArgumentError>(HasSubstr("expected a step with the flops of its ops")));
}

TEST(OnDevice, RefusesRatesThatNoDeviceHas) {
  DeviceProfile broken = device();
  broken.memory_rate = -1;
  EXPECT_THAT([&] { onDevice(step(1), broken); },
              ThrowsMessage<ArgumentError>(HasSubstr("memory_rate")));
}

TEST(DeviceProfile, RatesAndRamSurviveJson) {
  DeviceProfile profile = device();
  profile.ram_bytes = 262144;
  profile.flash_bytes = 1048576;
  profile.direct_kernels = true;
  const DeviceProfile read = DeviceProfile::fromJson(profile.toJson());
  EXPECT_EQ(read.toJson(), profile.toJson());
  EXPECT_TRUE(read.hasRates());
  EXPECT_EQ(read.ram_bytes, 262144);
  EXPECT_TRUE(read.direct_kernels);
}

TEST(ActivationsOnly, CountsActivationsAndWorkspacesAlone) {
  const Graph graph = activationsOnly(step(200));
  EXPECT_EQ(graph.value(ValueId(0)).bytes, 0);
  EXPECT_EQ(graph.value(ValueId(1)).bytes, 800);
  EXPECT_EQ(graph.value(ValueId(2)).bytes, 0);  // the optimizer reads it: a parameter's gradient
  EXPECT_EQ(graph.baseBytes(), 0);
  EXPECT_EQ(graph.op(OpId(0)).workspace_bytes, 64);
  EXPECT_EQ(graph.signature(), 7u);
}

TEST(OpClass, IsKnownByName) {
  for (const char* name : {"aten::convolution", "aten::convolution_backward", "Conv2dLayer"})
    EXPECT_EQ(opClassOf(name), OpClass::kConvolution) << name;
  for (const char* name : {"aten::mm", "aten::addmm", "aten::bmm.out", "aten::linear",
                           "aten::_scaled_dot_product_flash_attention_for_cpu", "LinearLayer"})
    EXPECT_EQ(opClassOf(name), OpClass::kMatmul) << name;
  for (const char* name : {"aten::add_.Tensor", "aten::native_batch_norm", "", "mm::add"})
    EXPECT_EQ(opClassOf(name), OpClass::kElementwise) << name;
}

}  // namespace
}  // namespace poet::testing
