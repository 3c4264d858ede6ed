// dtr, dtr_eq, dtr_local: dynamic tensor rematerialization.
//
// Paper: Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, "Dynamic Tensor
// Rematerialization", ICLR 2021 (arXiv 2006.09616): run the step, and when memory is short evict
// the value with the least h = cost / (bytes x staleness) (section 4.1). The cost is the value's
// own (h_DTR-local), that of its evicted neighbourhood e* (h_DTR), or that of the union-find
// components of evicted values around it (h_DTR-eq), from which a value that comes back takes its
// own cost without splitting them.
//
// Chosen: the policy runs over the recorded step, sees nothing of what is to come, and what it does
// is the schedule; so the step follows it exactly, and at no cost for scores. Staleness is seconds
// since the last touch on the policy's own clock, replays included. A value that plain training
// lets go is evicted at once ("eager eviction"); nothing is banished, because everything that may
// leave can come back to the end of the step. All resident values are scored, without the paper's
// sampling. Where generator states or such make the plan exceed its budget, it runs again with that
// much less.
//
// Bound: none here; the paper: O(n) replays for n links in O(sqrt(n)) memory. Weakness: it evicts
// what will be wanted next, and at tight budgets it thrashes or fails where plans exist.
#include <algorithm>
#include <limits>

#include "methods/dtr_score.h"
#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::Problem;
using planner::Replay;

// Replays of one run, as a multiple of the first executions: beyond that it thrashes.
constexpr size_t kMostReplaysPerStage = 100;
constexpr int kCorrections = 12;
constexpr int kBudgets = 48;

// What the scores ask of a problem.
class Recipes {
 public:
  Recipes(const Problem& problem, const Asked& asked)
      : problem_(problem), may_leave_(asked.may_leave), readers_(problem.values.size()) {
    for (size_t r = 0; r < problem.replays.size(); ++r) {
      if (problem.replays[r].is_page) continue;
      for (const int u : problem.replays[r].inputs)
        readers_[static_cast<size_t>(u)].push_back(static_cast<int>(r));
    }
  }
  double secondsOf(int v) const { return recipeOf(v).seconds; }
  template <class Visit>
  void forInputs(int v, const Visit& visit) const {
    if (!may_leave_[static_cast<size_t>(v)]) return;
    for (const int u : recipeOf(v).inputs) visit(u);
  }
  template <class Visit>
  void forDependents(int v, const Visit& visit) const {
    for (const int r : readers_[static_cast<size_t>(v)]) {
      for (const int u : problem_.replays[static_cast<size_t>(r)].outputs) visit(u);
    }
  }

 private:
  const Replay& recipeOf(int v) const {
    const Evictable& value = problem_.values[static_cast<size_t>(v)];
    return problem_.replays[static_cast<size_t>(value.recipe)];
  }

  const Problem& problem_;
  const std::vector<char>& may_leave_;
  std::vector<std::vector<int>> readers_;  // by value: replays
};

class Dtr {
 public:
  Dtr(const Problem& problem, const Asked& asked, int64_t budget_bytes, DtrCost cost)
      : problem_(problem),
        asked_(asked),
        may_leave_(asked.may_leave),
        budget_(budget_bytes),
        recipes_(problem, asked),
        scores_(recipes_, cost),
        there_(problem.values.size(), 0),
        locks_(problem.values.size(), 0) {
    scores_.resize(problem.values.size());
    plan_.by_stage.resize(problem.stages.size());
    for (int v = 0; v < problem.numValues(); ++v) {
      if (value(v).first_stage < 0) put(v);
    }
  }

  // False where memory does not do.
  bool run(const planner::Deadline& deadline) {
    for (stage_ = 0; stage_ < problem_.numStages(); ++stage_) {
      if (deadline.over() || !runStage()) return false;
    }
    return true;
  }

  const planner::ReplayPlan& plan() const { return plan_; }

 private:
  static size_t at(int v) { return static_cast<size_t>(v); }
  const Evictable& value(int v) const { return problem_.values[at(v)]; }
  const Replay& recipeOf(int v) const { return problem_.replays[at(value(v).recipe)]; }

  bool runStage() {
    const planner::Stage& stage = problem_.stages[at(stage_)];
    for (const int u : stage.needs) {
      if (!materialize(u)) return false;
      ++locks_[at(u)];
    }
    if (!makeRoom(stage.fixed_during_bytes)) return false;
    if (stage.op < problem_.graph().endOfStep())
      clock_ += problem_.profile().firstSeconds(problem_.graph().op(stage.op));
    for (const int u : stage.needs) {
      --locks_[at(u)];
      scores_.noteTouch(u, clock_);
    }
    for (const int v : stage.born) put(v);
    letGo();
    return true;
  }

