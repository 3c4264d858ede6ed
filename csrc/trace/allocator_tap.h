// What poet puts in place of PyTorch's CPU allocator while steps run: a count of the bytes that
// live, so that the workspace inside an op can be measured, and an arena for large blocks.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "graph/export.h"
#include "memory/page_arena.h"

namespace poet {

// Asked for room before memory is taken. May free what it likes, but for the memory that the
// running kernel works on; whatever it throws comes out of the allocation.
class RoomMaker {
 public:
  virtual ~RoomMaker() = default;
  virtual void makeRoom(int64_t bytes) = 0;
};

// Asked before a thread takes memory, once room was made for it.
class RoomLimit {
 public:
  virtual ~RoomLimit() = default;
  // `live`: AllocatorTap::liveBytes(), less what other threads have taken since the limit came into
  // force and not given back. Whatever it throws comes out of the allocation, which takes nothing.
  virtual void admit(int64_t bytes, int64_t live) = 0;
};

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

  // Asks `maker` (null: nobody) before each allocation on this thread, for the guard's lifetime.
  class POET_API RoomGuard {
   public:
    explicit RoomGuard(RoomMaker* maker);
    ~RoomGuard();
    RoomGuard(const RoomGuard&) = delete;
    RoomGuard& operator=(const RoomGuard&) = delete;

   private:
    RoomMaker* before_;
  };

  // Asks `limit` before each allocation on this thread, for the guard's lifetime, which ends on
  // this thread. One at a time; the tap must be in meanwhile.
  class POET_API LimitGuard {
   public:
    explicit LimitGuard(RoomLimit& limit);
    ~LimitGuard();
    LimitGuard(const LimitGuard&) = delete;
    LimitGuard& operator=(const LimitGuard&) = delete;
  };

  // What this thread takes and gives back under the guard leaves the high-water mark alone: it is
  // not the program's doing. The live bytes follow it all the same.
  class POET_API HiddenGuard {
   public:
    HiddenGuard();
    ~HiddenGuard();
    HiddenGuard(const HiddenGuard&) = delete;
    HiddenGuard& operator=(const HiddenGuard&) = delete;

   private:
    bool before_;
  };

  // Keeps a block's bytes when its owner gives them back, until the hold ends. Nobody's reference
  // count tells of it, so what PyTorch decides by those stays as it was. Movable.
  class POET_API BlockHold {
   public:
    BlockHold() = default;
    BlockHold(BlockHold&& other) noexcept;
    BlockHold& operator=(BlockHold&& other) noexcept;
    ~BlockHold();
    // Empty where the tap does not know the block.
    static BlockHold of(void* block);
    explicit operator bool() const { return block_ != nullptr; }
    void* block() const { return block_; }

   private:
    void* block_ = nullptr;
  };

  // A block that this thread took, or (bytes < 0) gave back, whatever it was.
  struct BlockEvent {
    const void* block;
    int64_t bytes;
  };
  // Whether this thread keeps a log of them while the tap is in; starts an empty one. What is
  // hidden is not in it. A log of more than 2^16 events ends by itself: nobody reads it.
  static void logBlocks(bool on);
  // This thread's log since the last call, in order; `events` is overwritten.
  static void readLog(std::vector<BlockEvent>& events);

  // Hears of memory that is given back, on whatever thread, hidden or not, while it lives: of
  // blocks that were allocated under a tap or enrolled, and of those that are watched.
  class POET_API FreedLog {
   public:
    FreedLog();
    ~FreedLog();
    FreedLog(const FreedLog&) = delete;
    FreedLog& operator=(const FreedLog&) = delete;
    // From here on every log hears of the storage's memory, and nothing else changes for it.
    // Returns its block; null where nobody can tell: there is none, or it is not PyTorch's.
    static const void* watch(c10::StorageImpl& storage);
    // Blocks given back since the last call; `blocks` is overwritten.
    void take(std::vector<const void*>& blocks);

   private:
    std::vector<const void*> freed_;
  };

