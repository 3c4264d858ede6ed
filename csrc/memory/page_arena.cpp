#include "memory/page_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace poet {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kLeastReserve = size_t{1} << 28;
constexpr uint32_t kWordBits = 64;
// Blocks that all begin at a page's first byte would compete for the same cache sets.
constexpr size_t kColourBytes = 320;
constexpr uint32_t kColours = 8;

// Address space without memory, and without the right to it.
void* reserve(void* at, size_t bytes) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at != nullptr ? MAP_FIXED : 0);
  return ::mmap(at, bytes, PROT_NONE, flags, -1, 0);
}

}  // namespace

PageArena::PageArena(size_t bytes) {
  if (::sysconf(_SC_PAGESIZE) != static_cast<long>(kPageBytes)) return;  // a system of larger pages
  for (; bytes >= kLeastReserve; bytes /= 2) {
    void* const space = reserve(nullptr, bytes);
    if (space == MAP_FAILED) continue;
#ifdef MADV_NOHUGEPAGE
    ::madvise(space, bytes, MADV_NOHUGEPAGE);  // a huge page is resident as a whole
#endif
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
// which pages are resident

PageArena::Page PageArena::countResident(Page begin, Page end) const {
  Page count = 0;
  const Page known = static_cast<Page>(resident_.size() * kWordBits);
  end = std::min(end, known);
  while (begin < end) {
    const Page in_word = begin % kWordBits;
    const Page bits = std::min(kWordBits - in_word, end - begin);
    const uint64_t mask = bits == kWordBits ? ~uint64_t{0} : ((uint64_t{1} << bits) - 1) << in_word;
    count += static_cast<Page>(std::popcount(resident_[begin / kWordBits] & mask));
    begin += bits;
  }
  return count;
}

void PageArena::mark(Page begin, Page end, bool resident) {
  if (resident_.size() * kWordBits < end) resident_.resize(end / kWordBits + 1, 0);
  while (begin < end) {
    const Page in_word = begin % kWordBits;
    const Page bits = std::min(kWordBits - in_word, end - begin);
    const uint64_t mask = bits == kWordBits ? ~uint64_t{0} : ((uint64_t{1} << bits) - 1) << in_word;
    uint64_t& word = resident_[begin / kWordBits];
    word = resident ? word | mask : word & ~mask;
    begin += bits;
  }
}

// Maximal runs of pages that are (not) resident; visit(begin, end) may end the walk with false.
template <class Visit>
void PageArena::forEachRun(Page begin, Page end, bool resident, Visit&& visit) const {
  const auto is = [&](Page p) {
    const size_t word = p / kWordBits;
    const bool bit = word < resident_.size() && ((resident_[word] >> (p % kWordBits)) & 1) != 0;
    return bit == resident;
  };
  for (Page p = begin; p < end;) {
    if (!is(p)) {
      ++p;
      continue;
    }
    Page stop = p + 1;
    while (stop < end && is(stop)) ++stop;
    if (!visit(p, stop)) return;
    p = stop;
  }
}

bool PageArena::makeResident(Page begin, Page end) {
  bool done = true;
  Page fresh = 0;
  forEachRun(begin, end, false, [&](Page from, Page to) {
    const size_t bytes = size_t{to - from} * kPageBytes;
    done = ::mprotect(addressOf(from), bytes, PROT_READ | PROT_WRITE) == 0;
    if (!done) return false;
#ifdef MADV_POPULATE_WRITE
    ::madvise(addressOf(from), bytes, MADV_POPULATE_WRITE);  // in one go; else fault by fault
#endif
    mark(from, to, true);
    fresh += to - from;
    return true;
  });
  num_resident_ += fresh;
  fresh_ += fresh;
  return done;
}

// Gives back up to `pages` of the block's resident pages, the last ones first.
PageArena::Page PageArena::giveBack(Free& block, Page pages) {
  std::vector<std::pair<Page, Page>> runs;
  forEachRun(block.begin, block.end, true, [&](Page from, Page to) {
    runs.emplace_back(from, to);
    return true;
  });
  Page given = 0;
  for (auto run = runs.rbegin(); run != runs.rend() && given < pages; ++run) {
    const Page take = std::min(run->second - run->first, pages - given);
    const Page from = run->second - take;
    if (reserve(addressOf(from), size_t{take} * kPageBytes) == MAP_FAILED) break;
    mark(from, run->second, false);
    given += take;
  }
  block.resident -= given;
  num_resident_ -= given;
  returned_ += given;
  return given;
}

void PageArena::giveBack(Page pages) {
  while (pages > 0) {
    const auto largest =
        std::max_element(free_.begin(), free_.end(),
                         [](const Free& a, const Free& b) { return a.resident < b.resident; });
    if (largest == free_.end() || largest->resident == 0) return;
    const Page given = giveBack(*largest, pages);
    if (given == 0) return;
    pages -= given;
  }
}

// ------------------------------------------------------------------------------------------------
// blocks

bool PageArena::findPlace(Page pages, Place& place) const {
  bool found = false;
  Page best_rest = 0;
  for (size_t i = 0; i < free_.size(); ++i) {
    const Free& block = free_[i];
    const Page size = block.end - block.begin;
    if (size < pages) continue;
    const Page least = block.resident < pages ? pages - block.resident : 0;  // fresh pages
    const Page rest = size - pages;
    if (found && (least > place.fresh || (least == place.fresh && rest >= best_rest))) continue;
    const auto consider = [&](Page begin) {
      const Page fresh = pages - countResident(begin, begin + pages);
      if (found && (fresh > place.fresh || (fresh == place.fresh && rest >= best_rest))) return;
      place = {i, begin, fresh};
      best_rest = rest;
      found = true;
    };
    consider(block.begin);
    if (i + 1 < free_.size()) consider(block.end - pages);
  }
  return found;
}

void* PageArena::allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (reserved_ == 0 || bytes > reserved_) return nullptr;
  const size_t colour = (colour_++ % kColours) * kColourBytes / 64 * 64;
  const auto pages = static_cast<Page>((bytes + colour + kPageBytes - 1) / kPageBytes);
  Place place;
  if (pages == 0 || !findPlace(pages, place)) return nullptr;
  Free& block = free_[place.block];
  // Out of the free ones first: what is given back lies elsewhere.
  const Page end = place.begin + pages;
  Free before{block.begin, place.begin, countResident(block.begin, place.begin)};
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
  if (excess > 0) giveBack(static_cast<Page>(excess));
  if (!makeResident(place.begin, end)) {
    insertFree(place.begin, end);
    return nullptr;
  }
  if (block_pages_.size() <= place.begin) block_pages_.resize(place.begin + 1, 0);
  block_pages_[place.begin] = pages;
  in_use_ += pages;
  most_in_use_ = most;
  most_resident_ = std::max(most_resident_, num_resident_);
  return static_cast<std::byte*>(addressOf(place.begin)) + colour;
}

void PageArena::insertFree(Page begin, Page end) {
  Free block{begin, end, countResident(begin, end)};
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
  in_use_ -= pages;
  insertFree(begin, begin + pages);
}

void PageArena::restart(int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  most_in_use_ = std::max(in_use_, bytes / static_cast<int64_t>(kPageBytes));
  const int64_t excess = num_resident_ - most_in_use_;
  if (excess > 0) giveBack(static_cast<Page>(excess));
  most_resident_ = num_resident_;
}

PageArena::Counters PageArena::counters() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto bytes = [](int64_t pages) { return pages * static_cast<int64_t>(kPageBytes); };
  return {bytes(in_use_),        bytes(num_resident_), bytes(most_in_use_),
          bytes(most_resident_), bytes(returned_),     bytes(fresh_)};
}

}  // namespace poet
