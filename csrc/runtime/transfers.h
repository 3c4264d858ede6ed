// Transfers: what moves values to a store and back beside the step, for the pager.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "graph/export.h"
#include "store/page_store.h"

namespace poet {

// Begins transfers, which go on beside the caller in the order in which they were asked for, and
// waits for them. Not thread-safe: the session serializes.
class Transfers {
 public:
  using Ticket = std::shared_ptr<void>;

  virtual ~Transfers() = default;
  // The memory is the caller's, and must stay, unchanged, until wait() has returned or thrown.
  virtual Ticket write(void* data, int64_t bytes) = 0;
  virtual Ticket read(int64_t slot, void* data) = 0;
  // Returns the slot when whatever the caller does from here on comes after the transfer. Throws
  // the StoreError that ended it.
  virtual int64_t wait(const Ticket& ticket) = 0;
  // As if it had not been asked for, as far as that goes. After it the memory of a read is left
  // alone, whatever the caller does with it from here on.
  virtual void cancel(const Ticket& ticket) = 0;
  virtual void release(int64_t slot) = 0;
  // Throws StoreError where there is no room for so many bytes more, if that can be known.
  virtual void reserve(int64_t bytes) = 0;
  virtual StoreCounters counters() = 0;
  virtual int64_t bufferBytes() const { return 0; }  // that it has for transfers
};

// To an unnamed file, on a thread: TransferQueue.
std::unique_ptr<Transfers> transfersToFile(std::shared_ptr<PageStore> store);

// Note [Pinned memory of the host]
// An accelerator's store is memory of the host that the device reads and writes by itself. Copies
// run on two streams of their own, one each way, and events say what waits for what:
// - a copy out begins when what the step's stream has been given so far is done, and a copy in
//   likewise (its memory may have been another value's a moment ago), and after the slot was
//   written;
// - wait() keeps nobody but the step's stream waiting. The memory is given back to the allocator
//   after it, in that stream's order; so whoever gets it next on this stream comes after the copy,
//   and recordStream() is not needed;
// - the pinned block of a slot goes back to PyTorch's allocator for such memory, which keeps it
//   until the copies that it was used by are done.
// A session runs its ops on one stream (Note [Steps on an accelerator]), and so it is the same at
// all of these calls.
std::unique_ptr<Transfers> transfersToHost(c10::Device device);

// What was measured of these, in a few dozen milliseconds. Throws what PyTorch throws.
POET_API StoreSpeed measureTransfersToHost(c10::Device device);

}  // namespace poet
