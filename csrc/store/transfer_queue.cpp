#include "store/transfer_queue.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

namespace poet {

struct TransferQueue::Transfer {
  enum class Kind { kWrite, kRead, kRelease };
  const Kind kind;
  void* const data;
  int64_t number;  // bytes of a write until it is done; else the slot
  bool is_done = false;
  std::exception_ptr error;
};

// ------------------------------------------------------------------------------------------------
// forks

// Every queue of the process. Before a fork all of them come to rest and are locked, so that the
// child finds them whole.
struct TransferQueue::ForkHandlers {
  static ForkHandlers& instance() {
    static auto* handlers = new ForkHandlers;  // queues may outlive static objects
    return *handlers;
  }

  ForkHandlers() {
    ::pthread_atfork([] { instance().prepare(); }, [] { instance().goOn(false); },
                     [] { instance().goOn(true); });
  }

  void add(TransferQueue* queue) {
    const std::lock_guard lock(mutex);
    queues.push_back(queue);
  }

  void remove(TransferQueue* queue) {
    const std::lock_guard lock(mutex);
    std::erase(queues, queue);
  }

  void prepare() {
    mutex.lock();
    for (TransferQueue* queue : queues) {
      std::unique_lock lock(queue->mutex_);
      queue->waitUntilIdle(lock);
      lock.release();
    }
  }

  void goOn(bool in_child) {
    for (TransferQueue* queue : queues) {
      // The threads that wait in the parent are not here, and would be waited for by destructors.
      if (in_child) {
        queue->blocks_ = true;
        static_cast<void>(queue->thread_.release());
        static_cast<void>(queue->signals_.release());
        queue->signals_ = std::make_unique<Signals>();
      }
      queue->mutex_.unlock();
    }
    mutex.unlock();
  }

  std::mutex mutex;
  std::vector<TransferQueue*> queues;
};

// ------------------------------------------------------------------------------------------------
// the caller's side

TransferQueue::TransferQueue(std::shared_ptr<PageStore> store) : store_(std::move(store)) {
  ForkHandlers::instance().add(this);
}

TransferQueue::~TransferQueue() {
  ForkHandlers::instance().remove(this);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  signals_->work.notify_all();
  if (thread_ != nullptr) thread_->join();
}

TransferQueue::Ticket TransferQueue::write(const void* data, int64_t bytes) {
  return submit({Transfer::Kind::kWrite, const_cast<void*>(data), bytes, false, nullptr});
}

TransferQueue::Ticket TransferQueue::read(int64_t slot, void* data) {
  return submit({Transfer::Kind::kRead, data, slot, false, nullptr});
}

void TransferQueue::release(int64_t slot) {
  submit({Transfer::Kind::kRelease, nullptr, slot, false, nullptr});
}

TransferQueue::Ticket TransferQueue::submit(Transfer transfer) {
  auto ticket = std::make_shared<Transfer>(std::move(transfer));
  std::unique_lock lock(mutex_);
  if (thread_ == nullptr && !blocks_) startThread();
  if (blocks_) {
    waitUntilIdle(lock);
    carryOut(*ticket);
    ticket->is_done = true;
    return ticket;
  }
  waiting_.push_back(ticket);
  lock.unlock();
  signals_->work.notify_one();
  return ticket;
}

int64_t TransferQueue::wait(const Ticket& ticket) {
  std::unique_lock lock(mutex_);
  signals_->done.wait(lock, [&] { return ticket->is_done; });
  if (ticket->error) std::rethrow_exception(ticket->error);
  return ticket->number;
}

bool TransferQueue::isDone(const Ticket& ticket) const {
  const std::lock_guard lock(mutex_);
  return ticket->is_done;
}

void TransferQueue::reserve(int64_t bytes) {
  std::unique_lock lock(mutex_);
  waitUntilIdle(lock);
  store_->reserve(bytes);
}

StoreCounters TransferQueue::counters() {
  std::unique_lock lock(mutex_);
  waitUntilIdle(lock);
  return store_->counters();
}

void TransferQueue::waitUntilIdle(std::unique_lock<std::mutex>& lock) {
  signals_->done.wait(lock, [&] { return waiting_.empty() && !busy_; });
}

// ------------------------------------------------------------------------------------------------
// the thread

void TransferQueue::startThread() {
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);  // the new thread inherits it
  try {
    thread_ = std::make_unique<std::thread>([this] { work(); });
    ::pthread_setname_np(thread_->native_handle(), "poet-pager");
  } catch (const std::system_error&) {
    blocks_ = true;
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void TransferQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    signals_->work.wait(lock, [&] { return !waiting_.empty() || ends_; });
    if (waiting_.empty()) return;
    const Ticket ticket = std::move(waiting_.front());
    waiting_.pop_front();
    busy_ = true;
    lock.unlock();
    carryOut(*ticket);
    lock.lock();
    ticket->is_done = true;
    busy_ = false;
    signals_->done.notify_all();
  }
}

// `error` and `number` are nobody else's before is_done.
void TransferQueue::carryOut(Transfer& transfer) {
  try {
    switch (transfer.kind) {
      case Transfer::Kind::kWrite:
        transfer.number = store_->write(transfer.data, transfer.number);
        break;
      case Transfer::Kind::kRead:
        store_->read(transfer.number, transfer.data);
        break;
      case Transfer::Kind::kRelease:
        store_->release(transfer.number);
        break;
    }
  } catch (...) {
    transfer.error = std::current_exception();
  }
}

}  // namespace poet
