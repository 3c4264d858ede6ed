#include "memory/block_script.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "graph/heap_bytes.h"

namespace poet {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();
// Pairs of blocks that are compared, in all: about a tenth of a second.
constexpr size_t kMostPairs = 40'000'000;
constexpr size_t kMostBlocks = 8192;
constexpr int kMostRounds = 40;
// Where so many steps hold no two alike in a row, those to come will hardly do.
constexpr int kMostStepsLearned = 8;
constexpr int kMostTimesLearned = 4;
// In a row, before it is learned again. A step that is unlike the others comes and goes.
constexpr int kMostUnlikeSteps = 8;
// Of the blocks, that may lie elsewhere.
constexpr uint32_t kPartElsewhere = 8;

bool overlaps(const BlockLife& a, const BlockLife& b) {
  const bool within = a.from < b.to && b.from < a.to;
  return within || a.from < b.wrapped || b.from < a.wrapped || (a.wrapped > 0 && b.wrapped > 0);
}

struct Placed {
  PageRun run;
  const BlockLife* block = nullptr;  // null: there all the time
};

// Pages that are there at each request.
std::vector<Page> loadOf(const std::vector<BlockLife>& blocks) {
  std::vector<int64_t> change(blocks.size() + 1, 0);
  for (const BlockLife& block : blocks) {
    change[block.from] += block.pages;
    change[block.to] -= block.pages;
    if (block.wrapped > 0) {
      change[0] += block.pages;
      change[block.wrapped] -= block.pages;
    }
  }
  std::vector<Page> load;
  int64_t pages = 0;
  for (size_t t = 0; t < blocks.size(); ++t) load.push_back(static_cast<Page>(pages += change[t]));
  return load;
}

// The greatest of any range.
class RangeMost {
 public:
  explicit RangeMost(std::vector<Page> values) : levels_{std::move(values)} {
    for (size_t half = 1; 2 * half <= levels_[0].size(); half *= 2) {
      const std::vector<Page>& below = levels_.back();
      std::vector<Page> level;
      for (size_t i = 0; i + half < below.size(); ++i)
        level.push_back(std::max(below[i], below[i + half]));
      levels_.push_back(std::move(level));
    }
  }
  Page of(size_t begin, size_t end) const {
    if (begin >= end) return 0;
    const auto level = static_cast<size_t>(std::bit_width(end - begin) - 1);
    return std::max(levels_[level][begin], levels_[level][end - (size_t{1} << level)]);
  }

 private:
  std::vector<std::vector<Page>> levels_;  // by the power of two that they span
};

class Placement {
 public:
  Placement(const std::vector<BlockLife>& blocks, const std::vector<PageRun>& taken)
      : blocks_(blocks), most_(mostAtOnce(blocks)) {
    for (const PageRun run : taken) taken_.push_back({run});
    std::sort(taken_.begin(), taken_.end(), isBefore);
    const RangeMost load(loadOf(blocks));
    for (const BlockLife& block : blocks)
      height_.push_back(std::max(load.of(block.from, block.to), load.of(0, block.wrapped)));
  }

  std::vector<Page> run() {
    std::vector<std::vector<size_t>> orders = {
        orderBy([this](size_t i) { return std::pair(height_[i], uint64_t{length(i)}); }),
        orderBy([this](size_t i) { return std::pair(height_[i], uint64_t{blocks_[i].pages}); }),
        orderBy([this](size_t i) { return std::pair(Page{0}, length(i) * blocks_[i].pages); }),
        orderBy([this](size_t i) {
          return std::pair(static_cast<Page>(std::bit_width(blocks_[i].pages)), length(i));
        })};
    for (int round = 0; round < kMostRounds; ++round) {
      for (std::vector<size_t>& order : orders) {
        if (!best_.empty() && (least_ <= most_ || pairs_ > kMostPairs)) return std::move(best_);
        const std::vector<Page> places = placeInTurn(order);
        // What lies too high comes before its neighbours of now.
        std::stable_partition(order.begin(), order.end(),
                              [&](size_t i) { return places[i] + blocks_[i].pages > most_; });
      }
    }
    return std::move(best_);
  }

 private:
  static bool isBefore(const Placed& a, const Placed& b) { return a.run.begin < b.run.begin; }
  uint64_t length(size_t i) const {
    const BlockLife& block = blocks_[i];
    return block.to - block.from + block.wrapped;
  }

  // The greatest first.
  template <class Key>
  std::vector<size_t> orderBy(const Key& key) const {
    std::vector<size_t> order(blocks_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return key(a) > key(b); });
    return order;
  }

  std::vector<Page> placeInTurn(const std::vector<size_t>& order) {
    std::vector<Placed> placed = taken_;
    std::vector<Page> places(blocks_.size());
    Page end = 0;
    for (const size_t i : order) {
      pairs_ += placed.size();
      places[i] = smallestGap(blocks_[i], placed);
      const PageRun run{places[i], places[i] + blocks_[i].pages};
      end = std::max(end, run.end);
      const Placed here{run, &blocks_[i]};
      placed.insert(std::upper_bound(placed.begin(), placed.end(), here, isBefore), here);
    }
    if (best_.empty() || end < least_) {
      least_ = end;
      best_ = places;
    }
    return places;
  }

