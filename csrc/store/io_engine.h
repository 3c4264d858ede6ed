// IoEngine: what carries out system calls on the page file beside its caller. Internal to the
// store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "store/io_hooks.h"

namespace poet::store {

// One attempt to read or write whole blocks. The memory is the caller's, and must stay until the
// engine has given the request back.
struct IoRequest {
  Transfer kind = Transfer::kRead;
  int fd = -1;
  // Past the page cache by O_DIRECT. Without it what was written is forced to the disk, and the
  // pages are dropped.
  bool direct = true;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  int64_t offset = 0;

  StoreFault fault = StoreFault::kNone;  // that strikes it; drawn by submit(), in order
  int64_t answer = 0;                    // bytes that were transferred, or -errno
};

// Carries the request out, on this thread, faults included.
int64_t carryOut(const IoRequest& request);

// How requests are carried out. kBest: the first of the others that works here; a file without
// O_DIRECT takes no ring.
enum class IoPath { kBest, kRing, kThreads, kBlocking };

// Requests may be given back in another order than they were submitted in. Not thread-safe: one
// thread at a time submits and takes. Nothing may be under way when it is destroyed or forked; a
// fork must not touch it, not even destroy it.
class IoEngine {
 public:
  virtual ~IoEngine() = default;

  // Draws the request's fault and begins it.
  void submit(IoRequest* request);
  // One that is over; null where none is. `waits`: blocks until one is, asleep. Whoever waits has
  // something under way.
  virtual IoRequest* take(bool waits) = 0;
  virtual IoPath path() const = 0;

 protected:
  virtual void begin(IoRequest* request) = 0;
};

// `depth`: how many requests may be under way at once. Null where this path does not work here;
// kBest and kBlocking always do.
std::unique_ptr<IoEngine> openEngine(IoPath path, bool direct, int depth);

}  // namespace poet::store
