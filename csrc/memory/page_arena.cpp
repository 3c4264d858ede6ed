#include "memory/page_arena.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <optional>
#include <utility>

namespace poet {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLeastReserve = size_t{1} << 28;
// Blocks that all begin at a page's first byte would compete for the same cache sets.
constexpr size_t kColourBytes = 320;
constexpr uint32_t kColours = 8;
// The two calls of a move are worth it for a few pages and more; not tuned.
constexpr Page kLeastMoved = 8;
// Of the pieces that may fill a hole, so many are looked at, and of each no more than so many times
// the hole: a free gigabyte is not read page by page for a small block.
constexpr int kMostPieces = 64;
constexpr Page kLongestPiece = 4;
// A process may have 65,530 mappings; some are for others.
constexpr int64_t kMostMappings = 16384;
// From here on pages that were moved leave places behind that are mapped anew: these merge.
constexpr int64_t kManyMappings = 4096;

// Of the address space that a limit (RLIMIT_AS) leaves the process: the rest is for stacks,
// libraries and what others allocate.
constexpr size_t kPartOfLimit = 4;

size_t addressSpaceLeft() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return SIZE_MAX;
  size_t used_pages = 0;
  std::ifstream("/proc/self/statm") >> used_pages;
  const size_t used = used_pages * kPageBytes;
  return limit.rlim_cur > used ? limit.rlim_cur - used : 0;
}

// Whether the kernel counts all memory that a process may write to against what there is.
bool promisesOnlyWhatThereIs() {
  int mode = 0;
  std::ifstream("/proc/sys/vm/overcommit_memory") >> mode;
  return mode == 2;
}

// Address space without memory, and without the right to it.
void* reserve(void* at, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
  void* const space = ::mmap(at, bytes, PROT_NONE, flags, -1, 0);
#ifdef MADV_NOHUGEPAGE
  // A huge page is resident as a whole.
  if (space != MAP_FAILED) ::madvise(space, bytes, MADV_NOHUGEPAGE);
#endif
  return space;
}

}  // namespace

PageArena::PageArena(size_t bytes) {
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes)) return;  // a system of larger pages
  findWhetherRightsCount();
  bytes = std::min(bytes, addressSpaceLeft() / kPartOfLimit / kPageBytes * kPageBytes);
  for (; bytes >= kLeastReserve; bytes /= 2) {
    void* const space = reserve(nullptr, bytes);
    if (space == MAP_FAILED) continue;
    base_ = reinterpret_cast<uintptr_t>(space);
    reserved_ = bytes;
    free_.push_back({0, static_cast<Page>(std::min<size_t>(bytes / kPageBytes, UINT32_MAX)), 0});
    return;
  }
}

PageArena::~PageArena() {
  if (reserved_ > 0) ::munmap(reinterpret_cast<void*>(base_), reserved_);
}

void* PageArena::addressOf(Page page) const {
  return reinterpret_cast<void*>(base_ + size_t{page} * kPageBytes);
}

// ------------------------------------------------------------------------------------------------
// pages

void PageArena::findWhetherRightsCount() {
  static const bool always = promisesOnlyWhatThereIs();
  rlimit limit{};
  rights_count_ =
      always || ::getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
}

// Whether the place keeps its mapping when its pages go.
bool PageArena::keepsRights(PageRun run) const {
  return !rights_count_ && (map_.numMappings() < kManyMappings || map_.isHome(run));
}

bool PageArena::unmap(PageRun run) {
  if (reserve(addressOf(run.begin), size_t{run.size()} * kPageBytes) == MAP_FAILED) return false;
  map_.setHome(run);
  return true;
}

bool PageArena::makeResident(Page begin, Page end) {
  bool done = true;
  Page fresh = 0;
  map_.forEachRun(begin, end, false, [&](PageRun run) {
    const size_t bytes = size_t{run.size()} * kPageBytes;
    if (!map_.isWritable(run)) {
      done = ::mprotect(addressOf(run.begin), bytes, PROT_READ | PROT_WRITE) == 0;
      if (!done) return false;
      map_.setWritable(run, true);
    }
#ifdef MADV_POPULATE_WRITE
    ::madvise(addressOf(run.begin), bytes, MADV_POPULATE_WRITE);  // in one go; else fault by fault
#endif
    map_.setResident(run, true);
    fresh += run.size();
    return true;
  });
  num_resident_ += fresh;
  fresh_ += fresh;
  return done;
}

