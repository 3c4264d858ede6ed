// The bytes that no schedule can go below, whatever it recomputes or pages.
#pragma once

#include <cstdint>

#include "planner/problem.h"

namespace poet::planner {

struct Floor {
  int64_t bytes = 0;
  OpId op;  // that needs them; Graph::endOfStep() where it is what stays after the step
};

// Of every schedule, not only of those that `problem` models: where values too small to be a choice
// were made constants of it, the floor is that of a problem in which nothing is. `options` are
// those that the problem was made with.
Floor floorOfEverySchedule(const Problem& problem, const RecipeTable& table,
                           const ProblemOptions& options);

}  // namespace poet::planner
