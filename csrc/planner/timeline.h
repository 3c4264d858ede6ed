// Timeline: the planner's own arithmetic of a ReplayPlan, in exact bytes. It shares no code with
// the simulator, whose word is final; the two must agree.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// A step is one replay of the plan, or the first execution of a stage's op.
struct TimelineStep {
  int stage = 0;
  int replay = -1;    // -1: the first execution
  int64_t bytes = 0;  // resident while it runs
};

// Value v is resident from the end of step `arrival` (when it is made) through step `last`.
// An arrival of -1: it is there when the step begins.
struct Residency {
  int value = -1;
  int arrival = 0;
  int last = 0;
};

// A small value that replays read after its natural death: held until step `last`.
struct Holding {
  ValueId id;
  int last = 0;
};

struct Timeline {
  std::vector<TimelineStep> steps;
  std::vector<Residency> residencies;  // by value, then by arrival
  std::vector<Holding> holdings;       // by value id
  std::vector<int> random_stages;      // first executions whose generator state is kept
  std::vector<int> paged_out;          // values that go to the store, ascending
  int64_t peak_bytes = 0;
  OpId peak_op;
  double replay_seconds = 0;  // replays and transfers
  double replay_cost = 0;     // in the objective, in seconds of plain computation
};

// The plan must be well formed: every replay in a stage in which it may run (Problem::runnable).
Timeline makeTimeline(const Problem& problem, const ReplayPlan& plan);

// Removes replays (page-ins too) that nothing reads before their outputs are made again. Never
// raises the peak or the cost.
void dropUselessReplays(const Problem& problem, ReplayPlan& plan);

}  // namespace poet::planner