  // From here on a block from before the tap counts, too, and what resize_() puts in its place. No
  // effect on memory that is not the CPU allocator's.
  static void enroll(c10::StorageImpl& storage);
  // Lets the high-water mark start at what really lives.
  static void forgetHidden();

  static int64_t liveBytes();  // of the blocks that were allocated under the tap, or enrolled
  static void resetMostLive();
  static int64_t mostLiveBytes();  // since then; whatever is hidden counts
  // Live bytes, as if nothing hidden had happened.
  static int64_t shownBytes();
  // Starts a new high-water mark at the shown bytes; returns them.
  static int64_t resetHighWater();
  static int64_t highWaterBytes();

  // Whether poet may release the storage's data: it came from PyTorch's allocator, tapped or
  // not, nobody asked to keep it, and no NumPy array shares it. PyTorch makes a storage that it
  // shares with NumPy one that cannot be resized, for good, however long ago that was.
  static bool mayRelease(const c10::StorageImpl& storage);
  // A file was just read into it. PyTorch's reader, too, makes storages that cannot be resized:
  // this one can be from here on, until NumPy shares it. No effect on memory that is mapped, or
  // otherwise not the CPU allocator's, nor on what NumPy shares already.
  static void noteLoaded(c10::StorageImpl& storage);
  // And no op on another thread uses it at the moment. See Note [Storages in use].
  static bool mayReleaseNow(const c10::StorageImpl& storage);
  // Whether the data came from PyTorch's allocator for its device.
  static bool isFromAllocator(const c10::StorageImpl& storage);
  // Whether code that no operator tells of may write its memory: it is NumPy's or another
  // library's, NumPy shares it, or it was handed out (KeptStorages::addShared). Not what processes
  // share: a batch that a DataLoader's worker has sent.
  static bool isShared(const c10::StorageImpl& storage);
};

// Large blocks of PyTorch's CPU allocator come from one PageArena of the process, once somebody has
// asked for it: see Note [Resident memory follows the plan]. The profiler hears of them as of all
// others. Not only within steps: what runs between them (an evaluation) then uses the same free
// pages. POET_ARENA=0 in the environment leaves everything to malloc. Thread-safe.
class POET_API StepArena {
 public:
  static constexpr size_t kLeastBytes = 64 * 1024;  // of a block: less, and rounding would show

  static void useForGood();
  // As PageArena::restart; `trim_malloc`: the C library gives its free pages back too.
  static void restart(int64_t bytes, bool trim_malloc);
  static PageArena::Counters counters();
  // What this thread asks for while it lives belongs to a step of the script: Note [Steps that ask
  // for the same blocks].
  class POET_API ScriptGuard {
   public:
    explicit ScriptGuard(std::shared_ptr<BlockScript> script);
    ~ScriptGuard();
    ScriptGuard(const ScriptGuard&) = delete;
    ScriptGuard& operator=(const ScriptGuard&) = delete;

   private:
    const std::shared_ptr<BlockScript> script_;
    BlockScript* const before_;  // of a step around this one
  };
  // What this thread asks for while it lives lies on that side, if a place is there.
  class POET_API SideGuard {
   public:
    explicit SideGuard(ArenaSide side);
    ~SideGuard();
    SideGuard(const SideGuard&) = delete;
    SideGuard& operator=(const SideGuard&) = delete;

   private:
    const ArenaSide before_;
  };
  static int64_t bytesOf(const BlockScript& script);  // that it takes itself
  // In all blocks, large and small, that PyTorch's allocator has given out since useForGood(), or
  // that are enrolled, with what the arena and malloc add to each; and whatever noteMadeElsewhere()
  // was told of: nobody knows when that goes.
  static int64_t bytesInUse();
  // Somebody has made a storage with PyTorch's own allocator, behind poet's back.
  static void noteMadeElsewhere(int64_t bytes);
  static int64_t bytesMadeElsewhere();  // all that it was told of
  // As PageArena::gapBetween.
  static int64_t gapBetween(const void* block, const void* next);
};

}  // namespace poet
