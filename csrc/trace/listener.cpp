#include "trace/listener.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "trace/dispatch_key.h"

namespace poet {
namespace {

thread_local Listener* t_listener = nullptr;
thread_local bool t_is_heard = false;  // whether anybody listens or not
std::atomic<void (*)()> g_handler = nullptr;

struct Active {
  std::mutex mutex;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::pair<const Watch*, std::weak_ptr<Listener>>> watchers;
  std::atomic<int> num_watchers = 0;
  std::atomic<int> num_in_all = 0;
  static Active& get() {
    static Active* active = new Active;  // threads may outlive static destruction
    return *active;
  }
};

// Those whose step runs on another thread (unless `watchers_only`), and those that watch.
std::vector<std::shared_ptr<Listener>> others(bool watchers_only) {
  Active& active = Active::get();
  const std::lock_guard<std::mutex> lock(active.mutex);
  std::vector<std::shared_ptr<Listener>> found;
  if (!watchers_only) found = active.listeners;
  for (const auto& [watch, weak] : active.watchers) {
    if (auto listener = weak.lock()) found.push_back(std::move(listener));
  }
  return found;
}

}  // namespace

void onOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inner_ops_do_not_count(kListeningKey);
  const c10::DispatchKeySet below = keysBelow(keys);
  if (t_listener != nullptr) {
    if (Active::get().num_watchers.load() > 0) {
      for (const auto& watcher : others(true)) watcher->onForeignOp(op, stack);
    }
    t_listener->onOp(op, below, stack);
    return;
  }
  if (Active::get().num_in_all.load() == 0) {
    if (!t_is_heard) c10::impl::tls_set_dispatch_key_included(kListeningKey, false);
    op.redispatchBoxed(below, stack);
    return;
  }
  const auto listeners = others(false);
  try {
    for (const auto& listener : listeners) listener->onForeignOp(op, stack);
  } catch (const Error&) {
    if (const auto handler = g_handler.load()) handler();
    throw;
  }
  op.redispatchBoxed(below, stack);
}

void setForeignErrorHandler(void (*handler)()) { g_handler = handler; }

ListenerGuard::ListenerGuard(std::shared_ptr<Listener> listener) : listener_(std::move(listener)) {
  POET_INTERNAL_ASSERT(t_listener == nullptr, "a step is being heard on this thread already");
  {
    const std::lock_guard<std::mutex> lock(Active::get().mutex);
    Active::get().listeners.push_back(listener_);
    ++Active::get().num_in_all;
  }
  t_listener = listener_.get();
}

ListenerGuard::~ListenerGuard() {
  t_listener = nullptr;
  const std::lock_guard<std::mutex> lock(Active::get().mutex);
  auto& listeners = Active::get().listeners;
  listeners.erase(std::find(listeners.begin(), listeners.end(), listener_));
  --Active::get().num_in_all;
}

Watch::Watch(std::weak_ptr<Listener> listener) {
  {
    Active& active = Active::get();
    const std::lock_guard<std::mutex> lock(active.mutex);
    active.watchers.emplace_back(this, std::move(listener));
    ++active.num_watchers;
    ++active.num_in_all;
  }
  c10::impl::tls_set_dispatch_key_included(kListeningKey, true);
}

Watch::~Watch() {
  Active& active = Active::get();
  const std::lock_guard<std::mutex> lock(active.mutex);
  std::erase_if(active.watchers, [this](const auto& one) { return one.first == this; });
  --active.num_watchers;
  --active.num_in_all;
}

void hearThisThread() {
  registerListener();
  t_is_heard = true;
  c10::impl::tls_set_dispatch_key_included(kListeningKey, true);
}

bool isListening() { return t_listener != nullptr; }

}  // namespace poet
