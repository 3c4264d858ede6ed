// TransferQueue: a PageStore's transfers beside the caller, in the order in which they were asked
// for. No torch header.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

#include "graph/export.h"
#include "store/page_store.h"

namespace poet {

// One thread, started with the first transfer, that does nothing while there is nothing to do. The
// caller's signals never reach it. Thread-safe.
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

  // As PageStore, after the transfers that were asked for before.
  void release(int64_t slot);
  void reserve(int64_t bytes);
  StoreCounters counters();

 private:
  struct ForkHandlers;
  struct Signals {
    std::condition_variable work;
    std::condition_variable done;
  };

  Ticket submit(Transfer transfer);
  void startThread();
  void work();
  void carryOut(Transfer& transfer);
  void waitUntilIdle(std::unique_lock<std::mutex>& lock);

  const std::shared_ptr<PageStore> store_;
  mutable std::mutex mutex_;  // of all below
  std::unique_ptr<Signals> signals_ = std::make_unique<Signals>();
  std::deque<Ticket> waiting_;
  bool busy_ = false;  // with a transfer that has left `waiting_`
  bool ends_ = false;
  bool blocks_ = false;  // no thread could be started, or this is a fork of the process that had it
  std::unique_ptr<std::thread> thread_;
};

}  // namespace poet