  // What plain training lets go. What may not leave goes when nothing can ask for it any more.
  void letGo() {
    const OpId op = problem_.stages[at(stage_)].op;
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (!there_[at(v)]) continue;
      const OpId death = problem_.graph().value(value(v).id).death;
      if (!may_leave_[at(v)]) {
        if (death <= op && asked_.until_stage[at(v)] <= stage_) remove(v);
      } else if (death == op && recipeOf(v).last_stage <= stage_) {
        evict(v);
      }
    }
  }

  bool materialize(int v) {
    if (there_[at(v)]) return true;
    // What may not leave is gone for good, and nothing may ask for it.
    if (!may_leave_[at(v)] || ++replays_ > kMostReplaysPerStage * problem_.stages.size())
      return false;
    const Replay& replay = recipeOf(v);
    for (const int u : replay.inputs) {
      if (!materialize(u)) return false;
      ++locks_[at(u)];
    }
    const int64_t fixed = problem_.stages[at(stage_)].fixed_before_bytes;
    if (!makeRoom(fixed + replay.replay_bytes)) return false;
    plan_.by_stage[at(stage_)].push_back(value(v).recipe);
    clock_ += replay.seconds;
    for (const int u : replay.inputs) {
      --locks_[at(u)];
      scores_.noteTouch(u, clock_);
    }
    for (const int w : replay.outputs) {
      if (!there_[at(w)]) put(w);
    }
    return true;
  }

  void put(int v) {
    there_[at(v)] = 1;
    scores_.noteTouch(v, clock_);
    scores_.noteReturn(v);
    used_ += value(v).bytes;
  }

  void remove(int v) {
    there_[at(v)] = 0;
    used_ -= value(v).bytes;
  }

  void evict(int v) {
    remove(v);
    scores_.noteEviction(v);
  }

  bool makeRoom(int64_t bytes) {
    while (used_ + bytes > budget_) {
      int best = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int v = 0; v < problem_.numValues(); ++v) {
        if (!there_[at(v)] || !may_leave_[at(v)] || locks_[at(v)] > 0) continue;
        if (recipeOf(v).last_stage >= stage_ || value(v).bytes == 0) continue;
        const double h = scores_.scoreOf(v, value(v).bytes, clock_);
        if (h >= least) continue;
        least = h;
        best = v;
      }
      if (best < 0) return false;
      evict(best);
    }
    return true;
  }

  const Problem& problem_;
  const Asked& asked_;
  const std::vector<char>& may_leave_;
  const int64_t budget_;
  const Recipes recipes_;
  DtrScores<Recipes> scores_;
  planner::ReplayPlan plan_;
  std::vector<char> there_;
  std::vector<int> locks_;
  int stage_ = 0;
  int64_t used_ = 0;
  double clock_ = 0;
  size_t replays_ = 0;
};

Schedule planWithScore(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, const char* name, DtrCost cost) {
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile, {.objective = options.minimize});
  const Asked asked = findAsked(problem);
  PlanChoice choice(problem, options, name);
  const auto peakWithin = [&](int64_t budget) {
    Dtr dtr(problem, asked, budget, cost);
    return dtr.run(choice.deadline()) ? choice.offer(dtr.plan()) : int64_t{-1};
  };
  int64_t budget = options.ram_budget_bytes;
  for (int i = 0; i < kCorrections && !choice.any(); ++i) {
    const int64_t peak = peakWithin(budget);
    if (peak <= options.ram_budget_bytes) break;
    budget -= peak - options.ram_budget_bytes;
  }
  if (choice.any()) return choice.finish("");
  // The policy counts what it evicts late, and the schedule does not hold it: with more room it may
  // still fit. The same budgets whatever was asked for: what is reported as the least does.
  const int64_t most = 2 * simulatePlain(graph, profile).peak_bytes;
  for (int i = 0; i <= kBudgets; ++i)
    peakWithin(problem.floor_bytes + (most - problem.floor_bytes) * i / kBudgets);
  if (choice.any()) return choice.finish("");
  if (choice.deadline().over())
    return choice.without(Status::kTimeLimit, "the policy did not come to its end in time");
  return choice.finish("the least budget that the policy does with");
}

}  // namespace

Schedule planDtr(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr", DtrCost::kNeighbourhood);
}

Schedule planDtrEq(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_eq", DtrCost::kComponents);
}

Schedule planDtrLocal(const Graph& graph, const DeviceProfile& profile,
                      const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_local", DtrCost::kLocal);
}

}  // namespace poet::methods
