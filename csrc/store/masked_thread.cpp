#include "store/masked_thread.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace poet::store {

std::unique_ptr<std::thread> startMaskedThread(const char* name, std::function<void()> work) {
  std::unique_ptr<std::thread> thread;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  try {
    thread = std::make_unique<std::thread>(std::move(work));
    ::pthread_setname_np(thread->native_handle(), name);
  } catch (const std::system_error&) {
    // no thread is left to be had
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace poet::store
