#include "runtime/op_record.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <optional>

#include "graph/error.h"
#include "trace/tensor_args.h"

namespace poet {

void placeTensor(torch::jit::Stack& stack, const Slot& slot, at::Tensor tensor, int& copied_list) {
  c10::IValue& arg = stack[static_cast<size_t>(slot.arg)];
  if (slot.element < 0) {
    arg = std::move(tensor);
    return;
  }
  if (copied_list != slot.arg) {
    arg = arg.toList().copy();
    copied_list = slot.arg;
  }
  arg.toList().set(static_cast<size_t>(slot.element), c10::IValue(std::move(tensor)));
}

namespace {

// The accelerator that the op reads from or makes something on.
std::optional<c10::Device> acceleratorOf(const RecordedOp& op) {
  for (const Slot& slot : op.all()) {
    if (!slot.look->device.is_cpu()) return slot.look->device;
  }
  return std::nullopt;
}

// The generator among the arguments, or the device's own.
at::Generator generatorOn(c10::Device device, const torch::jit::Stack& args) {
  for (const c10::IValue& arg : args) {
    if (arg.isGenerator()) return arg.toGenerator();
  }
  return Accelerator(device).defaultGenerator();
}

const at::Tensor& tensorAt(const c10::IValue* args, const Slot& slot) {
  const c10::IValue& arg = args[slot.arg];
  const c10::IValue& one =
      slot.element < 0 ? arg : arg.toListRef()[static_cast<size_t>(slot.element)];
  return one.toTensor();
}

}  // namespace

void OpRecord::capture(const RecordedOp& op, c10::function_ref<bool(ValueId)> held, bool random,
                       const c10::IValue* args, size_t count, c10::DispatchKeySet below) {
  args_.assign(args, args + count);
  keys_ = below;
  state_ = ExecutionState::current();
  int copied_list = -1;
  held_.clear();
  for (size_t i = 0; i < op.n_in; ++i) {
    const Slot& slot = op.slots[i];
    if (!slot.value.valid()) continue;
    if (held(slot.value)) {
      const at::Tensor& t = tensorAt(args, slot);
      held_.push_back(
          {i, StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()), t.storage_offset()});
    }
    placeTensor(args_, slot, at::Tensor(), copied_list);
  }
  const std::optional<c10::Device> accelerator = acceleratorOf(op);
  if (accelerator)
    accelerator_ = std::make_unique<AcceleratorState>(AcceleratorState::current(*accelerator));
  if (!random) return;
  if (accelerator) {
    device_generator_ = std::make_unique<AnyGeneratorState>(
        AnyGeneratorState::of(generatorOn(*accelerator, args_)));
  }
  if (at::CPUGeneratorImpl* generator = generatorOf(args_)) {
    generator_ = std::make_unique<GeneratorState>(GeneratorState::of(*generator));
  }
}

void OpRecord::clear() {
  args_.clear();
  held_.clear();
  state_.reset();
  generator_.reset();
  device_generator_.reset();
  accelerator_.reset();
}

at::Tensor tensorOn(StorageHold storage, const Slot& slot, int64_t offset) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)),
                                                    slot.look->keys, slot.look->dtype);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(slot.look->sizes, slot.look->strides, offset);
  if (slot.look->wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

StorageHold emptyStorage(int64_t bytes, c10::Device device) {
  return c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes,
                                               c10::DataPtr(nullptr, device),
                                               c10::GetAllocator(device.type()), false);
}

torch::jit::Stack runAgain(const RecordedOp& op, const OpRecord& record,
                           c10::function_ref<at::Tensor(const Slot&)> tensorOf) {
  torch::jit::Stack stack(record.args());
  int copied_list = -1;
  // Running statistics move only once, and training does not read them: see Note [Statistics of
  // batch norm]. They may be away, or dead by now.
  auto held = record.held().begin();
  const auto& schema_args = op.handle.schema().arguments();
  for (size_t i = 0; i < op.n_in; ++i) {
    const Slot& slot = op.slots[i];
    if (slot.statistic) {
      const bool optional =
          schema_args[static_cast<size_t>(slot.arg)].type()->kind() == c10::TypeKind::OptionalType;
      stack[static_cast<size_t>(slot.arg)] =
          optional
              ? at::Tensor()
              : at::zeros(slot.look->sizes,
                          at::TensorOptions().dtype(slot.look->dtype).device(slot.look->device));
    } else if (slot.value.valid()) {
      while (held != record.held().end() && held->slot < i) ++held;
      const bool is_held = held != record.held().end() && held->slot == i;
      placeTensor(stack, slot,
                  is_held ? tensorOn(held->storage, slot, held->offset) : tensorOf(slot),
                  copied_list);
    }
  }
  const ExecutionStateGuard as_then(record.state());
  std::optional<AcceleratorStateGuard> accelerator_as_then;
  if (record.acceleratorState() != nullptr) accelerator_as_then.emplace(*record.acceleratorState());
  std::optional<AnyGeneratorGuard> device_generator;
  if (record.deviceGeneratorState() != nullptr)
    device_generator.emplace(*record.deviceGeneratorState());
  std::optional<GeneratorGuard> generator;
  if (record.generatorState() != nullptr)
    generator.emplace(*generatorOf(record.args()), *record.generatorState());
  op.handle.redispatchBoxed(record.keys(), &stack);
  size_t out = 0;
  forEachTensor(stack.data(), stack.size(), [&](const at::Tensor& t, int, int) {
    // Nobody may put a smaller result in a larger one's place.
    POET_INTERNAL_ASSERT(
        out < op.n_out && (op.out()[out].outside || geometryHash(t) == op.out()[out].hash),
        op.handle.operator_name().name,
        " made a result of another shape or type when it ran again");
    ++out;
    return true;
  });
  return stack;
}

}  // namespace poet
