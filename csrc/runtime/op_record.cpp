#include "runtime/op_record.h"

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

void OpRecord::capture(const RecordedOp& op, const CompiledPlan& plan, bool random,
                       const c10::IValue* args, size_t count, c10::DispatchKeySet below) {
  args_.assign(args, args + count);
  keys_ = below;
  state_ = ExecutionState::current();
  int copied_list = -1;
  for (const Slot& slot : op.in) {
    if (!slot.value.valid() || plan.isHeldByRecords(slot.value)) continue;
    placeTensor(args_, slot, at::Tensor(), copied_list);
  }
  if (!random) return;
  if (at::CPUGeneratorImpl* generator = generatorOf(args_)) {
    generator_ = std::make_unique<GeneratorState>(GeneratorState::of(*generator));
  }
}

void OpRecord::clear() {
  args_.clear();
  state_.reset();
  generator_.reset();
}

}  // namespace poet
