// PlanWalk: writes a ReplayPlan in running order, by saying what leaves memory and what comes back.
#pragma once

#include <span>
#include <vector>

#include "planner/asked.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::methods {

inline std::vector<char> findMayLeave(const planner::Problem& problem) {
  return planner::findAsked(problem).may_leave;
}

// The problem must outlive it. Stages are walked in order: advance(t) for t = 0, 1, ...; between
// two of them what leaves and comes back is said for the stage that follows.
class PlanWalk {
 public:
  explicit PlanWalk(const planner::Problem& problem);

  bool mayLeave(int v) const { return asked_.may_leave[static_cast<size_t>(v)]; }
  // From the stage to come on; what can not be asked for may be beyond recall.
  bool mayBeAskedFor(int v) const { return asked_.until_stage[static_cast<size_t>(v)] >= stage_; }
  bool there(int v) const { return there_[static_cast<size_t>(v)]; }
  int stage() const { return stage_; }  // the one to come

  // Nothing that comes later counts on v. No effect where v may not leave or will be written to,
  // and none on the plan: when it really goes follows from its touches (planner/timeline.h).
  void leave(int v) {
    if (!mayLeave(v)) return;
    // Its recipe's last write may be to another of its outputs.
    const int r = problem_.values[static_cast<size_t>(v)].recipe;
    if (problem_.replays[static_cast<size_t>(r)].last_stage < stage_) leaveForStore(v);
  }
  // For plans that page: only pageIn() brings it back.
  void leaveForStore(int v) {
    const planner::Evictable& value = problem_.values[static_cast<size_t>(v)];
    if (value.pin_stage < stage_) there_[static_cast<size_t>(v)] = 0;
  }

  // Recomputes, before the stage to come, all that is missing of `wanted`, with what that needs in
  // turn. Returns what was computed, ascending: all of it is there now.
  std::vector<int> bring(std::span<const int> wanted);
  void pageIn(int v);

  // Runs the first execution of the stage to come, after bringing what it misses.
  void advance();
  void advanceTo(int stage) {
    while (stage_ < stage) advance();
  }

  planner::ReplayPlan take() { return std::move(plan_); }

 private:
  bool runsHere(int r) const { return r >= 0 && problem_.runnable(r, stage_); }

  const planner::Problem& problem_;
  const planner::Asked asked_;
  std::vector<char> there_;
  std::vector<char> chosen_;  // by replay, within bring()
  planner::ReplayPlan plan_;
  int stage_ = 0;
};

}  // namespace poet::methods
