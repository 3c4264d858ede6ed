#include "methods/policy_run.h"

#include <algorithm>

#include "methods/plan_choice.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Asked;
using planner::Problem;
using planner::Replay;

// Replays of one run, as a multiple of the first executions: beyond that it thrashes.
constexpr size_t kMostReplaysPerStage = 100;
constexpr int kCorrections = 12;
constexpr int kPolicyBudgets = 48;
constexpr int kMostFailures = 8;  // in a row

}  // namespace

PolicyRun::PolicyRun(const Problem& problem, const Asked& asked, DtrCost cost, LettingGo letting_go)
    : problem_(problem),
      asked_(asked),
      recipes_(problem, asked),
      scores_(recipes_, cost),
      letting_go_(letting_go),
      there_(problem.values.size(), 0),
      banished_(problem.values.size(), 0),
      pinned_(problem.values.size(), 0),
      locks_(problem.values.size(), 0) {
  scores_.resize(problem.values.size());
  plan_.by_stage.resize(problem.stages.size());
}

bool PolicyRun::run(const planner::Deadline& deadline) {
  for (stage_ = 0; stage_ < problem_.numStages(); ++stage_) {
    if (deadline.over() || !runStage()) return false;
  }
  return true;
}

bool PolicyRun::mayBeEvicted(int v) const {
  return there_[at(v)] && mayLeave(v) && !pinned_[at(v)] && locks_[at(v)] == 0 &&
         recipeOf(v).last_stage < stage_;
}

bool PolicyRun::runStage() {
  if (!bring(stage().needs)) return false;
  if (!makeRoomForOp()) return false;
  if (stage().op < problem_.graph().endOfStep())
    clock_ += problem_.profile().firstSeconds(problem_.graph().op(stage().op));
  for (const int u : stage().needs) --locks_[at(u)];
  for (const int v : stage().born) {
    put(v);
    scores_.noteTouch(v, clock_);
  }
  letGo();
  opDone();
  return true;
}

// What plain training lets go. What may not leave goes when nothing can ask for it any more.
void PolicyRun::letGo() {
  if (letting_go_ == LettingGo::kBanish) return banishWhatIsDead();
  const OpId op = stage().op;
  for (int v = 0; v < problem_.numValues(); ++v) {
    if (!there_[at(v)]) continue;
    const OpId death = problem_.graph().value(value(v).id).death;
    if (!mayLeave(v)) {
      if (death <= op && asked_.until_stage[at(v)] <= stage_) remove(v);
    } else if (death == op && recipeOf(v).last_stage <= stage_) {
      evict(v);
    }
  }
}

// Readers before what they read: what is needed for a dead value alone goes with it.
void PolicyRun::banishWhatIsDead() {
  for (int v = problem_.numValues(); v-- > 0;) {
    if (!banished_[at(v)] && isDead(v) && !isNeededByEvicted(v)) banish(v);
  }
}

bool PolicyRun::isDead(int v) const {
  if (problem_.graph().value(value(v).id).death > stage().op) return false;
  return !mayLeave(v) || recipeOf(v).last_stage <= stage_;
}

bool PolicyRun::isNeededByEvicted(int v) const {
  bool needed = false;
  recipes_.forDependents(
      v, [&](int w) { needed = needed || (mayLeave(w) && !there_[at(w)] && !banished_[at(w)]); });
  return needed;
}

void PolicyRun::banish(int v) {
  banished_[at(v)] = 1;
  if (there_[at(v)]) remove(v);
  recipes_.forDependents(v, [&](int w) { pinned_[at(w)] = 1; });
}

// Touches and locks all of them, those that are there before the others come back: else what comes
// back would take their places, and they would have to come back in turn. What comes back for them
// is touched as they were when it was asked for, as in the authors' simulator.
bool PolicyRun::bring(const std::vector<int>& wanted) {
  for (const int u : wanted) {
    ++locks_[at(u)];
    scores_.noteTouch(u, clock_);
  }
  return std::all_of(wanted.begin(), wanted.end(), [this](int u) { return materialize(u); });
}

bool PolicyRun::materialize(int v) {
  if (there_[at(v)]) return true;
  // What may not leave is gone for good, and nothing may ask for it.
  if (!mayLeave(v) || ++replays_ > kMostReplaysPerStage * problem_.stages.size()) return false;
  const Replay& replay = recipeOf(v);
  if (!bring(replay.inputs)) return false;
  if (!makeRoomForReplay(replay)) return false;
  plan_.by_stage[at(stage_)].push_back(value(v).recipe);
  clock_ += replay.seconds;
  for (const int u : replay.inputs) --locks_[at(u)];
  for (const int w : replay.outputs) {
    if (!there_[at(w)]) put(w);
  }
  replayDone();
  return true;
}

void PolicyRun::put(int v) {
  there_[at(v)] = 1;
  scores_.noteReturn(v);
  arrived(v);
}

void PolicyRun::remove(int v) {
  there_[at(v)] = 0;
  departed(v);
}

void PolicyRun::evict(int v) {
  remove(v);
  scores_.noteEviction(v);
}

Schedule planByPolicy(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
                      const char* method, const std::vector<MakePolicyRun>& policies) {
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile, {.objective = options.minimize});
  const Asked asked = planner::findAsked(problem);
  PlanChoice choice(problem, options, method);
  const int64_t plain = simulatePlain(graph, profile).peak_bytes;
  for (const MakePolicyRun& make : policies) {
    const auto peakWithin = [&](int64_t budget) {
      const std::unique_ptr<PolicyRun> policy = make(problem, asked, budget);
      return policy->run(choice.deadline()) ? choice.offer(policy->plan(), policy->note())
                                            : int64_t{-1};
    };
    int64_t budget = options.ram_budget_bytes;
    for (int i = 0; i < kCorrections && !choice.any(); ++i) {
      const int64_t peak = peakWithin(budget);
      if (peak <= options.ram_budget_bytes) break;
      budget -= peak - options.ram_budget_bytes;
    }
    if (choice.any()) return choice.finish("");
    // The policy counts what it evicts late, and the schedule does not hold it: with more room it
    // may still fit. The same budgets whatever was asked for: what is reported as the least does.
    // Twice the plain peak, then from as much above it as it is above the floor down, and no
    // further where the policy only thrashes.
    peakWithin(2 * plain);
    int failures = 0;
    for (int i = kPolicyBudgets; i >= 0 && failures < kMostFailures; --i) {
      const int64_t tried =
          problem.floor_bytes + 2 * (plain - problem.floor_bytes) * i / kPolicyBudgets;
      failures = peakWithin(tried) < 0 ? failures + 1 : 0;
    }
    if (choice.any()) return choice.finish("");
  }
  if (choice.deadline().over())
    return choice.without(Status::kTimeLimit, "the policy did not come to its end in time");
  return choice.finish("the least budget that the policy does with");
}

}  // namespace poet::methods
