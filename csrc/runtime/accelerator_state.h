// What a kernel on an accelerator may ask for beyond ExecutionState, and its generator: captured
// with an op, put back around its replay.
#pragma once

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <array>

#include "trace/accelerator.h"

namespace poet {

// Settings of the process that choose a library's kernels, and autocast's type for the device.
struct AcceleratorState {
  static constexpr std::array kPreciseOps = {at::Float32Op::CONV, at::Float32Op::RNN,
                                             at::Float32Op::MATMUL};
  c10::DeviceType type;
  bool cudnn;
  bool cudnn_benchmark;
  bool cudnn_deterministic;
  at::ScalarType autocast_dtype;
  std::array<at::Float32Precision, kPreciseOps.size()> precision;

  static AcceleratorState current(c10::Device device) {
    const at::Context& context = at::globalContext();
    return {
        device.type(),
        context.userEnabledCuDNN(),
        context.benchmarkCuDNN(),
        context.deterministicCuDNN(),
        at::autocast::get_autocast_dtype(device.type()),
        {precisionOf(kPreciseOps[0]), precisionOf(kPreciseOps[1]), precisionOf(kPreciseOps[2])}};
  }

  void apply() const {
    at::Context& context = at::globalContext();
    if (context.userEnabledCuDNN() != cudnn) context.setUserEnabledCuDNN(cudnn);
    if (context.benchmarkCuDNN() != cudnn_benchmark) context.setBenchmarkCuDNN(cudnn_benchmark);
    if (context.deterministicCuDNN() != cudnn_deterministic)
      context.setDeterministicCuDNN(cudnn_deterministic);
    if (at::autocast::get_autocast_dtype(type) != autocast_dtype)
      at::autocast::set_autocast_dtype(type, autocast_dtype);
    for (size_t i = 0; i < kPreciseOps.size(); ++i) {
      if (precisionOf(kPreciseOps[i]) != precision[i])
        context.setFloat32Precision(at::Float32Backend::CUDA, kPreciseOps[i], precision[i]);
    }
  }

 private:
  static at::Float32Precision precisionOf(at::Float32Op op) {
    return at::globalContext().float32Precision(at::Float32Backend::CUDA, op);
  }
};

class AcceleratorStateGuard {
 public:
  explicit AcceleratorStateGuard(const AcceleratorState& as_then)
      : before_(AcceleratorState::current(c10::Device(as_then.type))) {
    as_then.apply();
  }
  ~AcceleratorStateGuard() { before_.apply(); }
  AcceleratorStateGuard(const AcceleratorStateGuard&) = delete;
  AcceleratorStateGuard& operator=(const AcceleratorStateGuard&) = delete;

 private:
  AcceleratorState before_;
};

// Draws from a saved state within its lifetime; afterwards the generator is as it was.
class AnyGeneratorGuard {
 public:
  explicit AnyGeneratorGuard(const AnyGeneratorState& as_then)
      : before_(AnyGeneratorState::of(as_then.generator())) {
    as_then.restore();
  }
  ~AnyGeneratorGuard() { before_.restore(); }
  AnyGeneratorGuard(const AnyGeneratorGuard&) = delete;
  AnyGeneratorGuard& operator=(const AnyGeneratorGuard&) = delete;

 private:
  AnyGeneratorState before_;
};

}  // namespace poet
