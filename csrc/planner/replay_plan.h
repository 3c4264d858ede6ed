// ReplayPlan: a schedule reduced to what decides it: which recipes are replayed in which stage, in
// which order. When each value is resident follows: from every arrival up to the last touch before
// the next one (Timeline).
#pragma once

#include <vector>

namespace poet::planner {

struct ReplayPlan {
  // By stage: indices into Problem::replays in the order in which they run, before the stage's op.
  std::vector<std::vector<int>> by_stage;

  bool empty() const {
    for (const auto& stage : by_stage) {
      if (!stage.empty()) return false;
    }
    return true;
  }
  friend bool operator==(const ReplayPlan&, const ReplayPlan&) = default;
};

class Problem;

// A plan of `from` as one of `to`, another problem of the same graph and recipe table. Replays that
// `to` does not have are left out.
ReplayPlan translated(const ReplayPlan& plan, const Problem& from, const Problem& to);

}  // namespace poet::planner
