// What poet asks of an accelerator, by PyTorch's device-generic interfaces: no vendor's headers.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>

#include "graph/export.h"

namespace poet {

// Note [Steps on an accelerator]
// A session budgets one device: the CPU, or an accelerator. On an accelerator
// - the budget counts the memory of that device alone. Whatever lies elsewhere (a batch on the CPU,
//   AdamW's step counts) is a value all the same, so that ops that read it can run again, but it
//   takes no bytes and stays where it is;
// - kernels are launched and not waited for. While a step is recorded the device is waited for
//   before and after each op, so that seconds are the op's own, and PyTorch's caching allocator
//   tells what it had inside (its peak counts start anew with each such op);
// - memory is given back and taken again in the order of one stream. A step that runs ops on
//   several streams is recorded, and nothing of it may leave memory;
// - the backward pass runs on threads of autograd's own: see Note [Device threads] in listener.h;
// - poet looks at no byte of device memory, so what native code (a compiled kernel, say) adds to an
//   operator's result goes unseen. What it fills that `empty` has made does not: see
//   Note [Written by native code].
// There is no online policy: steps without a plan run without a cap.
class POET_API Accelerator {
 public:
  // "cpu" and "cpu:0" are one.
  static bool isSame(c10::Device a, c10::Device b) {
    return a.type() == b.type() && (a.is_cpu() || a.index() == b.index());
  }
  // The types of device whose tensors poet knows at all.
  static bool isKnown(c10::DeviceType type) {
    return type == c10::DeviceType::CPU || type == c10::DeviceType::CUDA;
  }

  explicit Accelerator(c10::Device device) : device_(device) {}

  c10::Device device() const { return device_; }
  void synchronize() const;
  // Of the calling thread.
  c10::Stream currentStream() const;
  at::Generator defaultGenerator() const;

  struct Memory {
    int64_t bytes = 0;        // that tensors and kernels have asked for and hold
    int64_t most_bytes = 0;   // since resetMost()
    int64_t taken_bytes = 0;  // that the allocator has given them, rounded up
  };
  Memory memory() const;
  void resetMost() const;

 private:
  c10::Device device_;
};

// A generator's state, whatever its device is.
class AnyGeneratorState {
 public:
  static AnyGeneratorState of(at::Generator generator);
  void restore() const;  // into the generator that it is of
  const at::Generator& generator() const { return generator_; }
  friend bool operator==(const AnyGeneratorState& a, const AnyGeneratorState& b);

 private:
  at::Generator generator_;
  at::Tensor state_;  // on the CPU
};

}  // namespace poet
