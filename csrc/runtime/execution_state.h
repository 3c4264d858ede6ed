// The thread's settings that a kernel may ask for: captured with an op, put back around its replay.
#pragma once

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace poet {

// mkldnn_rnn_layer asks GradMode below autograd; reductions split by thread count; determinism
// flags choose kernels. A replay must see what the first run saw, or bits may differ.
struct ExecutionState {
  c10::impl::LocalDispatchKeySet dispatch;
  bool grad_mode;
  int num_threads;
  bool deterministic;
  bool deterministic_warn_only;
  bool mkldnn;
  at::ScalarType autocast_dtype;

  static ExecutionState current() {
    const at::Context& context = at::globalContext();
    return {c10::impl::tls_local_dispatch_key_set(),
            at::GradMode::is_enabled(),
            at::get_num_threads(),
            context.deterministicAlgorithms(),
            context.deterministicAlgorithmsWarnOnly(),
            context.userEnabledMkldnn(),
            at::autocast::get_autocast_dtype(at::kCPU)};
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
    if (at::autocast::get_autocast_dtype(at::kCPU) != autocast_dtype) {
      at::autocast::set_autocast_dtype(at::kCPU, autocast_dtype);
    }
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
