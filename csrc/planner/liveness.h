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
// Note [Liveness by events]
// The events of a value are its birth, its touches and the replays that make it; it is resident
// between two of them exactly if the later one is a touch. One replay more or less thus changes the
// residency of its outputs and inputs between two neighbouring events each, and nothing else: a sum
// over the blocks in between, which costs a nanosecond a block, and the needs of the blocks at both
// ends. Replays of a stage stand in ascending order.
//
// One change at a time: insert and remove, settle(), look at the totals, then keep() or undo().
// Replays that nothing reads are dropped by settle(). Totals are exact in bytes but for small
// values that are held (constants, as in the program).
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
  // Whether v is resident where replay r would run in stage t, which does not hold it (yet).
  bool residentAt(int t, int r, int v) const {
    return isTouchedNext(v, keyOf(block_of_[static_cast<size_t>(t)], r));
  }
  double seconds() const { return seconds_; }  // replays and transfers
  double cost() const { return cost_; }        // in the objective; each transfer wakes the store
  // Sum over stages of what lies above the budget, and the greatest of them.
  double excessBytes() const { return excess_ + static_cast<double>(wrong_start_); }
  int64_t peakBytes() const;  // above all bounds for a plan that no schedule can be
  // Blocks and events that changes have looked at so far.
  int64_t work() const { return work_; }

  void insert(int t, int r);  // no effect where it is there already
  void remove(int t, int r);
  void settle();  // drops what has become useless; totals hold after it
  void keep();
  void undo();

 private:
  using Key = int64_t;  // block and place in it
  // Of one value: a touch, its birth, or its making by a replay (Note [Liveness by events]).
  struct Event {
    static constexpr int kTouch = -1, kBirth = -2;
    Key key = 0;
    int kind = kTouch;  // or the replay that makes it
  };
  struct Previous {
    int block = -1;  // -1: the start of the step
    int maker = -1;  // the replay that makes the value there; -1: another event
  };
  struct Change {
    enum Kind : uint8_t { kInsert, kRemove, kSpan, kNeed } kind;
    int first = 0;     // replay; first block of a span; block
    int last = 0;      // block; last block of a span
    double bytes = 0;  // of a span; over_ before
  };

  void findBlocks(const ReplayPlan& plan);
  void findEvents();
  void findPlain();
  Key keyOf(int block, int place) const { return static_cast<Key>(block) * width_ + place; }
  int execution() const { return width_ - 2; }  // place of the first execution's touches
  int birth() const { return width_ - 1; }
  // Is the value's next event after that a touch? Then it is resident up to it.
  bool isTouchedNext(int v, Key after) const;
  Previous previousEvent(int v, Key before) const;
  void place(int r, int b);
  void displace(int r, int b);
  void addEvent(int v, const Event& event);
  void dropEvent(int v, Key key);
  void addSpan(int v, const Previous& from, int to, int sign);
  void markStale(int b);
  void refresh(int b);
  void count(int r, int by);
  void sumExcess();
  double addToLive(int first, int last, double bytes);

  const Problem& problem_;
  const int64_t budget_;
  const int width_;  // places in a block: each replay, the first execution, births
  ReplayPlan plan_;
  std::vector<int> block_of_;        // by stage
  std::vector<int> stage_of_block_;  // the last stage of each block
  std::vector<int64_t> quiet_;       // by block: greatest fixed bytes of the stages before its last
  std::vector<std::vector<Event>> events_;  // by value, ascending
  std::vector<std::vector<int>> at_;        // by replay: its blocks, ascending
  // Bytes as doubles, exact below 2^53: a processor has the greater of two of those in one
  // instruction, several at a time.
  std::vector<double> live_bytes_;  // before each block, and at the end
  // By block: what its greatest step needs above that and above the budget, and the generator
  // states that are part of it.
  std::vector<double> over_, generators_;
  std::vector<int> stale_;  // blocks whose need is to be found again
  std::vector<char> is_stale_;
  struct Place {
    int block;
    int replay;
  };
  std::vector<Place> suspects_;  // replays whose outputs may not be read any more
  std::vector<Change> changes_;  // since keep()
  double seconds_ = 0, saved_seconds_ = 0;
  double cost_ = 0, saved_cost_ = 0;
  // Bytes that the plan finds in memory when the step begins, and that are away then: no plan may.
  int64_t wrong_start_ = 0, saved_wrong_start_ = 0;
  double excess_ = 0, saved_excess_ = 0;
  bool generators_changed_ = false;
  std::vector<double> saved_generators_;
  std::vector<int> seen_;  // by value: round in which `resident_` was set (refresh)
  std::vector<char> resident_;
  int round_ = 0;
  int64_t work_ = 0;
};

}  // namespace poet::planner
