// PolicyRun: an eviction policy run over the recorded step: it sees what has been and nothing of
// what is to come, and what it does is the plan. Policies differ in how they make room.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "methods/dtr_score.h"
#include "methods/live_policy.h"
#include "methods/plan_walk.h"
#include "planner/clock.h"
#include "planner/planner.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"

namespace poet::methods {

// What the scores ask of a problem.
class Recipes {
 public:
  Recipes(const planner::Problem& problem, const planner::Asked& asked)
      : problem_(problem), asked_(asked) {}
  double secondsOf(int v) const { return recipeOf(v).seconds; }
  template <class Visit>
  void forInputs(int v, const Visit& visit) const {
    if (!asked_.may_leave[static_cast<size_t>(v)]) return;
    for (const int u : recipeOf(v).inputs) visit(u);
  }
  template <class Visit>
  void forDependents(int v, const Visit& visit) const {
    for (const int r : asked_.readers[static_cast<size_t>(v)]) {
      for (const int u : problem_.replays[static_cast<size_t>(r)].outputs) visit(u);
    }
  }

 private:
  const planner::Replay& recipeOf(int v) const {
    const planner::Evictable& value = problem_.values[static_cast<size_t>(v)];
    return problem_.replays[static_cast<size_t>(value.recipe)];
  }

  const planner::Problem& problem_;
  const planner::Asked& asked_;
};

// The problem has no pages. It and `asked` must outlive the run.
class PolicyRun {
 public:
  PolicyRun(const planner::Problem& problem, const planner::Asked& asked, DtrCost cost,
            LettingGo letting_go = LettingGo::kEvict);
  PolicyRun(const PolicyRun&) = delete;
  PolicyRun& operator=(const PolicyRun&) = delete;
  virtual ~PolicyRun() = default;

  // Once. False where memory does not do.
  bool run(const planner::Deadline& deadline);

  const planner::ReplayPlan& plan() const { return plan_; }
  // What the policy has to say about its run, for Schedule::message.
  virtual std::string note() const { return ""; }

 protected:
  static size_t at(int i) { return static_cast<size_t>(i); }
  const planner::Problem& problem() const { return problem_; }
  const planner::Evictable& value(int v) const { return problem_.values[at(v)]; }
  const planner::Replay& recipeOf(int v) const { return problem_.replays[at(value(v).recipe)]; }
  const planner::Stage& stage() const { return problem_.stages[at(stage_)]; }
  int stageIndex() const { return stage_; }
  bool there(int v) const { return there_[at(v)]; }
  bool mayLeave(int v) const { return asked_.may_leave[at(v)]; }
  // Now: nothing that runs reads it, and nothing will write to it.
  bool mayBeEvicted(int v) const;
  double clock() const { return clock_; }
  DtrScores<Recipes>& scores() { return scores_; }

  void evict(int v);

  // Everything that the op of the stage, or a replay before it, asks memory for. What stays of it
  // arrives when it has run.
  virtual bool makeRoomForOp() = 0;
  virtual bool makeRoomForReplay(const planner::Replay& replay) = 0;
  virtual void replayDone() {}
  virtual void opDone() {}
  virtual void arrived(int) {}
  virtual void departed(int) {}

 private:
  bool runStage();
  void letGo();
  void banishWhatIsDead();
  bool isDead(int v) const;
  bool isNeededByEvicted(int v) const;
  void banish(int v);
  bool bring(const std::vector<int>& wanted);
  bool materialize(int v);
  void put(int v);
  void remove(int v);

  const planner::Problem& problem_;
  const planner::Asked& asked_;
  const Recipes recipes_;
  DtrScores<Recipes> scores_;
  const LettingGo letting_go_;
  planner::ReplayPlan plan_;
  std::vector<char> there_;
  std::vector<char> banished_, pinned_;  // by value
  std::vector<int> locks_;
  int stage_ = 0;
  double clock_ = 0;
  size_t replays_ = 0;
};

using MakePolicyRun = std::function<std::unique_ptr<PolicyRun>(
    const planner::Problem&, const planner::Asked&, int64_t budget_bytes)>;

// Runs the policy with the budget, and with less where generator states or such make the plan
// exceed it; where that gives no plan, with others; and then the next policy.
Schedule planByPolicy(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                      const char* method, const std::vector<MakePolicyRun>& policies);

}  // namespace poet::methods
