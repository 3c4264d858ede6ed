// BlockScript: the blocks that a step asks for, and places for them under which little moves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/export.h"
#include "memory/page_map.h"

namespace poet {

// Note [Steps that ask for the same blocks]
// An arena that sees one request after the other leaves holes, and near the step's peak every hole
// costs a move of pages. But a step that follows a plan asks for the same blocks in the same order
// each time. So its script is learned: the pages of each block, and how many others were asked for
// before it was released. When two steps in a row were alike, places are worked out for all of them
// at once (placeBlocks), and the steps that follow ask for these. Where somebody else has a block's
// place it goes behind all of them, so as not to take another's in turn. Where steps stop to be
// alike the script is learned again, a few times. A block that goes to the store is released when
// it has come there, sooner in one step than in the next: of all steps that were looked at the
// latest release counts.
//
// What lives on after its step (a gradient, until the next step lets go of it) has its place at the
// beginning of the next one, too, up to the request at which it was released there.

// One block of a step of n requests: there from request `from` (its own) up to request `to`, and in
// the step after that up to request `wrapped` (0: not any more).
struct BlockLife {
  Page pages = 0;
  uint32_t from = 0, to = 0, wrapped = 0;
};

// First pages for all of them. No two blocks that are there at the same time overlap, and none
// overlaps a run of `taken`. Each goes into the smallest gap that takes it, in several orders
// (those that are there when most is asked for come first; then the longest lives, or the largest);
// of each order what lies above the most that is asked for at once goes earlier the next time
// (Joslin, Clements, 1999, "Squeaky wheel" optimization). The order that needs the least space is
// taken.
POET_API std::vector<Page> placeBlocks(const std::vector<BlockLife>& blocks,
                                       const std::vector<PageRun>& taken);

// The most pages that are there at once.
POET_API Page mostAtOnce(const std::vector<BlockLife>& blocks);

// Of one variant of a step. Whoever owns it sees to it that one thread at a time calls it (the
// arena, under its lock).
class POET_API BlockScript {
 public:
  void begin();
  // The place for the next block, of so many pages; nothing where none is known.
  std::optional<Page> nextPlace(Page pages);
  // Behind all places: what finds its own taken does not take another block's.
  Page endOfPlaces() const { return end_; }
  uint32_t numAsked() const { return next_; }
  void allocated(Page begin, Page pages);
  void released(Page begin);  // of any block; while isLearning()
  // Whether places can be worked out now.
  bool end();
  struct Task {
    std::vector<BlockLife> blocks;
    std::vector<PageRun> others;
  };
  // `in_use`: all blocks of the arena.
  Task task(const std::vector<PageRun>& in_use) const;
  void place(std::vector<Page> places);

  bool isLearning() const { return state_ == State::kLearning; }
  bool isPlaced() const { return state_ == State::kPlaced; }
  int64_t ownBytes() const;

 private:
  enum class State { kLearning, kPlaced, kGivenUp };
  struct Mine {
    uint32_t index = 0;
    uint32_t step = 0;
  };

  void keepLatest();
  void learnAgain();
  void giveUp();

  State state_ = State::kLearning;
  std::vector<Page> pages_, pages_before_;  // by request, of this step and of the one before
  std::vector<uint32_t> released_at_;       // likewise; kNever
  // By request: the latest of all steps that were alike, there and in the step after.
  std::vector<uint32_t> latest_, latest_wrapped_;
  std::vector<Page> places_;
  Page end_ = 0;
  std::unordered_map<Page, Mine> mine_;  // by first page, while it learns
  uint32_t next_ = 0;
  uint32_t step_ = 0;
  uint32_t misses_ = 0;
  bool is_running_ = false, is_alike_ = true;
  int steps_learned_ = 0, times_learned_ = 0, unlike_steps_ = 0;
};

}  // namespace poet
