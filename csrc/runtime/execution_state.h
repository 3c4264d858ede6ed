// The thread's settings that a kernel may ask for: captured with an op, put back around its replay.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <cstdint>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace poet {

// How this thread rounds, and whether it takes denormal numbers for zeros
// (torch.set_flush_denormal).
class FloatControl {
 public:
  static FloatControl current() {
    FloatControl control;
#if defined(__x86_64__)
    control.bits_ = _mm_getcsr() & kMask;
#elif defined(__aarch64__)
    asm volatile("mrs %0, fpcr" : "=r"(control.bits_));
#endif
    return control;
  }
  void apply() const {
#if defined(__x86_64__)
    _mm_setcsr((_mm_getcsr() & ~kMask) | static_cast<uint32_t>(bits_));
#elif defined(__aarch64__)
    asm volatile("msr fpcr, %0" : : "r"(bits_));
#endif
  }
  friend bool operator==(const FloatControl&, const FloatControl&) = default;

 private:
  static constexpr uint32_t kMask = 0xe040;  // flush to zero, rounding, denormals are zeros
  uint64_t bits_ = 0;
};

// mkldnn_rnn_layer asks GradMode below autograd; reductions split by thread count; determinism
// flags choose kernels; integers become floats of the default type. A replay must see what the
// first run saw, or bits may differ.
struct ExecutionState {
  static constexpr std::array kPreciseOps = {at::Float32Op::CONV, at::Float32Op::RNN,
                                             at::Float32Op::MATMUL};
  c10::impl::LocalDispatchKeySet dispatch;
  bool grad_mode;
  int num_threads;
  bool deterministic;
  bool deterministic_warn_only;
  bool mkldnn;
  bool mkldnn_deterministic;
  bool nnpack;
  bool fp16_reduction;
  at::ScalarType autocast_dtype;
  caffe2::TypeMeta default_dtype;
  std::array<at::Float32Precision, kPreciseOps.size()> precision;
  FloatControl float_control;

  static ExecutionState current() {
    const at::Context& context = at::globalContext();
    return {c10::impl::tls_local_dispatch_key_set(),
            at::GradMode::is_enabled(),
            at::get_num_threads(),
            context.deterministicAlgorithms(),
            context.deterministicAlgorithmsWarnOnly(),
            context.userEnabledMkldnn(),
            context.deterministicMkldnn(),
            context.userEnabledNNPACK(),
            context.allowFP16ReductionCPU(),
            at::autocast::get_autocast_dtype(at::kCPU),
            c10::get_default_dtype(),
            {precisionOf(kPreciseOps[0]), precisionOf(kPreciseOps[1]), precisionOf(kPreciseOps[2])},
            FloatControl::current()};
  }

  // Everything but the dispatch state and GradMode, which have guards of their own.
  void applyGlobals() const {
    at::Context& context = at::globalContext();
    if (at::get_num_threads() != num_threads) at::set_num_threads(num_threads);
    if (context.deterministicAlgorithms() != deterministic ||
        context.deterministicAlgorithmsWarnOnly() != deterministic_warn_only) {
      context.setDeterministicAlgorithms(deterministic, deterministic_warn_only);
    }
    if (context.userEnabledMkldnn() != mkldnn) context.setUserEnabledMkldnn(mkldnn);
    if (context.deterministicMkldnn() != mkldnn_deterministic)
      context.setDeterministicMkldnn(mkldnn_deterministic);
    if (context.userEnabledNNPACK() != nnpack) context.setUserEnabledNNPACK(nnpack);
    if (context.allowFP16ReductionCPU() != fp16_reduction)
      context.setAllowFP16ReductionCPU(fp16_reduction);
    if (at::autocast::get_autocast_dtype(at::kCPU) != autocast_dtype) {
      at::autocast::set_autocast_dtype(at::kCPU, autocast_dtype);
    }
    if (c10::get_default_dtype() != default_dtype) c10::set_default_dtype(default_dtype);
    for (size_t i = 0; i < kPreciseOps.size(); ++i) {
      if (precisionOf(kPreciseOps[i]) != precision[i])
        context.setFloat32Precision(at::Float32Backend::MKLDNN, kPreciseOps[i], precision[i]);
    }
    if (!(FloatControl::current() == float_control)) float_control.apply();
  }

 private:
  static at::Float32Precision precisionOf(at::Float32Op op) {
    return at::globalContext().float32Precision(at::Float32Backend::MKLDNN, op);
  }
};

class ExecutionStateGuard {
 public:
  explicit ExecutionStateGuard(const ExecutionState& as_then)
      : before_(ExecutionState::current()),
        dispatch_(as_then.dispatch),
        grad_mode_(as_then.grad_mode) {
    as_then.applyGlobals();
  }
  ~ExecutionStateGuard() { before_.applyGlobals(); }
  ExecutionStateGuard(const ExecutionStateGuard&) = delete;
  ExecutionStateGuard& operator=(const ExecutionStateGuard&) = delete;

 private:
  ExecutionState before_;
  c10::impl::ForceDispatchKeyGuard dispatch_;
  at::AutoGradMode grad_mode_;
};

}  // namespace poet