  static Page smallestGap(const BlockLife& block, const std::vector<Placed>& placed) {
    constexpr Page kNone = std::numeric_limits<Page>::max();
    Page behind = 0, best = 0, smallest = kNone;  // behind: the end of what is in its way so far
    for (const Placed& other : placed) {
      if (other.block != nullptr && !overlaps(block, *other.block)) continue;
      const Page gap = other.run.begin > behind ? other.run.begin - behind : 0;
      if (gap >= block.pages && gap < smallest) {
        smallest = gap;
        best = behind;
      }
      behind = std::max(behind, other.run.end);
    }
    return smallest == kNone ? behind : best;
  }

  const std::vector<BlockLife>& blocks_;
  const Page most_;
  std::vector<Placed> taken_;  // by address
  std::vector<Page> height_;   // by block: the most that is there at once while it is
  std::vector<Page> best_;
  Page least_ = 0;
  size_t pairs_ = 0;
};

}  // namespace

Page mostAtOnce(const std::vector<BlockLife>& blocks) {
  const std::vector<Page> load = loadOf(blocks);
  return load.empty() ? 0 : *std::max_element(load.begin(), load.end());
}

std::vector<Page> placeBlocks(const std::vector<BlockLife>& blocks,
                              const std::vector<PageRun>& taken) {
  return Placement(blocks, taken).run();
}

void BlockScript::begin() {
  is_running_ = is_alike_ = true;
  next_ = misses_ = 0;
  if (!isLearning()) return;
  pages_before_ = std::exchange(pages_, {});
  released_at_.clear();
}

std::optional<Page> BlockScript::nextPlace(Page pages) {
  if (!isPlaced() || !is_alike_) return std::nullopt;
  is_alike_ = next_ < pages_.size() && pages_[next_] == pages;
  return is_alike_ ? std::optional(places_[next_]) : std::nullopt;
}

void BlockScript::allocated(Page begin, Page pages) {
  if (isLearning()) {
    mine_[begin] = {next_, step_};
    pages_.push_back(pages);
    released_at_.push_back(kNever);
  } else if (isPlaced() && is_alike_ && places_[next_] != begin) {
    ++misses_;
  }
  ++next_;
}

void BlockScript::released(Page begin) {
  const auto found = mine_.find(begin);
  if (found == mine_.end()) return;
  const Mine mine = found->second;
  mine_.erase(found);
  if (!is_running_) return;
  if (mine.step == step_) {
    released_at_[mine.index] = next_;
  } else if (mine.step + 1 == step_ && mine.index < latest_wrapped_.size()) {
    latest_wrapped_[mine.index] = std::max(latest_wrapped_[mine.index], next_);
  }
}

bool BlockScript::end() {
  is_running_ = false;
  ++step_;
  if (isPlaced()) {
    const bool unlike = !is_alike_ || next_ != pages_.size() || misses_ * kPartElsewhere > next_;
    unlike_steps_ = unlike ? unlike_steps_ + 1 : 0;
    if (unlike_steps_ > kMostUnlikeSteps) learnAgain();
    return false;
  }
  if (!isLearning()) return false;
  keepLatest();
  if (!pages_.empty() && pages_.size() <= kMostBlocks && pages_ == pages_before_) return true;
  if (++steps_learned_ == kMostStepsLearned) giveUp();
  return false;
}

void BlockScript::giveUp() {
  *this = BlockScript();
  state_ = State::kGivenUp;
}

// Of steps that ask for other blocks nothing is known yet.
void BlockScript::keepLatest() {
  if (pages_ != pages_before_ || latest_.size() != pages_.size()) {
    latest_.assign(pages_.size(), 0);
    latest_wrapped_.assign(pages_.size(), 0);
  }
  for (size_t i = 0; i < pages_.size(); ++i) latest_[i] = std::max(latest_[i], released_at_[i]);
}

// What was seen of steps like these still holds.
void BlockScript::learnAgain() {
  if (times_learned_ >= kMostTimesLearned) return giveUp();
  BlockScript again;
  again.times_learned_ = times_learned_;
  again.pages_ = std::move(pages_);
  again.latest_ = std::move(latest_);
  again.latest_wrapped_ = std::move(latest_wrapped_);
  *this = std::move(again);
}

BlockScript::Task BlockScript::task(const std::vector<PageRun>& in_use) const {
  Task task;
  const auto count = static_cast<uint32_t>(pages_.size());
  task.blocks.reserve(count);
  for (uint32_t i = 0; i < count; ++i)
    task.blocks.push_back({pages_[i], i, std::min(latest_[i], count), latest_wrapped_[i]});
  for (const PageRun run : in_use) {
    const auto mine = mine_.find(run.begin);
    // What the last step left behind has its place among the blocks.
    if (mine == mine_.end() || mine->second.step + 1 != step_) task.others.push_back(run);
  }
  return task;
}

void BlockScript::place(std::vector<Page> places) {
  places_ = std::move(places);
  end_ = 0;
  for (size_t i = 0; i < places_.size(); ++i) end_ = std::max(end_, places_[i] + pages_[i]);
  state_ = State::kPlaced;
  ++times_learned_;
  steps_learned_ = unlike_steps_ = 0;
  pages_before_ = {};
  released_at_ = {};
  mine_ = {};
}

int64_t BlockScript::ownBytes() const {
  return static_cast<int64_t>(sizeof *this) + heapBytes(pages_) + heapBytes(pages_before_) +
         heapBytes(released_at_) + heapBytes(latest_) + heapBytes(latest_wrapped_) +
         heapBytes(places_) +
         static_cast<int64_t>(mine_.size()) * heapBlock(sizeof(std::pair<Page, Mine>) + 16);
}

}  // namespace poet
