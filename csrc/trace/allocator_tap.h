// What poet puts in place of PyTorch's CPU allocator while steps run: a count of the bytes that
// live, so that the workspace inside an op can be measured, and an arena for large blocks.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>

#include "graph/export.h"
#include "memory/page_arena.h"

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

// Large blocks of PyTorch's CPU allocator come from one PageArena of the process, once somebody has
// asked for it: see Note [Resident memory follows the plan]. The profiler hears of them as of all
// others. Not only within steps: what runs between them (an evaluation) then uses the same free
// pages. POET_ARENA=0 in the environment leaves everything to malloc. Thread-safe.
class POET_API StepArena {
 public:
  static constexpr size_t kLeastBytes = 64 * 1024;  // of a block: less, and rounding would show

  static void useForGood();
  // As PageArena::restart; without bytes the C library gives its free pages back too.
  static void restart(int64_t bytes = 0);
  static PageArena::Counters counters();
};

}  // namespace poet
