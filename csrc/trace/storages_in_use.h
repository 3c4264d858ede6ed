// Which memory an operator, or a step, on another thread counts on right now.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>

#include <thread>
#include <unordered_set>
#include <vector>

#include "graph/export.h"

namespace poet {

// Note [Storages in use]
// An operator of another thread tells the steps under way of the tensors that it touches before it
// runs (Listener::onForeignOp), and then runs without their locks: it may take longer than a step,
// and a step that evicts what it reads takes the memory from under it. So each thread notes what
// its operator touches for as long as that runs, without a lock, and whoever evicts looks there.
// The order makes that safe: a thread notes first and then asks whether anybody listens; a step
// listens first and then looks what is noted. One of the two sees the other.
//
// Note [What another step counts on]
// Two steps on two threads may share tensors from before both (a frozen trunk, say). A step replays
// ops on what it has seen, under its own lock, and can ask nobody then. So it claims those tensors
// until it ends, and no other step evicts them: what is away when the claim is made comes back when
// an op shows it, before any replay reads it.
class POET_API StoragesInUse {
 public:
  // For as long as it lives, on this thread: the storages of the op's tensor arguments.
  class Guard {
   public:
    Guard(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    bool outermost_;
  };

  // For as long as it lives: the storages that a step on this thread counts on. Belongs to the
  // session that runs the step, which serializes.
  class Claim {
   public:
    Claim();
    ~Claim();
    Claim(const Claim&) = delete;
    Claim& operator=(const Claim&) = delete;
    void add(const std::vector<const c10::StorageImpl*>& storages);

   private:
    friend class StoragesInUse;
    std::thread::id thread_;
    std::unordered_set<const c10::StorageImpl*> storages_;  // those that died do no harm
  };

  // While it lives this thread works for a step on another one, which waits for it: what that
  // step's thread claims is no other thread's.
  class OnBehalfOf {
   public:
    explicit OnBehalfOf(std::thread::id thread);
    ~OnBehalfOf();
    OnBehalfOf(const OnBehalfOf&) = delete;
    OnBehalfOf& operator=(const OnBehalfOf&) = delete;

   private:
    std::thread::id before_;
  };

  // Whether an op or a step on a thread other than this one may be using it.
  static bool elsewhere(const c10::StorageImpl& storage);
};

}  // namespace poet
