// Coop's choice of what goes: see Note [Windows].
#include <algorithm>

#include "runtime/online_policy.h"

namespace poet {

// Note [Windows]
// Coop (methods/coop.cpp has the source) evicts neighbours in memory, so that what they leave is
// one place: of all runs of blocks, free ones between them included, that make the bytes asked for,
// the one whose costs over staleness sum to the least. A run ends at what may not leave, and at
// what is not poet's arena's. Two pointers find it in one sweep over the blocks by address.
//
// The authors' pool is as large as the budget, so free blocks in a run are bytes that the budget
// has left. The arena's address space is larger, and a run may span any length of it that holds
// nothing: such gaps count up to what the budget has left. Its place is one piece all the same. The
// arena gives what is allocated next the place whose pages are there already, mostly this one. It
// could do without: it moves pages (Note [Resident memory follows the plan]). So what the windows
// cost in live training is what their choice of values costs. Where no run is long enough values go
// one by one by the score, as if in pieces.
//
// Coop also places what is cheap for its bytes at one end of memory and what is dear at the other,
// so that windows hold values of like cost. What an op is about to make is as dear as what ops of
// the same name have made so far: above the mean of all seconds for a byte or not. The arena has
// two sides for it, with a boundary that leaves the low one twice what has lain in the arena at
// once (the arena's own records take 1/1000 of the addresses below a block); pages move between
// them like everywhere. What the sides do to evictions and replays: benchmarks/nightly.md.
bool OnlinePolicy::evictWindow(int64_t bytes, int64_t free_bytes) {
  if (thrashes()) return false;
  struct Block {
    const void* address;
    ValueId value;
    int64_t bytes;
    double cost;
    int64_t gap = -1;  // to the block after it
  };
  std::vector<Block> blocks;
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    if (!mayRun(recipeOf(v)) || !mayLeave(v) || at(v).waits > 0) continue;
    const StorageHold storage = storageOf(v);
    if (!storage) continue;
    blocks.push_back({storage->_mutable_data_ptr_no_checks().get(), v, at(v).bytes,
                      scores_->costOf(v.index) / scores_->stalenessOf(v.index, clock_)});
  }
  std::sort(blocks.begin(), blocks.end(),
            [](const Block& a, const Block& b) { return a.address < b.address; });
  for (size_t i = 0; i + 1 < blocks.size(); ++i)
    blocks[i].gap = StepArena::gapBetween(blocks[i].address, blocks[i + 1].address);

  struct Window {
    size_t begin = 0, end = 0;
    double cost = 0;
  };
  Window best;
  Window window;
  int64_t evicted = 0, gaps = 0;
  const auto is_enough = [&](int64_t without_bytes, int64_t without_gap) {
    return evicted - without_bytes + std::min(gaps - without_gap, free_bytes) >= bytes;
  };
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (i > 0 && blocks[i - 1].gap < 0) {
      window = {i, i};
      evicted = gaps = 0;
    } else if (i > 0) {
      gaps += blocks[i - 1].gap;
    }
    window.end = i + 1;
    window.cost += blocks[i].cost;
    evicted += blocks[i].bytes;
    while (window.begin < i && is_enough(blocks[window.begin].bytes, blocks[window.begin].gap)) {
      evicted -= blocks[window.begin].bytes;
      gaps -= blocks[window.begin].gap;
      window.cost -= blocks[window.begin++].cost;
    }
    if (is_enough(0, 0) && (best.end == 0 || window.cost < best.cost)) best = window;
  }
  bool left = false;
  for (size_t i = best.begin; i < best.end; ++i) left |= evict(blocks[i].value, false);
  return left;
}

ArenaSide OnlinePolicy::sideOf(const c10::OperatorHandle& op) const {
  const auto found = density_of_.find(&op.schema());
  const bool is_dear = found != density_of_.end() && found->second.seconds * density_.bytes >
                                                         density_.seconds * found->second.bytes;
  return {is_dear ? ArenaSide::End::kHigh : ArenaSide::End::kLow,
          static_cast<size_t>(boundary_bytes_)};
}

void OnlinePolicy::noteDensity(OpId op, const std::vector<ValueId>& made) {
  Density one{recorder_->node(op).seconds, 0};
  for (const ValueId v : made) one.bytes += static_cast<double>(at(v).bytes);
  for (Density* const sum : {&density_, &density_of_[&recorder_->op(op).handle.schema()]}) {
    sum->seconds += one.seconds;
    sum->bytes += one.bytes;
  }
}

}  // namespace poet
