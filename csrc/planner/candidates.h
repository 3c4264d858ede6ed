// Which replays the program may choose from, by stage: the set C(t) of planner notes
// (docs/planner.md).
#pragma once

#include <limits>
#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// By stage: indices into Problem::replays in the order of the micro-steps. An index may occur
// several times (rounds).
using Candidates = std::vector<std::vector<int>>;

// Note [Replays that cost too much]
// A plan that replays something costs at least what every plan does and one run of it. So no plan
// that is better than a known one has a replay that alone costs more, and the lesser of the known
// plan's cost and the bound of a program without such replays bounds all plans. `most_cost`: what a
// replay may cost at most, the first one of its plan, beside Problem::constant_cost.
constexpr double kAnyCost = std::numeric_limits<double>::infinity();
inline double mostCostBelow(const Problem& problem, double best_cost) {
  return best_cost - problem.constant_cost;
}

// The `count` latest useful ancestors of each stage's inputs. Useful: it may run there, and plain
// training last touched one of its outputs at least `near` stages before.
Candidates ancestorCandidates(const Problem& problem, int count, int near,
                              double most_cost = kAnyCost);

struct CandidateOptions {
  int rounds = 1;  // how often a stage may go through its replays
  // The replays of a stage serve so many stages after it, too, and the stages between have none.
  int ahead = 0;
  double most_cost = kAnyCost;
  // Whether memory counts while a replay runs. Where it counts at first executions alone, replays
  // without an anchor are left out as well.
  bool rows_at_replays = true;
  // Ends early, with more than so many: whoever only counts need not know how many more.
  size_t enough = std::numeric_limits<size_t>::max();
};

// Every replay in every stage in which it may run. Leaves out what no plan can use, replays whose
// outputs nothing touches from that stage on, and what some best plan does without: dominated
// recomputes, page-ins of what is touched neither there nor in the stages that are served with it,
// and replays without an anchor.
//
// Note [Anchored replays]
// Where memory counts at first executions alone, a replay of stage t whose outputs the op of t does
// not touch may as well run in stage t + 1, at the cost of its inputs' bytes and to the gain of its
// outputs', both during op t; or in stage t - 1, the other way round. One of the two takes no more
// memory, unless what is in memory for other reasons changes between ops t - 1 and t: op t - 1
// touches an input, or the replay comes with others of its stage of which one is so *anchored*. So
// some best plan has anchored replays only, and of those whose outputs are no smaller than their
// inputs only such as are touched in their own stage. Replays that come together are linked by
// values that they make or read, and all on the way from an anchor are paid for: where that exceeds
// most_cost they are left out. docs/planner.md has the proof.
Candidates allCandidates(const Problem& problem, const CandidateOptions& options = {});

// Adds what `plan` uses, so that it is a point of the program.
void include(const Problem& problem, const ReplayPlan& plan, Candidates& candidates);

// Number of (stage, replay) pairs.
size_t countCandidates(const Candidates& candidates);

}  // namespace poet::planner
