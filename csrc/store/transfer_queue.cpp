#include "store/transfer_queue.h"

#include <pthread.h>

#include <algorithm>
#include <utility>

#include "store/masked_thread.h"

namespace poet {

struct TransferQueue::Transfer {
  enum class Kind { kWrite, kRead, kRelease };
  Transfer(Kind what, void* memory, int64_t bytes_or_slot)
      : kind(what), data(memory), number(bytes_or_slot) {}

  const Kind kind;
  void* const data;
  const int64_t number;   // bytes of a write, else the slot
  PageTransfer transfer;  // the thread's until is_done, but for is_cancelled
  bool is_done = false;
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
  return submit(std::make_shared<Transfer>(Transfer::Kind::kWrite, const_cast<void*>(data), bytes));
}

TransferQueue::Ticket TransferQueue::read(int64_t slot, void* data) {
  return submit(std::make_shared<Transfer>(Transfer::Kind::kRead, data, slot));
}

void TransferQueue::release(int64_t slot) {
  submit(std::make_shared<Transfer>(Transfer::Kind::kRelease, nullptr, slot));
}

TransferQueue::Ticket TransferQueue::submit(Ticket ticket) {
  std::unique_lock lock(mutex_);
  if (thread_ == nullptr && !blocks_) startThread();
  if (blocks_) {
    waitUntilIdle(lock);
    for (goOn(ticket.get()); !ticket->transfer.is_over;) goOn(nullptr);
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
  if (ticket->transfer.error) std::rethrow_exception(ticket->transfer.error);
  return ticket->transfer.slot;
}

void TransferQueue::cancel(const Ticket& ticket) {
  const auto cancelled = std::make_exception_ptr(StoreError("poet: the transfer was cancelled"));
  PageTransfer& transfer = ticket->transfer;
  std::unique_lock lock(mutex_);
  if (std::erase(waiting_, ticket) > 0) {
    transfer.error = cancelled;
    ticket->is_done = true;
    signals_->done.notify_all();
    return;
  }
  transfer.is_cancelled = true;
  signals_->done.wait(lock, [&] { return ticket->is_done; });
  if (ticket->kind != Transfer::Kind::kWrite || transfer.error) return;
  transfer.error = cancelled;
  lock.unlock();
  release(transfer.slot);
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

int64_t TransferQueue::bufferBytes() const {
  std::unique_lock lock(mutex_);
  waitUntilIdle(lock);
  return store_->bufferBytes();
}

void TransferQueue::waitUntilIdle(std::unique_lock<std::mutex>& lock) const {
  signals_->done.wait(lock, [&] { return waiting_.empty() && under_way_.empty(); });
}

// ------------------------------------------------------------------------------------------------
// the thread

void TransferQueue::startThread() {
  thread_ = store::startMaskedThread("poet-pager", [this] { work(); });
  blocks_ = thread_ == nullptr;
}

void TransferQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    signals_->work.wait(lock, [&] { return !waiting_.empty() || !under_way_.empty() || ends_; });
    if (waiting_.empty() && under_way_.empty()) return;
    Ticket next;
    if (!waiting_.empty() && (under_way_.empty() || store_->takesMore())) {
      next = std::move(waiting_.front());
      waiting_.pop_front();
      under_way_.push_back(next);
    }
    lock.unlock();
    goOn(next.get());
    lock.lock();
    noteWhatIsOver();
  }
}

void TransferQueue::goOn(Transfer* transfer) {
  if (transfer == nullptr) return store_->advance();
  switch (transfer->kind) {
    case Transfer::Kind::kWrite:
      return store_->beginWrite(transfer->data, transfer->number, transfer->transfer);
    case Transfer::Kind::kRead:
      return store_->beginRead(transfer->number, transfer->data, transfer->transfer);
    case Transfer::Kind::kRelease:
      try {
        store_->release(transfer->number);
      } catch (...) {
        transfer->transfer.error = std::current_exception();
      }
      transfer->transfer.is_over = true;
  }
}

void TransferQueue::noteWhatIsOver() {
  const auto over = std::erase_if(under_way_, [](const Ticket& ticket) {
    ticket->is_done = ticket->transfer.is_over;
    return ticket->is_done;
  });
  if (over > 0) signals_->done.notify_all();
}

}  // namespace poet
