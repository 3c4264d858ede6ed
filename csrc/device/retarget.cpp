#include "device/retarget.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "graph/op_class.h"

namespace poet {
namespace {

// An elementwise op reads and writes a few numbers of at most eight bytes for each flop.
constexpr double kMostBytesAFlop = 8;

double rateOf(const Op& op, const DeviceProfile& device) {
  switch (opClassOf(op.name)) {
    case OpClass::kConvolution:
      return device.convolution_rate;
    case OpClass::kMatmul:
      return device.matmul_rate;
    case OpClass::kElementwise:
      break;
  }
  return device.elementwise_rate;
}

double movedBytes(const Graph& graph, const Op& op) {
  std::vector<ValueId> touched = op.outputs;
  if (!op.reads_no_data) touched.insert(touched.end(), op.inputs.begin(), op.inputs.end());
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  double bytes = 0;
  for (ValueId v : touched) {
    bytes += std::min(static_cast<double>(graph.value(v).bytes), kMostBytesAFlop * op.flops);
  }
  return bytes;
}

void checkFlops(const Graph& graph) {
  const auto has_flops = [](const Op& op) { return op.flops > 0; };
  POET_CHECK(graph.numOps() == 0 || std::any_of(graph.ops().begin(), graph.ops().end(), has_flops),
             "graph: expected a step with the flops of its ops, to say how long it takes on "
             "another device; this one has none. Record it again with poet.trace.");
}

// Nobody but the plan holds what a step makes on such a device: no autograd node, no Tensor.grad.
void endAtLastUse(const Graph& graph, std::vector<Value>& values) {
  for (size_t v = 0; v < values.size(); ++v) {
    const OpId last = graph.lastShown(ValueId(static_cast<int64_t>(v)));
    if (values[v].producer.valid() && values[v].death != graph.endOfStep()) values[v].death = last;
  }
}

}  // namespace

double deviceSeconds(const Graph& graph, OpId id, const DeviceProfile& device) {
  const Op& op = graph.op(id);
  if (op.metadata_only || op.flops == 0) return 0;
  const double arithmetic = op.flops / rateOf(op, device);
  const double traffic = device.memory_rate > 0 ? movedBytes(graph, op) / device.memory_rate : 0;
  return std::max(arithmetic, traffic) + device.op_overhead_seconds;
}

Graph onDevice(const Graph& graph, const DeviceProfile& device) {
  device.check();
  if (!device.hasRates()) return graph;
  checkFlops(graph);
  std::vector<Op> ops = graph.ops();
  std::vector<Value> values = graph.values();
  if (device.direct_kernels) endAtLastUse(graph, values);
  for (size_t k = 0; k < ops.size(); ++k) {
    ops[k].seconds = deviceSeconds(graph, OpId(static_cast<int64_t>(k)), device);
    ops[k].host_seconds = 0;  // another program's, on another device
    if (device.direct_kernels) ops[k].workspace_bytes = 0;
  }
  return Graph(std::move(ops), std::move(values), graph.baseBytes(), graph.signature());
}

}  // namespace poet
