// TransferQueue: a PageStore's transfers beside the caller. No torch header.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "graph/export.h"
#include "store/page_store.h"

namespace poet {

// One thread, started with the first transfer, that sleeps while there is nothing to do. It begins
// the transfers in the order in which they were asked for, as many at once as the store takes; they
// may be over in another order. The caller's signals never reach it. Thread-safe.
//
// Note [Forks]
// A fork waits until no transfer is under way. The child has no such thread: its transfers block,
// and PageStore says what a child may do at all.
class POET_API TransferQueue {
 public:
  struct Transfer;
  using Ticket = std::shared_ptr<Transfer>;

  explicit TransferQueue(std::shared_ptr<PageStore> store);
  // Ends when all transfers have.
  ~TransferQueue();
  TransferQueue(const TransferQueue&) = delete;
  TransferQueue& operator=(const TransferQueue&) = delete;

  // Begin a transfer. The memory is the caller's, and must stay, unchanged, until wait() or
  // isDone() says that it is over. Throw nothing but what memory for the ticket throws.
  Ticket write(const void* data, int64_t bytes);
  Ticket read(int64_t slot, void* data);
  // Blocks until it is over; returns the slot. Throws the StoreError that ended it, each time that
  // it is asked.
  int64_t wait(const Ticket& ticket);
  bool isDone(const Ticket& ticket) const;

  // As if it had not been asked for: what has not begun never will, a read ends as soon as its
  // memory is left alone, and a write that is already over is released. Blocks until then. Whoever
  // waits for it gets a StoreError, unless it is a read that was over before.
  void cancel(const Ticket& ticket);

  // As PageStore, after the transfers that were asked for before.
  void release(int64_t slot);
  void reserve(int64_t bytes);
  StoreCounters counters();
  int64_t bufferBytes() const;

 private:
  struct ForkHandlers;
  struct Signals {
    std::condition_variable work;
    std::condition_variable done;
  };

  Ticket submit(Ticket ticket);
  void startThread();
  void work();
  // Begins the transfer, or, without one, goes on with those under way. Without the lock.
  void goOn(Transfer* transfer);
  void noteWhatIsOver();
  void waitUntilIdle(std::unique_lock<std::mutex>& lock) const;

  const std::shared_ptr<PageStore> store_;
  mutable std::mutex mutex_;  // of all below
  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();
  std::deque<Ticket> waiting_;
  std::vector<Ticket> under_way_;
  bool ends_ = false;
  bool blocks_ = false;  // no thread could be started, or this is a fork of the process that had it
  std::unique_ptr<std::thread> thread_;
};

}  // namespace poet
