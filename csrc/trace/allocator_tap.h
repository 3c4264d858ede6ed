// Counts the bytes that live in PyTorch's CPU allocator, so that the workspace inside an op can be
// measured.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>

#include "graph/export.h"

namespace poet {

// Note [Tapping the allocator]
// The profiler's slot in the thread-local debug info must not be shadowed (the profiler
// static_casts what it finds there), so the tap wraps the CPU allocator itself. A block that was
// allocated while the tap was in keeps the tap's deleter for life, so counting stays right after
// the tap was taken out. Blocks from before are not counted at all. Thread-safe.
class POET_API AllocatorTap {
 public:
  // Puts the tap in for the guard's lifetime; guards nest and may overlap on several threads.
  class POET_API Guard {
   public:
    Guard();
    ~Guard();
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;
  };

  static int64_t liveBytes();  // of the blocks that were allocated under the tap
  // Starts a new high-water mark at the live bytes; returns them.
  static int64_t resetHighWater();
  static int64_t highWaterBytes();

  // Whether poet may release the storage's data: it came from PyTorch's CPU allocator, tapped or
  // not, nobody asked to keep it, and no NumPy array shares it. PyTorch makes a storage that it
  // shares with NumPy one that cannot be resized, for good, however long ago that was.
  static bool mayRelease(const c10::StorageImpl& storage);
};

}  // namespace poet
