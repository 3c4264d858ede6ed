// Plans of a coarse graph (graph/coarsening.h) as plans of the graph that it was made of, and back.
#pragma once

#include <optional>
#include <vector>

#include "graph/coarsening.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::planner {

// What a plan of the coarse graph replays before a coarse op it replays, on the fine graph, before
// the first op of that run. Immutable once built.
class Refinement {
 public:
  // `coarse`: a problem of the coarse graph; what it names must outlive this. All problems of that
  // graph with the same options have the same replays, whatever their price.
  Refinement(const Problem& coarse, const Coarsening& coarsening, const RecipeTable& fine_table,
             ProblemOptions options);

  const Problem& fine() const { return fine_; }
  ReplayPlan refined(const ReplayPlan& coarse) const;
  // nullopt where something is replayed within a run that cannot be replayed before it.
  std::optional<ReplayPlan> coarsened(const ReplayPlan& fine) const;

 private:
  const Problem& coarse_;
  const Coarsening& coarsening_;
  const Problem fine_;
  std::vector<int> fine_of_, coarse_of_;  // replays
};

}  // namespace poet::planner
