#include "runtime/verify.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>

#include "graph/error.h"
#include "trace/allocator_tap.h"
#include "trace/content_hash.h"
#include "trace/dispatch_key.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

// What the recording cannot see: scalars that PyTorch makes on the way, tensors without a storage
// of their own.
constexpr double kToleratedShare = 0.005;
constexpr int64_t kToleratedBytes = 8 << 10;

int versionAt(const Graph& graph, ValueId v, size_t op) {
  const auto& writers = graph.writersOf(v);
  return static_cast<int>(std::count_if(
      writers.begin(), writers.end(), [op](OpId w) { return static_cast<size_t>(w.index) < op; }));
}

// A copy on the CPU of what an accelerator holds, once that is there.
at::Tensor copyOnCpu(const c10::StorageImpl& storage) {
  const at::Tensor all =
      at::empty({0}, at::TensorOptions().dtype(at::kByte).device(storage.device()))
          .set_(c10::Storage(StorageHold::reclaim_copy(&const_cast<c10::StorageImpl&>(storage))));
  return all.cpu();
}

uint64_t hashOf(const c10::StorageImpl& storage, size_t size) {
  at::Tensor copy;
  const void* data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get();
  if (!storage.device().is_cpu() && size > 0) {
    const c10::impl::ExcludeDispatchKeyGuard not_heard(kListeningKey);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    copy = copyOnCpu(storage);
    data = copy.const_data_ptr();
  }
  return poet::contentHash(data, size);
}

}  // namespace

uint64_t Verifier::contentHash(const c10::StorageImpl& storage) {
  return hashOf(storage, storage.nbytes());
}

uint64_t Verifier::contentHash(const c10::StorageImpl& storage, ValueId value,
                               const RecordedOp* producer) {
  if (producer == nullptr) return contentHash(storage);
  int64_t shown = 0;
  for (const Slot& slot : producer->out()) {
    if (slot.value != value) continue;
    int64_t last = slot.offset;  // the element that lies last in memory
    for (size_t d = 0; d < slot.look->sizes.size(); ++d)
      last += (slot.look->sizes[d] - 1) * slot.look->strides[d];
    shown = std::max(shown, (last + 1) * static_cast<int64_t>(slot.look->dtype.itemsize()));
  }
  const auto all = static_cast<int64_t>(storage.nbytes());
  return hashOf(storage, static_cast<size_t>(std::clamp<int64_t>(shown, 0, all)));
}

void Verifier::checkContent(const CompiledPlan& plan, size_t op, ValueId value, uint64_t expected,
                            const c10::StorageImpl& storage) const {
  const Graph& graph = plan.graph();
  const OpId producer = graph.value(value).producer;
  const auto* made_by =
      producer.valid() ? &plan.recording().ops[static_cast<size_t>(producer.index)] : nullptr;
  if (contentHash(storage, value, made_by) == expected) return;
  throw Error(detail::message(
      "poet (POET_VERIFY): before op ", op, " (",
      op < plan.numOps() ? graph.ops()[op].name : "end of step", ") value ", value.index,
      " (made by op ", producer.index, ", ", graph.op(producer).name, "), version ",
      versionAt(graph, value, op),
      ", came back with other bytes than it was evicted with. Please report this."));
}

void Verifier::beforeKernel(const CompiledPlan& plan, size_t op,
                            const std::function<int64_t()>& missing) {
  const int64_t live = AllocatorTap::resetHighWater();
  if (started_) return;
  started_ = true;
  generator_bytes_ = 0;
  const Graph& graph = plan.graph();
  int64_t made = 0;
  for (ValueId v : graph.madeBy(OpId(static_cast<int64_t>(op)))) made += graph.value(v).bytes;
  // The offset is what lives under the tap beside the step; taken once, at the first op.
  offset_ = live + missing() - (plan.residentBytes()[op] - made - graph.ops()[op].workspace_bytes);
  if (plan.keepsGenerator(op)) offset_ += 5056;
}

void Verifier::afterKernel(const CompiledPlan& plan, size_t op,
                           const std::function<int64_t()>& heldLonger) {
  if (plan.keepsGenerator(op)) generator_bytes_ += 5056;
  const int64_t measured = AllocatorTap::highWaterBytes() - offset_ + generator_bytes_;
  const int64_t predicted = plan.residentBytes()[op];
  const auto tolerated = std::max<int64_t>(
      kToleratedBytes,
      std::llround(kToleratedShare * static_cast<double>(plan.schedule().peak_bytes)));
  if (suspended_ || measured <= predicted + tolerated) return;
  if (measured <= predicted + tolerated + heldLonger()) return;
  throw Error(detail::message("poet (POET_VERIFY): op ", op, " (", plan.graph().ops()[op].name,
                              ") ran with ", measured, " bytes resident, the simulator says ",
                              predicted, ". Please report this."));
}

}  // namespace poet