// The pages of a piece, to a place without pages. What they leave has none.
bool PageArena::move(PageRun run, Page to) {
#ifdef MREMAP_DONTUNMAP
  const size_t bytes = size_t{run.size()} * kPageBytes;
  void* const from = addressOf(run.begin);
  const int flags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (::mremap(from, bytes, bytes, flags, addressOf(to)) == MAP_FAILED) {
    if (errno == EINVAL) can_move_ = false;  // a system that does not know how
    return false;
  }
  map_.move(run, to);
  moved_ += run.size();
  // Where it cannot be unmapped it is a free place all the same.
  if (!keepsRights(run)) unmap(run);
  return true;
#else
  return false;
#endif
}

// Fills holes of a place that is nobody's with up to `pages` free pages; how many it were.
Page PageArena::moveIn(PageRun place, Page pages) {
  std::vector<PageRun> holes;
  map_.forEachRun(place.begin, place.end, false, [&](PageRun hole) {
    holes.push_back(hole);
    return true;
  });
  Page moved = 0;
  auto hole = holes.begin();
  while (can_move_ && hole != holes.end() && map_.numMappings() < kMostMappings) {
    const auto donor = mostResident();
    if (donor == free_.end()) break;
    const Page wanted = std::min(hole->size(), pages - moved);
    if (wanted < kLeastMoved) {
      if (pages - moved < kLeastMoved) break;
      ++hole;
      continue;
    }
    // The shortest piece that is long enough, else the longest.
    PageRun piece;
    int looked_at = 0;
    map_.forEachPiece(donor->begin, donor->end, kLongestPiece * wanted, [&](PageRun other) {
      const bool fits = other.size() >= wanted, fitted = piece.size() >= wanted;
      if (fits != fitted ? fits : (other.size() < piece.size()) == fits) piece = other;
      return piece.size() != wanted && ++looked_at < kMostPieces;
    });
    const Page taken = std::min(wanted, piece.size());
    if (taken < kLeastMoved || !move({piece.end - taken, piece.end}, hole->begin)) break;
    donor->resident -= taken;
    hole->begin += taken;
    moved += taken;
  }
  return moved;
}

std::vector<PageArena::Free>::iterator PageArena::mostResident() {
  const auto most = std::max_element(free_.begin(), free_.end(), [](const Free& a, const Free& b) {
    return a.resident < b.resident;
  });
  return most == free_.end() || most->resident == 0 ? free_.end() : most;
}

// Where there are too many mappings already it keeps its own: it makes none more.
bool PageArena::drop(PageRun run) {
  if (!keepsRights(run) && map_.numMappings() < kMostMappings) return unmap(run);
  const size_t bytes = size_t{run.size()} * kPageBytes;
  if (::madvise(addressOf(run.begin), bytes, MADV_DONTNEED) != 0) return false;
  map_.setResident(run, false);
  return true;
}

// Gives back up to `pages` of the block's resident pages, the last ones first.
Page PageArena::giveBack(Free& block, Page pages) {
  std::vector<PageRun> runs;
  map_.forEachRun(block.begin, block.end, true, [&](PageRun run) {
    runs.push_back(run);
    return true;
  });
  Page given = 0;
  for (auto run = runs.rbegin(); run != runs.rend() && given < pages; ++run) {
    const Page take = std::min(run->size(), pages - given);
    const PageRun last{run->end - take, run->end};
    if (!drop(last)) break;
    given += take;
  }
  block.resident -= given;
  num_resident_ -= given;
  returned_ += given;
  return given;
}

void PageArena::giveBack(Page pages) {
  while (pages > 0) {
    const auto donor = mostResident();
    if (donor == free_.end()) return;
    const Page given = giveBack(*donor, pages);
    if (given == 0) return;
    pages -= given;
  }
}

// ------------------------------------------------------------------------------------------------
// blocks

