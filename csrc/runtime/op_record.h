// What must be kept of an op's call so that it can run again in the same step.
#pragma once

#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/accelerator_state.h"
#include "runtime/execution_state.h"
#include "runtime/generator_state.h"
#include "trace/recording.h"

namespace poet {

// Note [No tensors of the step are held]
// Tensors among the arguments are left out: the slots of the recording say what they were, and they
// are built again at the replay. So autograd can still steal gradients and accumulate in place, and
// nothing lives longer than in plain training. Of what came from outside and outlives the step
// (parameters, the batch, Python numbers) the storage is held. Not the tensor: a detached alias of
// the batch, say, has a gradient of its own, which would live as long
// (torch.utils.checkpoint with use_reentrant=True makes such ones).
class OpRecord {
 public:
  bool isSet() const { return state_.has_value(); }
  // `held`: whether the record holds a value's storage.
  void capture(const RecordedOp& op, c10::function_ref<bool(ValueId)> held, bool random,
               const c10::IValue* args, size_t count, c10::DispatchKeySet below);
  void clear();

  const torch::jit::Stack& args() const { return args_; }
  // A slot's storage, and the offset at which this step has the tensor (Note [Batches that are
  // slices]).
  struct Held {
    size_t slot;
    StorageHold storage;
    int64_t offset;
  };
  // Of the held values, by ascending slots.
  const std::vector<Held>& held() const { return held_; }
  c10::DispatchKeySet keys() const { return keys_; }
  const ExecutionState& state() const { return *state_; }
  const GeneratorState* generatorState() const { return generator_.get(); }
  void dropGeneratorState() { generator_.reset(); }
  // Of the accelerator's generator that it may have drawn from.
  const AnyGeneratorState* deviceGeneratorState() const { return device_generator_.get(); }
  const AcceleratorState* acceleratorState() const { return accelerator_.get(); }

 private:
  torch::jit::Stack args_;
  std::vector<Held> held_;
  c10::DispatchKeySet keys_;
  std::optional<ExecutionState> state_;
  std::unique_ptr<GeneratorState> generator_;
  std::unique_ptr<AnyGeneratorState> device_generator_;
  std::unique_ptr<AcceleratorState> accelerator_;
};

// A tensor that looks at the storage as the slot says, or from another offset on.
at::Tensor tensorOn(StorageHold storage, const Slot& slot, int64_t offset);
inline at::Tensor tensorOn(StorageHold storage, const Slot& slot) {
  return tensorOn(std::move(storage), slot, slot.offset);
}
// A storage of the right size without data, for ops that look at shapes only.
StorageHold emptyStorage(int64_t bytes, c10::Device device);

// Runs a recorded op again, on this step's arguments and with the thread's settings of its first
// run. `tensorOf` makes the arguments whose values the record does not hold. Running statistics are
// not touched. Returns the op's results.
torch::jit::Stack runAgain(const RecordedOp& op, const OpRecord& record,
                           c10::function_ref<at::Tensor(const Slot&)> tensorOf);

// Puts `tensor` in the slot's place on the stack; copies a list before the first change to it
// (`copied_list` says which argument has been copied already; -1 at the start).
void placeTensor(torch::jit::Stack& stack, const Slot& slot, at::Tensor tensor, int& copied_list);

}  // namespace poet
