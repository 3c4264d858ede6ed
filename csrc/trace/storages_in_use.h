// Which memory an operator on another thread is reading or writing right now.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/StorageImpl.h>

#include "graph/export.h"

namespace poet {

// Note [Storages in use]
// An operator of another thread tells the steps under way of the tensors that it touches before it
// runs (Listener::onForeignOp), and then runs without their locks: it may take longer than a step,
// and a step that evicts what it reads takes the memory from under it. So each thread notes what
// its operator touches for as long as that runs, without a lock, and whoever evicts looks there.
// The order makes that safe: a thread notes first and then asks whether anybody listens; a step
// listens first and then looks what is noted. One of the two sees the other.
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

  // Whether an op on a thread other than this one may be using it.
  static bool elsewhere(const c10::StorageImpl& storage);
};

}  // namespace poet