bool PageArena::findPlace(Page pages, ArenaSide side, Place& place) const {
  const PageRun all{0, free_.empty() ? 0 : free_.back().end};
  if (side.end != ArenaSide::End::kAny) {
    const auto boundary =
        static_cast<Page>(std::min<size_t>(side.boundary_bytes / kPageBytes, all.end));
    const bool is_low = side.end == ArenaSide::End::kLow;
    if (findPlace(pages, is_low ? PageRun{0, boundary} : PageRun{boundary, all.end}, place))
      return true;
  }
  return findPlace(pages, all, place);
}

bool PageArena::findPlace(Page pages, PageRun within, Place& place) const {
  bool found = false;
  Page best_rest = 0;
  for (size_t i = 0; i < free_.size(); ++i) {
    const Free& block = free_[i];
    const PageRun run{std::max(block.begin, within.begin), std::min(block.end, within.end)};
    if (run.end <= run.begin || run.size() < pages) continue;
    const Page size = run.size();
    const Page least = block.resident < pages ? pages - block.resident : 0;  // fresh pages
    const Page rest = size - pages;
    if (found && (least > place.fresh || (least == place.fresh && rest >= best_rest))) continue;
    const auto consider = [&](Page begin) {
      const Page fresh = pages - map_.countResident(begin, begin + pages);
      if (found && (fresh > place.fresh || (fresh == place.fresh && rest >= best_rest))) return;
      place = {i, begin, fresh};
      best_rest = rest;
      found = true;
    };
    consider(run.begin);
    if (i + 1 < free_.size()) consider(run.end - pages);
  }
  return found;
}

bool PageArena::placeAt(Page begin, Page pages, Place& place) const {
  const Page end = begin + pages;
  auto next = std::upper_bound(free_.begin(), free_.end(), begin,
                               [](Page page, const Free& f) { return page < f.begin; });
  if (next == free_.begin() || std::prev(next)->end < end) return false;
  place = {static_cast<size_t>(std::prev(next) - free_.begin()), begin,
           pages - map_.countResident(begin, end)};
  return true;
}

// The lowest place that begins there or behind it.
bool PageArena::placeBehind(Page begin, Page pages, Place& place) const {
  for (const Free& block : free_) {
    const Page from = std::max(block.begin, begin);
    if (block.end > from && block.end - from >= pages) return placeAt(from, pages, place);
  }
  return false;
}

void* PageArena::allocate(size_t bytes, BlockScript* script, ArenaSide side) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reserved_ == 0 || bytes > reserved_) return nullptr;
  const uint32_t number = script == nullptr ? colour_++ : script->numAsked();
  const size_t colour = (number % kColours) * kColourBytes / 64 * 64;
  const auto pages = static_cast<Page>((bytes + colour + kPageBytes - 1) / kPageBytes);
  if (pages == 0) return nullptr;
  const std::optional<Page> wanted = script == nullptr ? std::nullopt : script->nextPlace(pages);
  Place place;
  const bool is_placed = wanted && (placeAt(*wanted, pages, place) ||
                                    placeBehind(script->endOfPlaces(), pages, place));
  if (!is_placed && !findPlace(pages, side, place)) return nullptr;
  Free& block = free_[place.block];
  // Out of the free ones first: what is given back lies elsewhere.
  const Page end = place.begin + pages;
  Free before{block.begin, place.begin, map_.countResident(block.begin, place.begin)};
  Free after{end, block.end, block.resident - before.resident - (pages - place.fresh)};
  const int64_t most = std::max(most_in_use_, in_use_ + pages);
  if (before.begin < before.end) {
    block = before;
    if (after.begin < after.end) {
      free_.insert(free_.begin() + static_cast<std::ptrdiff_t>(place.block) + 1, after);
    }
  } else if (after.begin < after.end) {
    block = after;
  } else {
    free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(place.block));
  }
  const int64_t excess = num_resident_ + place.fresh - most;
  if (excess > 0) {
    const auto pages_too_many = static_cast<Page>(excess);
    giveBack(pages_too_many - moveIn({place.begin, end}, pages_too_many));
  }
  if (!makeResident(place.begin, end)) {
    insertFree(place.begin, end);
    return nullptr;
  }
  if (block_pages_.size() <= place.begin) block_pages_.resize(place.begin + 1, 0);
  block_pages_[place.begin] = pages;
  if (script != nullptr) script->allocated(place.begin, pages);
  in_use_ += pages;
  most_in_use_ = most;
  peak_in_use_ = std::max(peak_in_use_, in_use_);
  most_resident_ = std::max(most_resident_, num_resident_);
  return static_cast<std::byte*>(addressOf(place.begin)) + colour;
}

