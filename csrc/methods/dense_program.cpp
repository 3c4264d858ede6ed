#include "methods/dense_program.h"

#include <algorithm>
#include <utility>

#include "planner/program.h"

namespace poet::methods {
namespace {

using planner::Evictable;
using planner::kInfinity;
using planner::Problem;
using planner::Replay;
using planner::ReplayPlan;
using planner::Stage;

size_t at(int index) { return static_cast<size_t>(index); }

bool contains(const std::vector<int>& sorted, int x) {
  return std::binary_search(sorted.begin(), sorted.end(), x);
}

}  // namespace

DenseProgram::DenseProgram(const Problem& problem, const DenseOptions& options)
    : problem_(problem), options_(options) {
  addGenerators();
  for (int t = 0; t < problem_.numStages(); ++t) {
    if (isOver()) return;
    addStage(t);
  }
  for (int t = 0; t < problem_.numStages(); ++t) {
    if (isOver()) return;
    addPresence(t);
    addStore(t);
    addMemory(t);
  }
  addDeadline();
  complete_ = true;
}

int64_t DenseProgram::estimateColumns(const Problem& problem) {
  int64_t columns = 0;
  const int64_t end = problem.endStage();
  for (const Evictable& v : problem.values) columns += (end - v.first_stage) * (v.page < 0 ? 1 : 4);
  for (const Replay& r : problem.replays) {
    if (r.is_page) continue;
    const auto touches = static_cast<int64_t>(r.inputs.size() + r.outputs.size());
    columns += (std::min<int64_t>(r.until_stage, end) - r.last_stage) * (2 + touches);
  }
  return columns;
}

// ---- columns ----------------------------------------------------------------------------------

// Whether the segment may be in memory when stage t begins.
bool DenseProgram::lives(int v, int t) const {
  if (value(v).first_stage >= t) return false;
  return !value(v).goes_on || t <= value(v).use_stages.back();
}

void DenseProgram::addStage(int t) {
  DenseStage stage;
  stage.kept.assign(problem_.values.size(), -1);
  stage.stored = stage.in = stage.out = stage.kept;
  stage.recompute.assign(problem_.replays.size(), -1);
  for (int r = 0; r < static_cast<int>(problem_.replays.size()); ++r) {
    if (replay(r).is_page || !problem_.runnable(r, t)) continue;
    stage.order.push_back(r);
    stage.recompute[at(r)] = model_.addBinary(planner::costPerSecond(problem_) * replay(r).cost);
  }
  stages_.push_back(std::move(stage));
  for (int v = 0; v < problem_.numValues(); ++v) {
    if (lives(v, t)) {
      const bool fixed = t == 0 || t <= value(v).pin_stage;
      stages_.back().kept[at(v)] = model_.addColumn(0, fixed ? 1 : 0, 1, true);
    }
    if (value(v).page >= 0) addTransfers(t, v);
  }
}

void DenseProgram::addTransfers(int t, int v) {
  const Replay& page = replay(value(v).page);
  const double cost = planner::costPerSecond(problem_);
  DenseStage& stage = stages_[at(t)];
  // A copy is good from the last write on. What is there before the step may leave in stage 0.
  const int made = std::max(0, page.last_stage);
  if (t >= made && t < page.until_stage) stage.out[at(v)] = model_.addBinary(cost * page.once_cost);
  if (t > made && t <= page.until_stage) {
    stage.stored[at(v)] = model_.addBinary(0);
    stage.in[at(v)] = model_.addBinary(cost * page.cost);
  }
}

void DenseProgram::addGenerators() {
  generator_.assign(problem_.stages.size(), -1);
  for (const Replay& r : problem_.replays) {
    for (const int t : r.random_stages) {
      if (generator_[at(t)] < 0) generator_[at(t)] = model_.addBinary(0);
    }
  }
}

// ---- rows -------------------------------------------------------------------------------------

// -(what brings or keeps v within stage t): a touch of v is at most that.
DenseProgram::Terms DenseProgram::presenceOf(int t, int v) const {
  const DenseStage& stage = stages_[at(t)];
  Terms terms;
  if (stage.kept[at(v)] >= 0) terms.push_back({stage.kept[at(v)], -1});
  if (stage.in[at(v)] >= 0) terms.push_back({stage.in[at(v)], -1});
  const int r = value(v).recipe;
  if (r >= 0 && stage.recompute[at(r)] >= 0) terms.push_back({stage.recompute[at(r)], -1});
  return terms;
}

// Checkmate (1b), (1c) and (8a): inputs are there, and what is kept was there.
void DenseProgram::addPresence(int t) {
  const DenseStage& stage = stages_[at(t)];
  for (const int r : stage.order) {
    for (const int u : replay(r).inputs) {
      Terms terms = presenceOf(t, u);
      terms.push_back({stage.recompute[at(r)], 1});
      model_.addRow(terms, -kInfinity, 0);
    }
    for (const int p : replay(r).random_stages) {
      model_.addRow(Terms{{stage.recompute[at(r)], 1}, {generator_[at(p)], -1}}, -kInfinity, 0);
    }
  }
  const Stage& executed = problem_.stages[at(t)];
  for (const int u : executed.needs) model_.addRow(presenceOf(t, u), -kInfinity, -1);
  for (int v = 0; v < problem_.numValues(); ++v) {
    Terms terms = presenceOf(t, v);
    // One way back a stage, and only for what is away. Several outputs: see addCopies.
    const int r = value(v).recipe;
    const bool alone = r < 0 || replay(r).outputs.size() == 1;
    Terms ways;
    for (const planner::Term& term : terms) {
      if (alone || r < 0 || term.column != stage.recompute[at(r)]) ways.push_back({term.column, 1});
    }
    if (ways.size() > 1) model_.addRow(ways, -kInfinity, 1);
    const int later = t < problem_.endStage() ? stages_[at(t) + 1].kept[at(v)] : -1;
    if (later < 0 || value(v).first_stage >= t) continue;
    terms.push_back({later, 1});
    model_.addRow(terms, -kInfinity, 0);
  }
}

// POET section 4: a page-in needs a copy, a copy needs a page-out, a page-out needs the value.
void DenseProgram::addStore(int t) {
  const DenseStage& stage = stages_[at(t)];
  for (int v = 0; v < problem_.numValues(); ++v) {
    if (stage.in[at(v)] >= 0)
      model_.addRow(Terms{{stage.in[at(v)], 1}, {stage.stored[at(v)], -1}}, -kInfinity, 0);
    if (stage.out[at(v)] >= 0 && value(v).first_stage < t) {
      Terms terms = presenceOf(t, v);
      terms.push_back({stage.out[at(v)], 1});
      model_.addRow(terms, -kInfinity, 0);
    }
    const int later = t < problem_.endStage() ? stages_[at(t) + 1].stored[at(v)] : -1;
    if (later < 0) continue;
    Terms terms = {{later, 1}};
    if (stage.stored[at(v)] >= 0) terms.push_back({stage.stored[at(v)], -1});
    if (stage.out[at(v)] >= 0) terms.push_back({stage.out[at(v)], -1});
    model_.addRow(terms, -kInfinity, 0);
  }
}

// FREE of v after replay `event` of the stage's order, Checkmate (7): 1 exactly where the replay
// runs, nothing later in the stage reads v, and v is not kept. -1 where it can never be 1.
int DenseProgram::addFree(int t, int v, size_t event) {
  const DenseStage& stage = stages_[at(t)];
  if (contains(problem_.stages[at(t)].needs, v)) return -1;
  const int later = t < problem_.endStage() ? stages_[at(t) + 1].kept[at(v)] : -1;
  const int free = model_.addBinary(0);
  const int runs = stage.recompute[at(stage.order[event])];
  Terms hazards = {{runs, -1}};  // less the 1 of (1 - R)
  if (later >= 0) hazards.push_back({later, 1});
  for (size_t e = event + 1; e < stage.order.size(); ++e) {
    const int r = stage.order[e];
    if (contains(replay(r).inputs, v)) hazards.push_back({stage.recompute[at(r)], 1});
  }
  const auto most = static_cast<double>(hazards.size());
  Terms forced = hazards;
  forced.push_back({free, 1});
  model_.addRow(forced, 0, kInfinity);  // (7b): 1 - FREE <= hazards
  hazards.push_back({free, most});
  model_.addRow(hazards, -kInfinity, most - 1);  // (7c): most (1 - FREE) >= hazards
  return free;
}

// A recipe makes all of its outputs; the second copy of what is there already is dropped behind it.
void DenseProgram::addCopies(int t, int r, Terms& balance) {
  if (replay(r).outputs.size() < 2) return;
  const DenseStage& stage = stages_[at(t)];
  for (const int v : replay(r).outputs) {
    Terms there;
    for (const int column : {stage.kept[at(v)], stage.in[at(v)]}) {
      if (column >= 0) there.push_back({column, -1});
    }
    if (there.empty()) continue;
    const int copy = model_.addBinary(0);
    there.push_back({copy, 1});
    model_.addRow(there, -kInfinity, 0);
    model_.addRow(Terms{{copy, 1}, {stage.recompute[at(r)], -1}}, -kInfinity, 0);
    balance.push_back({copy, share(value(v).bytes)});
  }
}

void DenseProgram::addGeneratorBytes(int t, bool at_execution, Terms& terms) const {
  for (int p = 0; p < t + (at_execution ? 1 : 0); ++p) {
    if (generator_[at(p)] >= 0)
      terms.push_back({generator_[at(p)], share(problem_.generator_bytes)});
  }
}

// U, Checkmate (2)-(4), in shares of the budget: at the stage's start, at each replay, at the first
// execution. Each is the one before it, less what was freed behind that, plus what is made now.
void DenseProgram::addMemory(int t) {
  const Stage& executed = problem_.stages[at(t)];
  int used = addStartOfStage(t);
  Terms freed;  // behind the last event
  for (size_t e = 0; e < stages_[at(t)].order.size(); ++e)
    used = addReplayMemory(t, e, used, freed);
  Terms limit = {{used, 1}};
  for (const planner::Term& term : freed) limit.push_back({term.column, -term.value});
  addGeneratorBytes(t, true, limit);
  model_.addRow(limit, -kInfinity,
                1 - share(executed.fixed_during_bytes - executed.fixed_before_bytes));
}

// What is kept and what is paged in.
int DenseProgram::addStartOfStage(int t) {
  const DenseStage& stage = stages_[at(t)];
  const int used = model_.addColumn(0, 0, 1, false);
  Terms balance = {{used, 1}};
  for (int v = 0; v < problem_.numValues(); ++v) {
    for (const int column : {stage.kept[at(v)], stage.in[at(v)]}) {
      if (column >= 0) balance.push_back({column, -share(value(v).bytes)});
    }
  }
  const double fixed = share(problem_.stages[at(t)].fixed_before_bytes);
  model_.addRow(balance, fixed, fixed);
  return used;
}

// U at the stage's e-th replay, from U before it and what was freed there; then what it frees.
int DenseProgram::addReplayMemory(int t, size_t e, int before, Terms& freed) {
  const DenseStage& stage = stages_[at(t)];
  const int r = stage.order[e];
  const int runs = stage.recompute[at(r)];
  int64_t made = 0;
  for (const int v : replay(r).outputs) made += value(v).bytes;
  const int used = model_.addColumn(0, 0, 1, false);
  Terms balance = std::move(freed);
  balance.insert(balance.end(), {{used, 1}, {before, -1}, {runs, -share(made)}});
  model_.addRow(balance, 0, 0);
  Terms limit = {{used, 1}, {runs, share(replay(r).replay_bytes - made)}};
  addGeneratorBytes(t, false, limit);
  // Without workspace and generators the column's bound says it.
  if (limit.size() > 2 || replay(r).replay_bytes > made) model_.addRow(limit, -kInfinity, 1);
  freed.clear();
  for (const auto* touched : {&replay(r).inputs, &replay(r).outputs}) {
    for (const int v : *touched) {
      const int free = addFree(t, v, e);
      if (free >= 0) freed.push_back({free, share(value(v).bytes)});
    }
  }
  addCopies(t, r, freed);
  return used;
}

void DenseProgram::addDeadline() {
  if (!options_.replay_seconds_limit) return;
  const double scale = problem_.plain_seconds > 0 ? problem_.plain_seconds : 1;
  Terms terms;
  const auto add = [&](int column, double seconds) {
    if (column >= 0 && seconds > 0) terms.push_back({column, seconds / scale});
  };
  for (const DenseStage& stage : stages_) {
    for (const int r : stage.order) add(stage.recompute[at(r)], replay(r).seconds);
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (value(v).page < 0) continue;
      add(stage.in[at(v)], replay(value(v).page).seconds);
      add(stage.out[at(v)], replay(value(v).page).once_seconds);
    }
  }
  model_.addRow(terms, -kInfinity, *options_.replay_seconds_limit / scale);
}

ReplayPlan DenseProgram::planOf(std::span<const double> x) const {
  const auto yes = [&](int column) { return column >= 0 && planner::isYes(x[at(column)]); };
  ReplayPlan plan;
  for (const DenseStage& stage : stages_) {
    std::vector<int>& replays = plan.by_stage.emplace_back();
    for (int v = 0; v < problem_.numValues(); ++v) {
      if (yes(stage.in[at(v)])) replays.push_back(value(v).page);
    }
    for (const int r : stage.order) {
      if (yes(stage.recompute[at(r)])) replays.push_back(r);
    }
  }
  return plan;
}

}  // namespace poet::methods
