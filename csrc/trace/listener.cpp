#include "trace/listener.h"

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "trace/dispatch_key.h"
#include "trace/storages_in_use.h"

namespace poet {
namespace {

thread_local Listener* t_listener = nullptr;
thread_local bool t_is_heard = false;  // whether anybody listens or not
std::atomic<void (*)()> g_handler = nullptr;

struct Active {
  std::mutex mutex;
  std::vector<std::shared_ptr<Listener>> listeners;
  std::vector<std::pair<const Watch*, std::weak_ptr<Listener>>> watchers;
  std::atomic<int> num_in_all = 0;
  static Active& get() {
    static Active* active = new Active;  // threads may outlive static destruction
    return *active;
  }
};

std::atomic<int> g_listeners = 0;  // that exist

// See Note [Device threads].
const c10::DebugInfoKind kInfo = c10::DebugInfoKind::INFERENCE_CONTEXT;
std::atomic<int> g_backward_passes = 0;  // under a BackwardGuard that names a listener

struct BackwardInfo final : c10::DebugInfoBase {
  BackwardInfo(Listener* l, std::thread::id t) : listener(l), step_thread(t) {}
  Listener* listener;  // which outlives the pass
  std::thread::id step_thread;
};

const BackwardInfo* backwardInfo() {
  if (g_backward_passes.load(std::memory_order_relaxed) == 0) return nullptr;
  return dynamic_cast<const BackwardInfo*>(c10::ThreadLocalDebugInfo::get(kInfo));
}

// On a thread that serves a backward pass: what is the step's thread's holds here, while an op
// runs.
class OnBehalfGuard {
 public:
  explicit OnBehalfGuard(const BackwardInfo* info) {
    if (info == nullptr) return;
    t_listener = info->listener;
    behalf_.emplace(info->step_thread);
  }
  ~OnBehalfGuard() {
    if (behalf_) t_listener = nullptr;
  }
  OnBehalfGuard(const OnBehalfGuard&) = delete;
  OnBehalfGuard& operator=(const OnBehalfGuard&) = delete;

 private:
  std::optional<StoragesInUse::OnBehalfOf> behalf_;
};

// Those whose step runs on another thread, and those that watch.
std::vector<std::shared_ptr<Listener>> others() {
  Active& active = Active::get();
  const std::lock_guard<std::mutex> lock(active.mutex);
  std::vector<std::shared_ptr<Listener>> found = active.listeners;
  std::erase_if(found, [](const auto& listener) { return listener.get() == t_listener; });
  for (const auto& [watch, weak] : active.watchers) {
    if (auto listener = weak.lock()) found.push_back(std::move(listener));
  }
  return found;
}

void tellOthers(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  try {
    const auto all = others();
    int64_t bytes = 0;  // asked for one after the other: no listener's lock is held under another's
    if (t_listener != nullptr) {
      for (const auto& listener : all) bytes += listener->bytesToBringBack(op, *stack);
    }
    if (bytes > 0) t_listener->expectBytes(bytes);
    for (const auto& listener : all) listener->onForeignOp(op, stack);
  } catch (const Error&) {
    if (const auto handler = g_handler.load()) handler();
    throw;
  }
}

}  // namespace

void onOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard inner_ops_do_not_count(kListeningKey);
  const c10::DispatchKeySet below = keysBelow(keys);
  const OnBehalfGuard on_behalf(t_listener == nullptr ? backwardInfo() : nullptr);
  const bool hears_itself = t_listener != nullptr;
  // The only step that there is knows what its own ops use.
  std::optional<StoragesInUse::Guard> in_use;
  if (g_listeners.load() > (hears_itself ? 1 : 0)) in_use.emplace(op, *stack);
  if (Active::get().num_in_all.load() > (hears_itself ? 1 : 0)) {
    tellOthers(op, stack);
  } else if (!hears_itself && !t_is_heard) {
    c10::impl::tls_set_dispatch_key_included(kListeningKey, false);
  }
  if (hears_itself) {
    t_listener->onOp(op, below, stack);
  } else {
    op.redispatchBoxed(below, stack);
  }
}

Listener::Listener() { ++g_listeners; }
Listener::~Listener() { --g_listeners; }
bool Listener::areSeveral() { return g_listeners.load() > 1; }

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

BackwardGuard::BackwardGuard() {
  if (t_listener == nullptr || !t_listener->usesDeviceThreads()) return;
  info_.emplace(kInfo, std::make_shared<BackwardInfo>(t_listener, std::this_thread::get_id()));
  ++g_backward_passes;
}

BackwardGuard::~BackwardGuard() {
  if (info_) --g_backward_passes;
}

Watch::Watch(std::weak_ptr<Listener> listener) {
  {
    Active& active = Active::get();
    const std::lock_guard<std::mutex> lock(active.mutex);
    active.watchers.emplace_back(this, std::move(listener));
    ++active.num_in_all;
  }
  c10::impl::tls_set_dispatch_key_included(kListeningKey, true);
}

Watch::~Watch() {
  Active& active = Active::get();
  const std::lock_guard<std::mutex> lock(active.mutex);
  std::erase_if(active.watchers, [this](const auto& one) { return one.first == this; });
  --active.num_in_all;
}

void hearThisThread() {
  registerListener();
  t_is_heard = true;
  c10::impl::tls_set_dispatch_key_included(kListeningKey, true);
}

Listener* currentListener() {
  if (t_listener != nullptr) return t_listener;
  const BackwardInfo* const info = backwardInfo();
  return info == nullptr ? nullptr : info->listener;
}

bool isListening() { return currentListener() != nullptr; }

}  // namespace poet
