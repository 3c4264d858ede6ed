// PageMap: which pages of an address range are resident, which may be, and which of them the kernel
// can move as one.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace poet {

using Page = uint32_t;

// Pages [begin, end).
struct PageRun {
  Page begin = 0;
  Page end = 0;
  Page size() const { return end - begin; }
};

// Note [Pieces]
// The kernel keeps a mapping for each range of pages that lie as they were mapped. A page that was
// moved is still filed under the place where it was first mapped, so pages that were moved by
// different distances belong to different mappings, and a move takes the pages of one mapping
// alone. `shift` is how far a page lies from that place; a piece is a run of resident pages of one
// shift. What is writable belongs to another mapping than what is not.
class PageMap {
 public:
  Page countResident(Page begin, Page end) const {
    Page count = 0;
    forEachWord(begin, std::min(end, known()), [&](size_t word, uint64_t mask) {
      count += static_cast<Page>(std::popcount(resident_[word] & mask));
    });
    return count;
  }

  void setResident(PageRun run, bool resident) { set(resident_, run, resident); }

  // Resident pages must be writable.
  void setWritable(PageRun run, bool writable) {
    edges_ -= countEdges(run);
    set(writable_, run, writable);
    edges_ += countEdges(run);
  }
  bool isWritable(PageRun run) const {
    return next(writable_, run.begin, run.end, false) >= run.end;
  }

  // Pages that are mapped where they lie, anew: neither resident nor writable.
  void setHome(PageRun run) {
    setShift(run, 0);
    setWritable(run, false);
    setResident(run, false);
  }
  bool isHome(PageRun run) const {
    for (Page p = run.begin; p < std::min<Page>(run.end, static_cast<Page>(shift_.size())); ++p) {
      if (shift_[p] != 0) return false;
    }
    return true;
  }

  // The pages of a piece now lie at `to` and after it; where they lay is the same mapping without
  // pages.
  void move(PageRun run, Page to) {
    const auto shift = static_cast<int32_t>(int64_t{to} - run.begin) + shiftOf(run.begin);
    setResident(run, false);
    const PageRun there{to, to + run.size()};
    setShift(there, shift);
    setWritable(there, true);
    setResident(there, true);
  }

  // Maximal runs of pages in [begin, end) that are (not) resident; visit(run) may end the walk with
  // false.
  template <class Visit>
  void forEachRun(Page begin, Page end, bool resident, Visit&& visit) const {
    for (Page p = begin; p < end;) {
      p = next(resident_, p, end, resident);
      if (p >= end) return;
      const Page stop = next(resident_, p, end, !resident);
      if (!visit(PageRun{p, stop})) return;
      p = stop;
    }
  }

  // Likewise, of all pages that are writable and not resident.
  template <class Visit>
  void forEachIdleRun(Visit&& visit) const {
    const auto all = static_cast<Page>(writable_.size() * kWordBits);
    for (Page p = 0; (p = next(writable_, p, all, true)) < all;) {
      const Page stop = next(writable_, p, all, false);
      forEachRun(p, stop, false, visit);
      p = stop;
    }
  }

  // Likewise, of pieces; those of more than `longest` pages come in parts.
  template <class Visit>
  void forEachPiece(Page begin, Page end, Page longest, Visit&& visit) const {
    forEachRun(begin, end, true, [&](PageRun run) {
      for (Page p = run.begin; p < run.end;) {
        const Page most = p + std::min(longest, run.end - p);
        Page stop = p + 1;
        while (stop < most && shiftOf(stop) == shiftOf(p)) ++stop;
        if (!visit(PageRun{p, stop})) return false;
        p = stop;
      }
      return true;
    });
  }

  // How many mappings the range is: they end where writable pages do, and where pieces do.
  int64_t numMappings() const { return edges_ + seams_ + 1; }

 private:
  static constexpr Page kWordBits = 64;
  using Bits = std::vector<uint64_t>;  // one a page

  static void set(Bits& bits, PageRun run, bool value) {
    if (bits.size() <= run.end / kWordBits) bits.resize(run.end / kWordBits + 1, 0);
    forEachWord(run.begin, run.end, [&](size_t word, uint64_t mask) {
      bits[word] = value ? bits[word] | mask : bits[word] & ~mask;
    });
  }

  Page known() const { return static_cast<Page>(resident_.size() * kWordBits); }

  template <class Visit>
  static void forEachWord(Page begin, Page end, Visit&& visit) {
    while (begin < end) {
      const Page in_word = begin % kWordBits;
      const Page bits = std::min(kWordBits - in_word, end - begin);
      const uint64_t ones = bits == kWordBits ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
      visit(begin / kWordBits, ones << in_word);
      begin += bits;
    }
  }

  // The first page from p on whose bit is `value`; end where there is none.
  static Page next(const Bits& bits, Page p, Page end, bool value) {
    while (p < end) {
      const size_t word = p / kWordBits;
      if (word >= bits.size()) return value ? end : p;
      const uint64_t rest = (value ? bits[word] : ~bits[word]) >> (p % kWordBits);
      if (rest != 0) return std::min(end, p + static_cast<Page>(std::countr_zero(rest)));
      p += kWordBits - p % kWordBits;
    }
    return end;
  }

  bool isWritable(Page p) const { return isWritable(PageRun{p, p + 1}); }

  // Pages of the run, and the one behind it, that are writable where the page before is not, or the
  // other way round.
  int64_t countEdges(PageRun run) const {
    int64_t count = 0;
    bool writable = run.begin > 0 && isWritable(run.begin - 1);
    for (Page p = run.begin; p <= run.end;) {
      const Page stop = next(writable_, p, run.end + 1, !writable);
      if (stop > run.end) break;
      ++count;
      writable = !writable;
      p = stop;
    }
    return count;
  }

  int32_t shiftOf(Page p) const { return p < shift_.size() ? shift_[p] : 0; }

  // Seams are counted at the pages whose shift is not that of the page before.
  void setShift(PageRun run, int32_t shift) {
    if (shift_.size() <= run.end) {
      if (shift == 0 && shift_.size() <= run.begin) return;
      shift_.resize(size_t{run.end} + 1, 0);
    }
    const auto seams = [&] {
      int64_t count = 0;
      for (Page p = std::max<Page>(run.begin, 1); p <= run.end; ++p)
        count += shift_[p] != shift_[p - 1];
      return count;
    };
    seams_ -= seams();
    std::fill(shift_.begin() + run.begin, shift_.begin() + run.end, shift);
    seams_ += seams();
  }

  Bits resident_;
  Bits writable_;
  std::vector<int32_t> shift_;  // of the pages up to the last that was ever moved
  int64_t edges_ = 0;
  int64_t seams_ = 0;
};

}  // namespace poet
