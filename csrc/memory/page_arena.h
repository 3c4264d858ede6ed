// PageArena: memory for large blocks, whose resident pages never exceed the most that was in use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "graph/export.h"
#include "memory/block_script.h"
#include "memory/page_map.h"

namespace poet {

// On which side of a boundary a block is to lie, if there is a place. The boundary is a number of
// bytes from the beginning of the arena.
struct ArenaSide {
  enum class End : uint8_t { kAny, kLow, kHigh };
  End end = End::kAny;
  size_t boundary_bytes = 0;
};

// Note [Resident memory follows the plan]
// A C library keeps most of what is freed: a heap full of holes stays resident, although a plan has
// evicted what was there. Unmapping every freed block at once is exact, but each new block then
// comes with fresh pages. The arena does neither. A freed
// block's pages stay for the next block, as long as the pages in use and the free ones together are
// no more than the most that has been in use at once (since restart()): that much the process needs
// anyway. Where a new block would exceed it, free pages from elsewhere move to the block's place:
// the kernel files them under other addresses (mremap), which costs far less than giving them back
// and taking fresh ones, which it has to clear. What cannot move goes back. So the resident set's
// high-water mark is that of the blocks in use, and fragmentation costs next to nothing.
//
// Blocks begin and end at pages; free neighbours merge. A block goes where its script wants it
// (block_script.h), else where most of its pages are resident already, of those places into the
// smallest. Whoever asks may name a side (ArenaSide): of its places the same one, and where it has
// none, one of all.
//
// What has no pages need not be writable; but to say so, and to take it back, are calls of the
// kernel that take as long as a move. So places keep the right to pages they had once, where nobody
// counts it: under RLIMIT_DATA, and where the kernel promises no more memory than there is, what
// has no pages is not writable.
//
// Thread-safe, and usable in a child after fork().
class POET_API PageArena {
 public:
  struct Counters {
    int64_t in_use_bytes = 0;    // of blocks, in whole pages
    int64_t resident_bytes = 0;  // these and free pages
    int64_t most_in_use = 0;     // since restart(), or what that began at
    int64_t peak_in_use = 0;     // since restart()
    int64_t most_resident = 0;   // since restart()
    int64_t moved_bytes = 0;     // free pages that another place got, in all
    int64_t returned_bytes = 0;  // free pages that went back to the system, in all
    int64_t fresh_bytes = 0;     // pages that came from it, in all
  };

  // Reserves address space, which costs no memory; less than `bytes` where the process may not have
  // so much (a quarter of what RLIMIT_AS leaves it), none where that is very little.
  explicit PageArena(size_t bytes);
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  // Uninitialised memory, aligned to 64 bytes at least. Null where the address space is used up or
  // the system gives no memory: the caller has another allocator then. `script`: of the step that
  // asks, between beginScript() and endScript(). `side`: of what no script places.
  void* allocate(size_t bytes, BlockScript* script = nullptr, ArenaSide side = {});
  // Of a block that this arena gave; any thread.
  void release(void* block);
  bool owns(const void* block) const {
    const auto address = reinterpret_cast<uintptr_t>(block);
    return address - base_ < reserved_;
  }

  void beginScript(const std::shared_ptr<BlockScript>& script);
  void endScript(const std::shared_ptr<BlockScript>& script);
  int64_t bytesOf(const BlockScript& script) const;  // another thread may release its blocks

  // Free bytes between the pages of two blocks in use, the latter at the higher address; -1 where
  // another block lies between them, or one of the two is not of this arena.
  int64_t gapBetween(const void* block, const void* next) const;

  // From here on the most in use counts anew, beginning at `bytes` where less is in use now. Free
  // pages that are too many then go back.
  void restart(int64_t bytes = 0);
  Counters counters() const;

  // Around fork(), in the parent's thread that forks.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Free {
    Page begin = 0;
    Page end = 0;
    Page resident = 0;
  };
  struct Place {
    size_t block = 0;
    Page begin = 0;
    Page fresh = 0;
  };

  bool findPlace(Page pages, PageRun within, Place& place) const;
  bool findPlace(Page pages, ArenaSide side, Place& place) const;
  bool placeAt(Page begin, Page pages, Place& place) const;
  bool placeBehind(Page begin, Page pages, Place& place) const;
  std::vector<PageRun> blocksInUse() const;
  bool makeResident(Page begin, Page end);
  void insertFree(Page begin, Page end);
  Page moveIn(PageRun place, Page pages);
  bool move(PageRun run, Page to);
  bool drop(PageRun run);
  bool unmap(PageRun run);
  bool keepsRights(PageRun run) const;
  void findWhetherRightsCount();
  void giveRightsBack();
  std::vector<Free>::iterator mostResident();
  void giveBack(Page pages);
  Page giveBack(Free& block, Page pages);
  void* addressOf(Page page) const;

  mutable std::mutex mutex_;
  uintptr_t base_ = 0;
  size_t reserved_ = 0;
  std::vector<Free> free_;         // by address; the last one is what was never used
  std::vector<Page> block_pages_;  // of a block in use, at its first page
  std::vector<std::shared_ptr<BlockScript>> learning_;
  PageMap map_;
  bool can_move_ = true;
  bool rights_count_ = true;  // what is writable counts, with or without pages
  int64_t in_use_ = 0;
  int64_t num_resident_ = 0;
  int64_t most_in_use_ = 0;
  int64_t peak_in_use_ = 0;
  int64_t most_resident_ = 0;
  int64_t moved_ = 0;
  int64_t returned_ = 0;
  int64_t fresh_ = 0;
  uint32_t colour_ = 0;
};

}  // namespace poet
