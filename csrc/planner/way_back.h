// How a value that is missing comes back, and what that costs as things stand: what the plans that
// walk the step once (greedy.h, depth_first.h) ask about each value.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "planner/problem.h"

namespace poet::planner {

class WayBack {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  // `in_memory` by value; it and the problem must outlive this. Chains of more than `longest`
  // replays are not followed further when a cost is estimated; their cost so far counts twice.
  WayBack(const Problem& problem, const std::vector<char>& in_memory,
          int longest = std::numeric_limits<int>::max());

  // In stage t: the page-in or the recipe, whatever costs less; -1: not at all.
  int replayFor(int v, int t);
  // Of bringing v back in stage `next`, in the objective, if everything that is in memory stays;
  // kNever where that is impossible by then.
  double cost(int v, int next) { return cost(v, next, /*by_recipe=*/false); }

  // A replay of the plan: what is paid once is paid from here on. Returns the bytes of generator
  // states that it keeps for the rest of the step, from their first execution on.
  int64_t noteReplay(int r);

 private:
  static size_t at(int i) { return static_cast<size_t>(i); }
  double pageCost(int page) const;
  // by_recipe: v itself by its recipe.
  double cost(int v, int next, bool by_recipe);

  const Problem& problem_;
  const std::vector<char>& in_memory_;
  const int longest_;
  std::vector<char> noted_;  // by replay
  std::vector<int> mark_;    // by replay: the round that met it last
  std::vector<int> todo_;
  int round_ = 0;
};

}  // namespace poet::planner
