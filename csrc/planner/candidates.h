// Which replays the program may choose from, by stage: the set C(t) of planner notes
// (docs/planner.md).
#pragma once

#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// By stage: indices into Problem::replays in the order of the micro-steps. An index may occur
// several times (rounds).
using Candidates = std::vector<std::vector<int>>;

// The `count` latest useful ancestors of each stage's inputs. Useful: it may run there, and plain
// training last touched one of its outputs at least `near` stages before.
Candidates ancestorCandidates(const Problem& problem, int count, int near);

// Every replay in every stage in which it may run, `rounds` times over. Leaves out what no plan can
// use, replays whose outputs nothing touches from that stage on, and what some best plan does
// without: dominated recomputes, and page-ins of what is touched neither there nor in the `ahead`
// stages after it.
Candidates allCandidates(const Problem& problem, int rounds, int ahead = 0);

// Adds what `plan` uses, so that it is a point of the program.
void include(const Problem& problem, const ReplayPlan& plan, Candidates& candidates);

// Number of (stage, replay) pairs.
size_t countCandidates(const Candidates& candidates);

}  // namespace poet::planner