void PageArena::insertFree(Page begin, Page end) {
  Free block{begin, end, map_.countResident(begin, end)};
  auto next = std::lower_bound(free_.begin(), free_.end(), begin,
                               [](const Free& f, Page page) { return f.begin < page; });
  if (next != free_.end() && next->begin == end) {
    block.end = next->end;
    block.resident += next->resident;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    Free& previous = *std::prev(next);
    if (previous.end == begin) {
      previous.end = block.end;
      previous.resident += block.resident;
      return;
    }
  }
  free_.insert(next, block);
}

void PageArena::release(void* block) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto begin = static_cast<Page>((reinterpret_cast<uintptr_t>(block) - base_) / kPageBytes);
  const Page pages = std::exchange(block_pages_[begin], 0);
  for (const auto& script : learning_) script->released(begin);
  in_use_ -= pages;
  insertFree(begin, begin + pages);
}

void PageArena::beginScript(const std::shared_ptr<BlockScript>& script) {
  const std::lock_guard<std::mutex> lock(mutex_);
  script->begin();
  const bool is_known = std::find(learning_.begin(), learning_.end(), script) != learning_.end();
  if (script->isLearning() && !is_known) learning_.push_back(script);
}

void PageArena::endScript(const std::shared_ptr<BlockScript>& script) {
  std::optional<BlockScript::Task> task;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (script->end()) task = script->task(blocksInUse());
  }
  // Others need not wait for it.
  std::vector<Page> places = task ? placeBlocks(task->blocks, task->others) : std::vector<Page>();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (task) script->place(std::move(places));
  std::erase_if(learning_,
                [](const auto& one) { return !one->isLearning() || one.use_count() == 1; });
}

int64_t PageArena::bytesOf(const BlockScript& script) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return script.ownBytes();
}

std::vector<PageRun> PageArena::blocksInUse() const {
  std::vector<PageRun> found;
  for (Page p = 0; p < block_pages_.size(); ++p) {
    if (block_pages_[p] > 0) found.push_back({p, p + block_pages_[p]});
  }
  return found;
}

int64_t PageArena::gapBetween(const void* block, const void* next) const {
  if (!owns(block) || !owns(next)) return -1;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto page_of = [this](const void* p) {
    return static_cast<Page>((reinterpret_cast<uintptr_t>(p) - base_) / kPageBytes);
  };
  const Page begin = page_of(block) + block_pages_[page_of(block)], end = page_of(next);
  if (begin == end) return 0;
  const auto gap = std::lower_bound(free_.begin(), free_.end(), begin,
                                    [](const Free& free, Page page) { return free.begin < page; });
  const bool is_free = gap != free_.end() && gap->begin == begin && gap->end == end;
  return is_free ? static_cast<int64_t>(end - begin) * static_cast<int64_t>(kPageBytes) : -1;
}

void PageArena::restart(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  most_in_use_ = std::max(in_use_, bytes / static_cast<int64_t>(kPageBytes));
  peak_in_use_ = in_use_;
  const int64_t excess = num_resident_ - most_in_use_;
  if (excess > 0) giveBack(static_cast<Page>(excess));
  most_resident_ = num_resident_;
  const bool counted = std::exchange(rights_count_, true);
  findWhetherRightsCount();
  if (rights_count_ && !counted) giveRightsBack();
}

// Of places that have kept them.
void PageArena::giveRightsBack() {
  std::vector<PageRun> idle;
  map_.forEachIdleRun([&](PageRun run) {
    idle.push_back(run);
    return true;
  });
  for (const PageRun run : idle) unmap(run);
}

PageArena::Counters PageArena::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = [](int64_t pages) { return pages * static_cast<int64_t>(kPageBytes); };
  return {.in_use_bytes = bytes(in_use_),
          .resident_bytes = bytes(num_resident_),
          .most_in_use = bytes(most_in_use_),
          .peak_in_use = bytes(peak_in_use_),
          .most_resident = bytes(most_resident_),
          .moved_bytes = bytes(moved_),
          .returned_bytes = bytes(returned_),
          .fresh_bytes = bytes(fresh_)};
}

}  // namespace poet
