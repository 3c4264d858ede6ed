#include "planner/problem.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "graph/error.h"

namespace poet::planner {
namespace {

constexpr int64_t kLargestSmallBytes = 16 * 1024;
constexpr int64_t kSmallShareOfPeak = 10000;

size_t at(OpId op) { return static_cast<size_t>(op.index); }
size_t at(ValueId value) { return static_cast<size_t>(value.index); }

// Adds `amount` to [first, last] of a difference array.
void addSpan(std::vector<int64_t>& differences, int64_t first, int64_t last, int64_t amount) {
  if (first > last) return;
  differences[static_cast<size_t>(first)] += amount;
  differences[static_cast<size_t>(last + 1)] -= amount;
}

// The recipes in an order in which each may read what earlier ones make, by last op where that
// leaves a choice. Two recipes of which one reads the other's output form no cycle where both may
// run (Note [Recipes that feed themselves]).
std::vector<int> runningOrder(const RecipeTable& table, const std::vector<int>& chosen) {
  const auto& recipes = table.recipes();
  std::vector<int> missing(recipes.size(), 0);
  std::vector<std::vector<int>> readers(recipes.size());
  std::vector<char> is_chosen(recipes.size(), 0);
  for (const int r : chosen) is_chosen[static_cast<size_t>(r)] = 1;
  for (const int r : chosen) {
    const Recipe& reader = recipes[static_cast<size_t>(r)];
    for (const ValueId u : reader.inputs) {
      const int s = table.recipeOf(u);
      if (s < 0 || !is_chosen[static_cast<size_t>(s)]) continue;
      const Recipe& source = recipes[static_cast<size_t>(s)];
      if (source.lastOp() >= reader.valid_until || reader.lastOp() >= source.valid_until) continue;
      readers[static_cast<size_t>(s)].push_back(r);
      ++missing[static_cast<size_t>(r)];
    }
  }
  std::set<std::pair<OpId, int>> ready;
  for (const int r : chosen) {
    if (missing[static_cast<size_t>(r)] == 0)
      ready.emplace(recipes[static_cast<size_t>(r)].lastOp(), r);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    const int r = ready.begin()->second;
    ready.erase(ready.begin());
    order.push_back(r);
    for (const int next : readers[static_cast<size_t>(r)]) {
      if (--missing[static_cast<size_t>(next)] == 0)
        ready.emplace(recipes[static_cast<size_t>(next)].lastOp(), next);
    }
  }
  POET_INTERNAL_ASSERT(order.size() == chosen.size(), "recipes feed themselves");
  return order;
}

}  // namespace

int64_t ProblemOptions::defaultSmallBytes(int64_t plain_peak_bytes) {
  return std::min(kLargestSmallBytes, plain_peak_bytes / kSmallShareOfPeak);
}

Problem::Problem(const Graph& graph, const RecipeTable& table, const DeviceProfile& profile,
                 const ProblemOptions& options)
    : generator_bytes(profile.generator_state_bytes), graph_(&graph), profile_(&profile) {
  for (const Op& op : graph.ops()) plain_seconds += profile.firstSeconds(op);
  for (int64_t k = 0; k < graph.numOps(); ++k) {
    if (graph.ops()[static_cast<size_t>(k)].phase == Phase::kBackward) last_backward_ = OpId(k);
  }
  findStages();
  findReplays(table, options);
  linkReplays(table);
  findUses(table);
  findFixed();
  findFloor();
}

void Problem::findStages() {
  for (int64_t k = 0; k <= graph_->numOps(); ++k) stages.push_back(Stage{.op = OpId(k)});
}

// Note [Lean problems]
// With an optimizer in the step, hundreds of gradients and temporaries live after the last backward
// op. Gradients outlive the step and nearly all of its second half; temporaries live for an op or
// two. A lean problem leaves them as they are.
bool Problem::leftOut(const Recipe& recipe) const {
  if (!last_backward_.valid()) return false;
  if (recipe.producer() > last_backward_ || recipe.lastOp() > last_backward_) return true;
  const bool backward = graph_->op(recipe.producer()).phase == Phase::kBackward;
  for (const ValueId v : recipe.outputs) {
    const auto& uses = graph_->usesOf(v);
    if (!uses.empty() && uses.back() > last_backward_) return true;
    if (backward && graph_->value(v).death >= graph_->endOfStep()) return true;
  }
  return false;
}

void Problem::findReplays(const RecipeTable& table, const ProblemOptions& options) {
  value_of.assign(static_cast<size_t>(graph_->numValues()), -1);
  const auto& recipes = table.recipes();
  std::vector<char> left_out(recipes.size(), 0);
  std::vector<int> order;
  for (size_t r = 0; r < recipes.size(); ++r) {
    if (options.lean && leftOut(recipes[r])) {
      left_out[r] = 1;
      exact = false;
    } else {
      order.push_back(static_cast<int>(r));
    }
  }
  for (const int r : runningOrder(table, order))
    addReplay(recipes[static_cast<size_t>(r)], r, options);
  // An input that this problem keeps as it is must still be alive.
  for (Replay& replay : replays) {
    const Recipe& recipe = recipes[static_cast<size_t>(replay.table_index)];
    OpId limit = recipe.valid_until;
    for (const ValueId u : recipe.inputs) {
      const int source = table.recipeOf(u);
      if (source >= 0 && left_out[static_cast<size_t>(source)])
        limit = std::min(limit, graph_->value(u).death);
      if (source >= 0 && !left_out[static_cast<size_t>(source)] && value_of[at(u)] < 0)
        replay.held.push_back(u);
    }
    replay.until_stage = limit.index;
  }
}

void Problem::addReplay(const Recipe& recipe, int table_index, const ProblemOptions& options) {
  Replay replay;
  for (const ValueId v : recipe.outputs) {
    const int64_t bytes = graph_->value(v).bytes;
    if (bytes <= options.small_bytes) {
      replay.small_outputs.push_back(v);
      exact = exact && bytes == 0;
      continue;
    }
    value_of[at(v)] = numValues();
    replay.outputs.push_back(numValues());
    Evictable value{.id = v, .bytes = bytes, .recipe = static_cast<int>(replays.size())};
    value.first_stage = recipe.producer().index;
    value.at_end = graph_->value(v).death >= graph_->endOfStep();
    values.push_back(std::move(value));
  }
  if (replay.outputs.empty()) return;
  replay.table_index = table_index;
  replay.ops = recipe.ops;
  replay.replay_bytes = recipe.output_bytes + recipe.workspace_bytes;
  replay.last_stage = recipe.lastOp().index;
  for (const OpId op : recipe.ops) {
    replay.seconds += profile_->replaySeconds(graph_->op(op));
    if (graph_->op(op).random) replay.random_stages.push_back(op.index);
  }
  replays.push_back(std::move(replay));
}

void Problem::linkReplays(const RecipeTable& table) {
  for (Replay& replay : replays) {
    for (const ValueId u : table.recipes()[static_cast<size_t>(replay.table_index)].inputs) {
      if (const int v = value_of[at(u)]; v >= 0) replay.inputs.push_back(v);
    }
    std::sort(replay.inputs.begin(), replay.inputs.end());
    std::sort(replay.outputs.begin(), replay.outputs.end());
  }
}

void Problem::findUses(const RecipeTable& table) {
  for (int v = 0; v < numValues(); ++v) {
    Evictable& value = values[static_cast<size_t>(v)];
    value.pin_stage = value.first_stage;
    for (const OpId op : graph_->usesOf(value.id)) {
      const int t = op.index;
      POET_INTERNAL_ASSERT(t > value.first_stage, "value ", value.id.index,
                           " is used by its own producer");
      value.use_stages.push_back(t);
      stages[static_cast<size_t>(t)].needs.push_back(v);
    }
    for (const OpId op : graph_->writersOf(value.id)) {
      value.pin_stage = std::max(value.pin_stage, op.index);
    }
    // See Note [Recoverability] in graph/recipes.h: a use by the op of its death.
    const OpId death = graph_->value(value.id).death;
    if (table.mustEndResident(value.id) &&
        (value.use_stages.empty() || value.use_stages.back() < death.index)) {
      value.use_stages.push_back(death.index);
      stages[static_cast<size_t>(death.index)].needs.push_back(v);
    }
    if (value.at_end) {
      value.use_stages.push_back(endStage());
      stages.back().needs.push_back(v);
    }
    stages[static_cast<size_t>(value.first_stage)].born.push_back(v);
  }
}

void Problem::findFixed() {
  const int64_t n = graph_->numOps();
  std::vector<int> hold(static_cast<size_t>(graph_->numValues()), -1);
  for (const Replay& replay : replays) {
    for (const ValueId u : replay.held) hold[at(u)] = std::max(hold[at(u)], replay.until_stage);
  }
  const auto size = static_cast<size_t>(n) + 2;
  std::vector<int64_t> before(size), during(size), held(size);
  for (int64_t i = 0; i < graph_->numValues(); ++i) {
    const ValueId id(i);
    if (value_of[at(id)] >= 0) continue;
    const Value& value = graph_->value(id);
    fixed.push_back(Fixed{.id = id, .bytes = value.bytes, .hold_stage = hold[at(id)]});
    const int64_t natural = std::min<int64_t>(value.death.index, n);
    int64_t last = natural;
    if (hold[at(id)] >= 0)
      last = std::max<int64_t>(last, stages[static_cast<size_t>(hold[at(id)])].op.index);
    const int64_t first = value.producer.valid() ? value.producer.index : 0;
    addSpan(during, first, last, value.bytes);
    addSpan(before, value.producer.valid() ? first + 1 : 0, last, value.bytes);
    addSpan(held, std::max<int64_t>(natural, first) + 1, last, value.bytes);
  }
  std::partial_sum(before.begin(), before.end(), before.begin());
  std::partial_sum(during.begin(), during.end(), during.begin());
  std::partial_sum(held.begin(), held.end(), held.begin());
  for (Stage& stage : stages) {
    stage.fixed_before_bytes = graph_->baseBytes() + before[at(stage.op)];
    stage.fixed_during_bytes = graph_->baseBytes() + during[at(stage.op)];
    stage.held_bytes = held[at(stage.op)];
    if (stage.op < graph_->endOfStep())
      stage.fixed_during_bytes += graph_->op(stage.op).workspace_bytes;
    for (const int v : stage.born) stage.fixed_during_bytes += values[static_cast<size_t>(v)].bytes;
  }
}

void Problem::findFloor() {
  std::vector<int64_t> forced(stages.size() + 1);
  for (const Evictable& value : values) {
    const Replay& replay = replays[static_cast<size_t>(value.recipe)];
    int covered = value.first_stage;  // its own production is among the fixed bytes
    const auto cover = [&](int first, int last) {
      addSpan(forced, std::max(first, covered + 1), last, value.bytes);
      covered = std::max(covered, last);
    };
    cover(value.first_stage, value.pin_stage);
    int touched = value.first_stage;
    for (const int use : value.use_stages) {
      const bool comes_back_here = replay.last_stage < use && use <= replay.until_stage;
      const bool comes_back_before = replay.until_stage > std::max(replay.last_stage, touched);
      cover(comes_back_here                                ? use
            : comes_back_before && use > replay.last_stage ? replay.until_stage
                                                           : touched,
            use);
      touched = use;
    }
  }
  std::partial_sum(forced.begin(), forced.end(), forced.begin());
  for (size_t t = 0; t < stages.size(); ++t) {
    const int64_t bytes = stages[t].fixed_during_bytes + forced[t];
    if (bytes > floor_bytes || t == 0) {
      floor_bytes = bytes;
      floor_op = stages[t].op;
    }
  }
}

int Problem::plainTouchBefore(int value, int t) const {
  const Evictable& v = values[static_cast<size_t>(value)];
  const auto next = std::lower_bound(v.use_stages.begin(), v.use_stages.end(), t);
  if (next != v.use_stages.begin()) return *(next - 1);
  return v.first_stage < t ? v.first_stage : -1;
}

int Problem::plainTouchFrom(int value, int t) const {
  const Evictable& v = values[static_cast<size_t>(value)];
  if (t <= v.first_stage) return v.first_stage;
  const auto next = std::lower_bound(v.use_stages.begin(), v.use_stages.end(), t);
  return next != v.use_stages.end() ? *next : -1;
}

}  // namespace poet::planner
