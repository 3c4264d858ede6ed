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
#include <cmath>
#include <limits>

#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"
#include "schedule/simulator.h"

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::Problem;
using planner::Replay;

enum class Score { kNeighbourhood, kComponents, kLocal };

constexpr double kLeastSeconds = 1e-9;
// Replays of one run, as a multiple of the first executions: beyond that it thrashes.
constexpr size_t kMostReplaysPerStage = 100;
constexpr int kCorrections = 12;
constexpr int kBudgets = 48;

class Dtr {
 public:
  Dtr(const Problem& problem, const Asked& asked, int64_t budget_bytes, Score score)
      : problem_(problem),
        asked_(asked),
        may_leave_(asked.may_leave),
        budget_(budget_bytes),
        score_(score),
        there_(problem.values.size(), 0),
        evicted_(problem.values.size(), 0),
        locks_(problem.values.size(), 0),
        mark_(problem.values.size(), 0),
        touched_(problem.values.size(), 0),
        readers_(problem.values.size()),
        component_(problem.values.size()) {
    plan_.by_stage.resize(problem.stages.size());
    for (size_t r = 0; r < problem.replays.size(); ++r) {
      if (problem.replays[r].is_page) continue;
      for (const int u : problem.replays[r].inputs)
        readers_[static_cast<size_t>(u)].push_back(static_cast<int>(r));
    }
    for (int v = 0; v < problem.numValues(); ++v) {
      component_[at(v)] = newComponent();
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
    for (const int u : stage.needs) {
      --locks_[at(u)];
      touched_[at(u)] = clock_;
    }
    for (const int v : stage.born) put(v);
    if (stage.op < problem_.graph().endOfStep())
      clock_ += problem_.profile().firstSeconds(problem_.graph().op(stage.op));
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
      touched_[at(u)] = clock_;
    }
    for (const int w : replay.outputs) {
      if (!there_[at(w)]) put(w);
    }
    return true;
  }

  void put(int v) {
    there_[at(v)] = 1;
    touched_[at(v)] = clock_;
    used_ += value(v).bytes;
    if (!evicted_[at(v)]) return;
    evicted_[at(v)] = 0;
    cost_of_[at(rootOf(component_[at(v)]))] -= costOf(v);
    component_[at(v)] = newComponent();
  }

  void remove(int v) {
    there_[at(v)] = 0;
    used_ -= value(v).bytes;
  }

  void evict(int v) {
    remove(v);
    evicted_[at(v)] = 1;
    cost_of_[at(rootOf(component_[at(v)]))] += costOf(v);
    forNeighbours(v, [&](int u) {
      if (evicted_[at(u)]) join(component_[at(u)], component_[at(v)]);
    });
  }

  bool makeRoom(int64_t bytes) {
    while (used_ + bytes > budget_) {
      int best = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int v = 0; v < problem_.numValues(); ++v) {
        if (!there_[at(v)] || !may_leave_[at(v)] || locks_[at(v)] > 0) continue;
        if (recipeOf(v).last_stage >= stage_ || value(v).bytes == 0) continue;
        const double h = scoreOf(v);
        if (h >= least) continue;
        least = h;
        best = v;
      }
      if (best < 0) return false;
      evict(best);
    }
    return true;
  }

  double costOf(int v) const { return recipeOf(v).seconds; }

  double scoreOf(int v) {
    double cost = costOf(v);
    if (score_ == Score::kNeighbourhood) cost += neighbourhoodCost(v);
    if (score_ == Score::kComponents) cost += componentsCost(v);
    const double staleness = std::max(clock_ - touched_[at(v)], kLeastSeconds);
    return cost / (static_cast<double>(value(v).bytes) * staleness);
  }

  // e*: what must be computed again for v, and what must be with v before it comes back.
  double neighbourhoodCost(int v) {
    return reach(v,
                 [&](int w, auto&& take) {
                   if (may_leave_[at(w)]) {
                     for (const int u : recipeOf(w).inputs) take(u);
                   }
                 }) +
           reach(v, [&](int w, auto&& take) {
             for (const int r : readers_[at(w)]) {
               for (const int u : problem_.replays[at(r)].outputs) take(u);
             }
           });
  }

  template <class Step>
  double reach(int v, const Step& step) {
    ++round_;
    double cost = 0;
    std::vector<int>& todo = todo_;
    todo.assign(1, v);
    while (!todo.empty()) {
      const int w = todo.back();
      todo.pop_back();
      step(w, [&](int u) {
        if (!evicted_[at(u)] || mark_[at(u)] == round_) return;
        mark_[at(u)] = round_;
        cost += costOf(u);
        todo.push_back(u);
      });
    }
    return cost;
  }

  double componentsCost(int v) {
    ++round_;
    double cost = 0;
    std::vector<int>& seen = todo_;
    seen.clear();
    forNeighbours(v, [&](int u) {
      if (!evicted_[at(u)]) return;
      const int root = rootOf(component_[at(u)]);
      if (std::find(seen.begin(), seen.end(), root) != seen.end()) return;
      seen.push_back(root);
      cost += cost_of_[at(root)];
    });
    return cost;
  }

  template <class Visit>
  void forNeighbours(int v, const Visit& visit) const {
    for (const int u : recipeOf(v).inputs) visit(u);
    for (const int r : readers_[at(v)]) {
      for (const int u : problem_.replays[at(r)].outputs) visit(u);
    }
  }

  // ---- union-find ---------------------------------------------------------------------------
  int newComponent() {
    up_.push_back(static_cast<int>(up_.size()));
    cost_of_.push_back(0);
    return up_.back();
  }
  int rootOf(int c) {
    while (up_[at(c)] != c) c = up_[at(c)] = up_[at(up_[at(c)])];
    return c;
  }
  void join(int a, int b) {
    a = rootOf(a);
    b = rootOf(b);
    if (a == b) return;
    up_[at(a)] = b;
    cost_of_[at(b)] += cost_of_[at(a)];
  }

  const Problem& problem_;
  const Asked& asked_;
  const std::vector<char>& may_leave_;
  const int64_t budget_;
  const Score score_;
  planner::ReplayPlan plan_;
  std::vector<char> there_, evicted_;  // neither: not made yet, or gone for good
  std::vector<int> locks_, mark_;
  std::vector<double> touched_;            // seconds of clock_
  std::vector<std::vector<int>> readers_;  // by value: replays
  std::vector<int> component_;             // by value
  std::vector<int> up_;
  std::vector<double> cost_of_;  // by root
  std::vector<int> todo_;
  int round_ = 0, stage_ = 0;
  int64_t used_ = 0;
  double clock_ = 0;
  size_t replays_ = 0;
};

Schedule planWithScore(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, const char* name, Score score) {
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile, {.objective = options.minimize});
  const Asked asked = findAsked(problem);
  PlanChoice choice(problem, options, name);
  const auto peakWithin = [&](int64_t budget) {
    Dtr dtr(problem, asked, budget, score);
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
  return planWithScore(graph, profile, options, "dtr", Score::kNeighbourhood);
}

Schedule planDtrEq(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_eq", Score::kComponents);
}

Schedule planDtrLocal(const Graph& graph, const DeviceProfile& profile,
                      const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_local", Score::kLocal);
}

}  // namespace poet::methods
