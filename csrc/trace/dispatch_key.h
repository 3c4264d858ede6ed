// The dispatch key below autograd on which poet listens: the one place that names it and knows how
// torch versions differ.
#pragma once

#include <c10/core/DispatchKey.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "graph/export.h"

namespace poet {

// Note [The key poet listens on]
// DispatchKey::Fake lies below autograd, ADInplaceOrView and functorch and above the backends (and
// BackendSelect), so a boxed fallback on it sees the true primitive ops, factories included.
// PyTorch reserves it for a C++ fake-tensor mode: the day it gets a fallback of PyTorch's own, or
// moves, checkListeningKey() must fail before anything is registered. 2.13 has it directly below
// Python; 2.11 and 2.12 directly above.
inline constexpr c10::DispatchKey kListeningKey = c10::DispatchKey::Fake;

// The keys below ours, with which an op is passed on.
inline c10::DispatchKeySet keysBelow(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kListeningKey);
}

// Throws poet::Error, saying what was expected and found, when the key is taken or stands
// elsewhere.
POET_API void checkListeningKey();

// Registers poet's fallback, once; checks first. Idempotent and thread-safe.
POET_API void registerListener();

// Switches listening on for the current thread (and what autograd spawns from it) for the guard's
// lifetime.
class ListeningGuard {
 public:
  ListeningGuard() : was_included_(c10::impl::tls_is_dispatch_key_included(kListeningKey)) {
    c10::impl::tls_set_dispatch_key_included(kListeningKey, true);
  }
  ~ListeningGuard() { c10::impl::tls_set_dispatch_key_included(kListeningKey, was_included_); }
  ListeningGuard(const ListeningGuard&) = delete;
  ListeningGuard& operator=(const ListeningGuard&) = delete;

 private:
  bool was_included_;
};

}  // namespace poet
