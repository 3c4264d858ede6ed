// Liveness of a ReplayPlan, kept up to date under changes: what is resident when, and by how much a
// budget is exceeded.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// Stages in which nothing is touched, made or replayed are not kept one by one: they count through
// the next stage in which something is (its *block*).
//
// One change at a time: change() a few stages, look at the totals, then keep() or undo(). Replays
// that nothing reads are dropped as they are met. Totals are exact in bytes but for small values
// that are held (constants, as in the program).
class Liveness {
 public:
  Liveness(const Problem& problem, const ReplayPlan& plan, int64_t budget_bytes);

  // The stage of t's block: where a replay for stage t stands. Its replays may be asked for and
  // changed, no others.
  int blockStage(int t) const {
    return stage_of_block_[static_cast<size_t>(block_of_[static_cast<size_t>(t)])];
  }
  const std::vector<int>& replaysAt(int t) const { return plan_.by_stage[static_cast<size_t>(t)]; }
  const ReplayPlan& plan() const { return plan_; }
  bool liveBefore(int t, int v) const {
    return (word(block_of_[static_cast<size_t>(t)], v) >> (v & 63)) & 1;
  }
  double seconds() const { return seconds_; }  // replays and transfers
  double cost() const { return cost_; }        // in the objective; each transfer wakes the store
  // Sum over stages of what lies above the budget, and the greatest of them.
  double excessBytes() const { return excess_ + wrong_start_; }
  int64_t peakBytes() const;  // above all bounds for a plan that no schedule can be

  void insert(int t, int r);  // no effect where it is there already
  void remove(int t, int r);
  void settle();  // brings liveness up to date after inserts and removes
  void keep();
  void undo();

 private:
  struct Saved {
    int block = 0;
    std::vector<int> replays;
    std::vector<uint64_t> live;
    int64_t live_bytes = 0;
    int64_t need = 0;
  };

  void findBlocks();
  uint64_t word(int b, int v) const {
    return live_[static_cast<size_t>(b) * words_ + static_cast<size_t>(v >> 6)];
  }
  void save(int b);
  void markDirty(int b);
  bool sweep(int b);  // true where liveness before the block changed
  void count(int r, int by);
  void sumExcess();
  int64_t excessAt(int b) const;

  const Problem& problem_;
  const int64_t budget_;
  const size_t words_;
  ReplayPlan plan_;
  std::vector<int> block_of_;        // by stage
  std::vector<int> stage_of_block_;  // the last stage of each block
  std::vector<int64_t> quiet_;       // by block: greatest fixed bytes of the stages before its last
  std::vector<uint64_t> live_;       // before each block, words_ each; one more row for the end
  std::vector<int64_t> live_bytes_;  // likewise
  std::vector<int64_t> need_;        // greatest step of each block, generator states left out
  std::vector<int64_t> generators_;  // bytes of generator states during each block
  std::vector<int> used_;            // by replay: times in the plan
  std::vector<char> saved_mark_, dirty_;
  std::vector<Saved> saved_;
  size_t num_saved_ = 0;
  int highest_dirty_ = -1;
  int num_dirty_ = 0;
  double seconds_ = 0, saved_seconds_ = 0;
  double cost_ = 0, saved_cost_ = 0;
  // Bytes that the plan finds in memory when the step begins, and that are away then: no plan may.
  double wrong_start_ = 0, saved_wrong_start_ = 0;
  std::vector<int> starts_away_;  // values
  double excess_ = 0, saved_excess_ = 0;
  bool generators_changed_ = false;
  std::vector<int64_t> saved_generators_;
  std::vector<uint64_t> scratch_;
};

}  // namespace poet::planner
