// What the methods for chains say (run this link forward, keep that, run it backward) as a
// ReplayPlan.
#pragma once

#include <vector>

#include "methods/forward_chain.h"
#include "methods/plan_walk.h"

namespace poet::methods {

// Note [Words of a chain's schedule]
// x_i is the boundary that link i hands on, from 0; link 0 reads what is there before the chain.
// The words are those of Beaumont et al. (2019, section 3), who write F_none, F_ck, F_all and B:
//   kForward      link i makes x_i, its other values go, and x_{i-1} goes
//   kForwardKeep  likewise, and x_{i-1} stays (a checkpoint)
//   kForwardAll   x_{i-1}, x_i and what link i's backward reads stay
//   kBackward     the backward of link i; then what it made goes
//   kPageIn       x_i comes back from the store, or with kPageInAll all that kForwardAll kept
//   kForwardOut   as kForwardAll, and all of it goes to the store
// Each link's first forward is its first execution, and so is every backward; further forwards are
// replays. A value that goes to the store is one that goes and is paged in later.
enum class Word {
  kForward,
  kForwardKeep,
  kForwardAll,
  kForwardOut,
  kBackward,
  kPageIn,
  kPageInAll
};

struct Step {
  Word word;
  int link;

  friend bool operator==(const Step&, const Step&) = default;
};

// One list of steps a chain. The walk must be at its beginning; it ends at the end of the step.
planner::ReplayPlan planOfChains(const planner::Problem& problem, const std::vector<Chain>& chains,
                                 const std::vector<std::vector<Step>>& steps);

// Chen et al.: segments of links, each from the boundary before it: kept, and computed again as a
// whole when its backward begins. `ends`: the last link of each segment, ascending, the chain's
// last one included; that segment is not computed again, its backward follows at once.
std::vector<Step> stepsOfSegments(const std::vector<int>& ends);

// Every link's values stay.
std::vector<Step> stepsThatKeepAll(size_t num_links);

}  // namespace poet::methods
