// What hears the ops of a thread: a step that is being recorded or made to follow a plan.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "graph/export.h"

namespace poet {

class POET_API Listener {
 public:
  Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  virtual ~Listener();
  // Runs the op (with `below` as its keys) and does whatever the step needs around it. Called with
  // the listening key excluded, so that only outermost ops are heard.
  virtual void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                    torch::jit::Stack* stack) = 0;
  // An op on another thread is about to run, be it one that hears nothing itself (a thread pool
  // that inherited the dispatch state) or one that runs a step of its own; or, while the listener
  // watches, any op that it does not hear.
  virtual void onForeignOp(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
  // Bytes that onForeignOp() would take to bring back what the op touches.
  virtual int64_t bytesToBringBack(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    static_cast<void>(op), static_cast<void>(stack);
    return 0;
  }
  // See Note [Device threads]. Whether its step's backward passes go on on other threads.
  virtual bool usesDeviceThreads() { return false; }
  // See Note [Lending]. Whether it wants custom nodes to be looked for in a backward pass; one has
  // been found.
  virtual bool wantsCustomNodes() { return false; }
  virtual void noteCustomNode() {}
  virtual void onLend(const at::Tensor& t) { static_cast<void>(t); }
  virtual void onLendingEnds(size_t tensors) { static_cast<void>(tensors); }  // of the latest ones
  // Before another listener takes so many bytes for an op of this one's step.
  virtual void expectBytes(int64_t bytes) { static_cast<void>(bytes); }

  static bool areSeveral();  // that exist, whether their steps run or not
};

// The boxed fallback.
void onOperator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// Makes `listener` hear the ops of the current thread for the guard's lifetime, and be told of ops
// on foreign threads.
class POET_API ListenerGuard {
 public:
  explicit ListenerGuard(std::shared_ptr<Listener> listener);
  ~ListenerGuard();
  ListenerGuard(const ListenerGuard&) = delete;
  ListenerGuard& operator=(const ListenerGuard&) = delete;

 private:
  std::shared_ptr<Listener> listener_;
};

// Note [Device threads]
// The nodes of a backward pass whose tensors lie on an accelerator run on a thread of autograd's
// that serves that device, while the thread that asked for the pass waits. Their ops are the
// step's. Autograd takes thread-local state along, the listening key among it, and c10's debug
// info, which is there to be used so; poet's own thread-local variables stay behind. So for as long
// as a backward pass goes on the debug info names the listener, and on a thread that hears nothing
// itself an op looks for it there. Only steps on an accelerator do that (usesDeviceThreads()).
// Whoever starts backward passes (python/poet/_lending.py, a C++ program's step) has one of these
// around each; no effect where nothing is heard. The slot in the debug info is meant for whole
// programs, and unused by PyTorch; one that the program itself has put there is shadowed meanwhile.
class POET_API BackwardGuard {
 public:
  BackwardGuard();
  ~BackwardGuard();
  BackwardGuard(const BackwardGuard&) = delete;
  BackwardGuard& operator=(const BackwardGuard&) = delete;

 private:
  std::optional<c10::DebugInfoGuard> info_;
};

// Note [Watching]
// Between its steps a session may have values away. Then it watches: it is told of the ops of every
// thread on which the listening key is included (the thread that ran the step keeps it), also
// within another listener's step. When nobody listens or watches any more, a thread drops the key
// at its next op.
class POET_API Watch {
 public:
  explicit Watch(std::weak_ptr<Listener> listener);
  ~Watch();
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;
};

// Note [Other threads]
// Whether the listening key is included is a thread's own affair, and a thread of the program that
// shares tensors with a step (a loader that fills a buffer again, a pool that runs a branch of the
// model) inherits nothing. Its ops must be heard all the same: they may touch what is away, or
// write what replays read. So a thread asks to be heard, once, when it begins; it keeps the key
// even while nobody listens, and then its ops pass through without a lock. Python asks for each
// thread that begins after poet was imported (python/poet/_threads.py). Throws as
// checkListeningKey() does.
POET_API void hearThisThread();

// What to do with an error of Listener::onForeignOp. It would leave through the operator, and
// PyTorch's bindings know nothing of poet's errors: Python would get a RuntimeError. The handler is
// called while it is being handled: it throws what they do know, or returns, and the error leaves
// as it is.
POET_API void setForeignErrorHandler(void (*handler)());

// What hears this thread, or the backward pass that it serves; null: nothing does.
Listener* currentListener();
// Whether a step is being heard on this thread.
POET_API bool isListening();

}  // namespace poet
