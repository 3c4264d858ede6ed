#include "trace/listener.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "graph/error.h"
#include "trace/dispatch_key.h"

namespace poet {
namespace {

thread_local Listener* t_listener = nullptr;

struct Active {
  std::mutex mutex;
  std::vector<std::shared_ptr<Listener>> listeners;
  static Active& get() {
    static Active* active = new Active;  // threads may outlive static destruction
    return *active;
  }
};

void tellAll(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  std::vector<std::shared_ptr<Listener>> listeners;
  {
    const std::lock_guard<std::mutex> lock(Active::get().mutex);
    listeners = Active::get().listeners;
  }
  for (const auto& listener : listeners) listener->onForeignOp(op, stack);
}

}  // namespace

void onOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inner_ops_do_not_count(kListeningKey);
  const c10::DispatchKeySet below = keysBelow(keys);
  if (t_listener != nullptr) {
    t_listener->onOp(op, below, stack);
    return;
  }
  tellAll(op, stack);
  op.redispatchBoxed(below, stack);
}

ListenerGuard::ListenerGuard(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {
  POET_INTERNAL_ASSERT(t_listener == nullptr, "a step is being heard on this thread already");
  {
    const std::lock_guard<std::mutex> lock(Active::get().mutex);
    Active::get().listeners.push_back(listener_);
  }
  t_listener = listener_.get();
}

ListenerGuard::~ListenerGuard() {
  t_listener = nullptr;
  const std::lock_guard<std::mutex> lock(Active::get().mutex);
  auto& listeners = Active::get().listeners;
  listeners.erase(std::find(listeners.begin(), listeners.end(), listener_));
}

bool isListening() { return t_listener != nullptr; }

}  // namespace poet
