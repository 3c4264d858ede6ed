// An op under a plan that may make something else than was recorded.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <optional>

#include "runtime/generator_state.h"
#include "trace/allocator_tap.h"

namespace poet {

// Note [Results shaped by data]
// How many rows `nonzero` finds shows only when it has run, and what `randn(n)` makes depends on a
// number that is no tensor's. Where an op depends on what its inputs hold, or is given other
// numbers than were recorded, and changes nothing but a generator, the plan tries it: what it is
// given is kept, and an allocation for which the plan has no room at this op throws. If it throws,
// or makes something else than was recorded, it is as if it had not run: its results go, its
// generator is put back, and the step leaves its plan before it. It runs again, recorded and inside
// the budget like the rest of the step.
class OpTrial final : public RoomMaker {
 public:
  struct TakesMore {};

  // The op's arguments lie on top of the stack. `room`: bytes that it may take.
  OpTrial(const c10::OperatorHandle& op, bool random, const torch::jit::Stack& stack, int64_t room)
      : arguments_(stack.end() - static_cast<int64_t>(op.schema().arguments().size()), stack.end()),
        below_(stack.size() - arguments_.size()),
        room_(room) {
    if (!random) return;
    generator_ = generatorOf(arguments_);
    if (generator_ != nullptr) as_before_ = GeneratorState::of(*generator_);
  }

  // One at a time: what kernels take and give back on the way is not counted here.
  void makeRoom(int64_t bytes) override {
    if (bytes > room_) throw TakesMore();
  }

  // It has made what was recorded: what dies with the op is dead before the plan goes on.
  void keep() { arguments_.clear(); }

  void undo(torch::jit::Stack& stack) {
    stack.resize(below_);
    for (c10::IValue& argument : arguments_) stack.push_back(std::move(argument));
    if (as_before_) as_before_->putInto(*generator_);
  }

 private:
  torch::jit::Stack arguments_;
  size_t below_;
  int64_t room_;
  at::CPUGeneratorImpl* generator_ = nullptr;
  std::optional<GeneratorState> as_before_;
};

}  // namespace poet
