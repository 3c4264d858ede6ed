// What all replays to come would cost, roughly, if what is in memory now were what is kept.
//
// Note [Forecast]
// Values are wanted again behind the peak of plain training. Sorted by when, those in memory split
// the others into *gaps*: a gap is walked again from the next value in memory that is wanted later
// (in a chain: the one made before it). When its turn comes, the values wanted sooner have left,
// and what they took is free: with room for k of its values a gap of n - 1 of them costs what
// reversing a chain of n links with k spare checkpoints does, r runs of a link for C(k + r, k)
// links, times its mean cost. So a gap that is long is cheap where much room is to come, and one
// that is wanted soon is dear: checkpoints gather where they serve last. Source: the number of
// repetitions is Griewank's (Griewank, Walther, TOMS 2000, section 2). What is kept is not theirs:
// values, costs and sizes may differ, and nothing is placed, only compared. Weakness: steps that
// are no chains have values in a gap that do not depend on each other.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "planner/problem.h"

namespace poet::planner {

// Runs of links beyond the first that reversing a chain of so many links takes, `spare` checkpoints
// at hand. Links may be a fraction; at most one: none.
double reversalRuns(double links, int64_t spare);

class ReplayForecast {
 public:
  // The problem must outlive it.
  explicit ReplayForecast(const Problem& problem);

  struct Moment {
    int stage = 0;
    int64_t budget_bytes = 0;           // less what replays so far hold for good
    int64_t excess_bytes = 0;           // what has to go
    const std::vector<char>& resident;  // by value
    const std::vector<char>& locked;    // by value: in memory, and read in this stage
  };

  // Takes the moment in. Costs below are of that one.
  void lookAt(const Moment& moment);
  // The rise of the forecast if v left, in seconds of plain computation; may be negative, since its
  // room serves those that are wanted sooner. 0 where v is not wanted behind the peak.
  double riseWithout(int v);
  bool isWantedLater(int v) const { return place_[static_cast<size_t>(v)] >= 0; }

  // Note [Placement]
  // Which of the values that are in memory, or will be made before the peak, or are `coming` (on
  // the way to what the stage lacks), to have where those to come are walked again: the set of the
  // least forecast that fits, by dynamic programming over (value, how many are kept that are wanted
  // later). Where all values are alike its forecast is what the whole chain then takes; else the
  // bytes of each partial choice are those of its best one.
  // By value; empty where that is too much to compute.
  std::vector<char> placement(const Moment& moment, const std::vector<int>& coming);

 private:
  // Values that are missing. While they are walked the stages that want them keep
  // what they need, and a link what it reads and works with.
  struct Gap {
    double cost = 0;
    double bytes = 0;
    int values = 0;
    int64_t stage_bytes = 0;
    int64_t link_bytes = 0;
  };

  struct Wanted {
    int stage = 0;
    int value = 0;
    bool operator<(const Wanted& other) const {
      return stage != other.stage ? stage < other.stage : value > other.value;
    }
  };

  class Placing;

  std::vector<Wanted> wantedFrom(const Moment& moment, bool with_locked) const;
  // For what is kept, while the stages up to the peak run, or what comes is made.
  int64_t roomForKept(const Moment& moment, const std::vector<int>& coming) const;
  int wantedAt(int v, int stage) const;
  double costOf(int v) const;
  void add(Gap& gap, int v, int stage) const;
  Gap merged(size_t resident) const;
  int64_t freeBytes(const Gap& gap, int64_t later_bytes) const;
  double costOf(const Gap& gap, int64_t later_bytes) const;
  const std::vector<double>& soonerWith(int64_t bytes);

  const Problem& problem_;
  int peak_stage_ = 0;
  std::vector<int64_t> stage_bytes_;  // while a stage's replays run: fixed values, and its needs
  int64_t budget_bytes_ = 0;
  int64_t placing_work_ = 0;
  std::vector<int> residents_;        // in memory, in the order in which they are wanted
  std::vector<int> wanted_at_;        // likewise: stages
  std::vector<int> place_;            // by value: in residents_, or -1
  std::vector<Gap> gaps_;             // gap i is walked from resident i, the last one from none
  std::vector<int64_t> later_bytes_;  // by gap: of values in memory that are wanted later
  std::vector<double> later_cost_;    // by gap: of it and all that follow
  double cost_ = 0;                   // with everything in memory that is
  // By bytes that leave: cost of the first i gaps.
  std::vector<std::pair<int64_t, std::vector<double>>> sooner_cost_;
};

}  // namespace poet::planner
