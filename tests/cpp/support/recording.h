// A Recording of a few lines of LibTorch, without a Session.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "trace/dispatch_key.h"
#include "trace/listener.h"
#include "trace/recorder.h"

namespace poet::testing {

// Records the ops of its thread; before each, shows its arguments to `looks`.
class RecordingListener final : public Listener {
 public:
  using Looks = std::function<void(size_t op, const c10::IValue* args, size_t count,
                                   c10::DispatchKeySet below)>;

  explicit RecordingListener(std::vector<KnownStorage> known, Looks looks = nullptr,
                             bool all_are_known = false)
      : recorder(std::move(known), all_are_known), looks_(std::move(looks)) {}

  void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
            torch::jit::Stack* stack) override {
    const size_t count = op.schema().arguments().size();
    if (looks_) looks_(recorder.numOps(), stack->data() + (stack->size() - count), count, below);
    recorder.run(op, below, stack);
  }
  void onForeignOp(const c10::OperatorHandle&, torch::jit::Stack*) override {}

  Recorder recorder;

 private:
  Looks looks_;
};

inline std::shared_ptr<const Recording> recordStep(const std::function<void()>& step,
                                                   std::vector<KnownStorage> known = {},
                                                   RecordingListener::Looks looks = nullptr) {
  registerListener();
  const AllocatorTap::Guard tap;
  const auto listener = std::make_shared<RecordingListener>(std::move(known), std::move(looks));
  {
    const ListenerGuard guard(listener);
    const ListeningGuard listening;
    step();
  }
  return listener->recorder.finish();
}

}  // namespace poet::testing
