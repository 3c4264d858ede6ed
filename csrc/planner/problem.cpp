#include "planner/problem.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "graph/error.h"
#include "planner/repeats.h"

namespace poet::planner {
namespace {

constexpr int64_t kLargestSmallBytes = 16 * 1024;
constexpr int64_t kMostOpsWithoutSmall = 200;
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

int64_t ProblemOptions::defaultSmallBytes(int64_t plain_peak_bytes, int64_t num_ops) {
  if (num_ops <= kMostOpsWithoutSmall) return 0;
  return std::min(kLargestSmallBytes, plain_peak_bytes / kSmallShareOfPeak);
}

Problem::Problem(const Graph& graph, const RecipeTable& table, const DeviceProfile& profile,
                 const ProblemOptions& options)
    : generator_bytes(profile.generator_state_bytes),
      graph_(&graph),
      profile_(&profile),
      coarsening_(options.coarsening),
      objective_(options.objective),
      transfer_price_(options.transfer_price),
      pages_(options.paging && profile.hasStore()) {
  for (const Op& op : graph.ops()) plain_seconds += profile.firstSeconds(op);
  findStages();
  findReplays(table, options);
  std::sort(away.begin(), away.end());
  linkReplays(table);
  findDominated(options.has_deadline);
  findUses(table);
  findFixed();
  findFloor();
}

void Problem::findStages() {
  for (int64_t k = 0; k <= graph_->numOps(); ++k) stages.push_back(Stage{.op = OpId(k)});
  const std::vector<uint64_t> colours = opColours(*graph_);
  for (size_t k = 0; k < colours.size(); ++k) stages[k].colour = colours[k];
}

void Problem::findReplays(const RecipeTable& table, const ProblemOptions& options) {
  segments_.assign(static_cast<size_t>(graph_->numValues()), {});
  const auto& recipes = table.recipes();
  std::vector<int> order;
  for (size_t r = 0; options.recompute && r < recipes.size(); ++r)
    order.push_back(static_cast<int>(r));
  // The page-in of an input stands before the recipes that read it.
  for (const int r : runningOrder(table, order)) {
    const Recipe& recipe = recipes[static_cast<size_t>(r)];
    for (const ValueId u : recipe.inputs) {
      if (table.recipeOf(u) < 0) addSegments(u, options);
    }
    addReplay(recipe, r, options);
  }
  for (int64_t i = 0; i < graph_->numValues(); ++i) {
    const int r = table.recipeOf(ValueId(i));
    if (!options.recompute || r < 0) addSegments(ValueId(i), options);
  }
  for (Replay& replay : replays) {
    if (replay.is_page) continue;
    const Recipe& recipe = recipes[static_cast<size_t>(replay.table_index)];
    for (const ValueId u : recipe.inputs) {
      if (table.recipeOf(u) >= 0 && segments_[at(u)].empty()) replay.held.push_back(u);
    }
    replay.until_stage = recipe.valid_until.index;
  }
}

void Problem::addReplay(const Recipe& recipe, int table_index, const ProblemOptions& options) {
  Replay replay;
  const int index = static_cast<int>(replays.size());
  for (const ValueId v : recipe.outputs) {
    const int64_t bytes = graph_->value(v).bytes;
    if (bytes <= options.small_bytes) {
      replay.small_outputs.push_back(v);
      exact = exact && bytes == 0;
      continue;
    }
    segments_[at(v)].push_back(numValues());
    replay.outputs.push_back(numValues());
    Evictable value{.id = v, .bytes = bytes, .recipe = index};
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
    replay.seconds += secondsOfReplay(op);
    if (graph_->op(op).random) replay.random_stages.push_back(op.index);
  }
  replay.cost = replay.seconds;
  const std::vector<int> outputs = replay.outputs;
  replays.push_back(std::move(replay));
  for (const int v : outputs) {
    if (pages_) addPage(v);
  }
}

// Views are not replayed (Note [What may be merged] in graph/coarsening.h).
double Problem::secondsOfReplay(OpId op) const {
  if (!coarsening_) return profile_->replaySeconds(graph_->op(op));
  double seconds = 0;
  for (OpId fine = coarsening_->firstOf(op); fine <= coarsening_->lastOf(op);
       fine = OpId(fine.index + 1)) {
    const Op& replayed = coarsening_->fine().op(fine);
    if (!replayed.metadata_only) seconds += profile_->replaySeconds(replayed);
  }
  return seconds;
}

// See Note [Segments]. No effect where the value has some.
void Problem::addSegments(ValueId id, const ProblemOptions& options) {
  const Value& value = graph_->value(id);
  if (!pages_ || !value.evictable || !value.death.valid() || !segments_[at(id)].empty()) return;
  if (value.bytes <= options.small_bytes) {
    exact = exact && value.bytes == 0;
    return;
  }
  const auto add = [&](Evictable&& segment) {
    segments_[at(id)].push_back(numValues());
    values.push_back(std::move(segment));
    addPage(numValues() - 1);
  };
  const bool outlives = value.death >= graph_->endOfStep();
  if (value.producer.valid()) {
    add({.id = id, .bytes = value.bytes, .first_stage = value.producer.index, .at_end = outlives});
    return;
  }
  const std::span<const OpId> writers = graph_->writersOf(id);
  const bool is_away = std::binary_search(options.away.begin(), options.away.end(), id);
  if (is_away) away.push_back(id);
  add({.id = id,
       .bytes = value.bytes,
       .first_stage = -1,
       .starts_away = is_away,
       .goes_on = !writers.empty(),
       .at_end = writers.empty() && outlives && !is_away});
  if (writers.empty()) return;
  if (is_away) {
    page_outs.push_back(numValues());
    const double seconds = profile_->pageOutSeconds(value.bytes);
    constant_seconds += transfer_price_ * seconds;
    constant_cost += costOfTransfer(seconds);
  }
  // A schedule may page between two writes: this problem does not.
  if (writers.back().index > writers.front().index + 1) exact = false;
  add({.id = id,
       .bytes = value.bytes,
       .first_stage = writers.back().index,
       .in_place = writers.front() == writers.back(),
       .at_end = outlives && !is_away});
}

// The way back of a segment through the store.
void Problem::addPage(int v) {
  Evictable& value = values[static_cast<size_t>(v)];
  const std::span<const OpId> writers = graph_->writersOf(value.id);
  Replay page;
  page.is_page = true;
  page.outputs = {v};
  page.replay_bytes = value.bytes;
  page.last_stage = value.first_stage;
  if (value.first_stage >= 0 && !writers.empty())
    page.last_stage = std::max(value.first_stage, static_cast<int>(writers.back().index));
  page.until_stage = value.goes_on ? static_cast<int>(writers.front().index) : endStage();
  const OpId death = graph_->value(value.id).death;
  if (value.recipe < 0 && !value.goes_on && death < graph_->endOfStep())
    page.until_stage = death.index;
  // A schedule may page between the writes to a value: this problem does not.
  if (page.last_stage > value.first_stage + 1 && value.first_stage >= 0) exact = false;
  page.out_stage = page.last_stage + 1;
  const double in_seconds = profile_->pageInSeconds(value.bytes);
  page.seconds = transfer_price_ * in_seconds;
  page.cost = costOfTransfer(in_seconds);
  const bool written_anyway = value.starts_away || (!page_outs.empty() && page_outs.back() == v);
  if (!written_anyway) {
    const double out_seconds = profile_->pageOutSeconds(value.bytes);
    page.once_seconds = transfer_price_ * out_seconds;
    page.once_cost = costOfTransfer(out_seconds);
  }
  value.page = static_cast<int>(replays.size());
  replays.push_back(std::move(page));
}

double Problem::costOfTransfer(double seconds) const {
  const double watts = profile_->busyWatts() + profile_->alwaysWatts();
  if (objective_ != Objective::kEnergy || watts <= 0) return transfer_price_ * seconds;
  return seconds * (transfer_price_ * profile_->alwaysWatts() + profile_->store_watts) / watts;
}

double Problem::costOfWakeUp() const {
  const double watts = profile_->busyWatts() + profile_->alwaysWatts();
  return objective_ == Objective::kEnergy && watts > 0 ? profile_->wake_joules / watts : 0;
}

int Problem::segmentAt(ValueId id, int t) const {
  for (const int v : segments_[at(id)]) {
    const Evictable& value = values[static_cast<size_t>(v)];
    if (value.goes_on && t > graph_->writersOf(id).front().index) continue;
    if (graph_->value(id).producer.valid() || value.first_stage < t) return v;
  }
  return -1;
}

void Problem::linkReplays(const RecipeTable& table) {
  for (Replay& replay : replays) {
    if (replay.is_page) continue;
    const Recipe& recipe = table.recipes()[static_cast<size_t>(replay.table_index)];
    for (const ValueId u : recipe.inputs) {
      // All reads of a recipe find one version, so the first of them will do.
      int reads = replay.last_stage;
      for (const OpId op : recipe.ops) {
        const auto& read = graph_->dataInputs(op);
        if (!std::binary_search(read.begin(), read.end(), u)) continue;
        reads = op.index;
        break;
      }
      if (const int v = segmentAt(u, reads); v >= 0) replay.inputs.push_back(v);
    }
    std::sort(replay.inputs.begin(), replay.inputs.end());
    std::sort(replay.outputs.begin(), replay.outputs.end());
  }
}

void Problem::findDominated(bool has_deadline) {
  if (!pages_ || costOfWakeUp() > 0) return;
  for (Replay& replay : replays) {
    if (replay.is_page) continue;
    double cost = 0;
    double seconds = 0;
    bool all_may_page = true;
    for (const int v : replay.outputs) {
      const int page = values[static_cast<size_t>(v)].page;
      all_may_page = all_may_page && page >= 0;
      if (!all_may_page) break;
      const Replay& way = replays[static_cast<size_t>(page)];
      all_may_page = way.last_stage <= replay.last_stage && way.until_stage >= replay.until_stage;
      cost += way.cost + way.once_cost;
      seconds += way.seconds + way.once_seconds;
    }
    replay.dominated =
        all_may_page && cost <= replay.cost && (!has_deadline || seconds <= replay.seconds);
  }
}

void Problem::findUses(const RecipeTable& table) {
  for (int v = 0; v < numValues(); ++v) {
    Evictable& value = values[static_cast<size_t>(v)];
    const std::span<const OpId> writers = graph_->writersOf(value.id);
    const auto use = [&](int t) {
      value.use_stages.push_back(t);
      stages[static_cast<size_t>(t)].needs.push_back(v);
    };
    value.pin_stage = value.first_stage;
    for (const OpId op : graph_->usesOf(value.id)) {
      if (op.index <= value.first_stage) {
        POET_INTERNAL_ASSERT(!graph_->value(value.id).producer.valid(), "value ", value.id.index,
                             " is used by its own producer");
        continue;
      }
      if (value.goes_on && op > writers.front()) break;
      use(op.index);
    }
    if (!value.goes_on) {
      for (const OpId op : writers) value.pin_stage = std::max<int>(value.pin_stage, op.index);
      // See Note [Recoverability] in graph/recipes.h: a use by the op of its death. What has no
      // recipe could not come back at all if it were dropped before.
      const OpId death = graph_->value(value.id).death;
      const bool until_death =
          death < graph_->endOfStep() && (value.recipe < 0 || table.mustEndResident(value.id));
      if (until_death && death.index > value.first_stage &&
          (value.use_stages.empty() || value.use_stages.back() < death.index)) {
        use(death.index);
        // A schedule may leave it in the store instead, at the price of the page_out alone.
        if (value.page >= 0) exact = false;
      }
      if (value.at_end) use(endStage());
    }
    if (value.first_stage >= 0) stages[static_cast<size_t>(value.first_stage)].born.push_back(v);
  }
  for (Stage& stage : stages) std::sort(stage.needs.begin(), stage.needs.end());
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
    const Value& value = graph_->value(id);
    if (!segments_[at(id)].empty()) {
      if (value.producer.valid() || graph_->writersOf(id).empty()) continue;
      const int64_t first = graph_->writersOf(id).front().index;
      const int64_t last = graph_->writersOf(id).back().index;
      addSpan(during, first + 1, last - 1, value.bytes);
      addSpan(before, first + 1, last, value.bytes);
      continue;
    }
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
    for (const int v : stage.born) {
      const Evictable& value = values[static_cast<size_t>(v)];
      if (!value.in_place) stage.fixed_during_bytes += value.bytes;
    }
  }
}

void Problem::findFloor() {
  std::vector<int64_t> forced(stages.size() + 1);
  for (const Evictable& value : values) {
    int covered = value.first_stage;  // its own production is among the fixed bytes
    const auto cover = [&](int first, int last) {
      addSpan(forced, std::max(first, covered + 1), last, value.bytes);
      covered = std::max(covered, last);
    };
    cover(value.first_stage, value.pin_stage);
    int touched = value.first_stage;
    for (const int use : value.use_stages) {
      int from = touched;  // it stays from its last touch, or comes back: as late as it can
      for (const int r : {value.recipe, value.page}) {
        if (r < 0) continue;
        const Replay& replay = replays[static_cast<size_t>(r)];
        if (replay.last_stage < use && replay.until_stage > std::max(replay.last_stage, touched))
          from = std::max(from, std::min(replay.until_stage, use));
      }
      cover(from, use);
      touched = use;
    }
  }
  std::partial_sum(forced.begin(), forced.end(), forced.begin());
  start_bytes = stages.front().fixed_before_bytes;
  for (const Evictable& value : values) {
    if (value.first_stage < 0 && !value.starts_away) start_bytes += value.bytes;
  }
  floor_bytes = start_bytes;
  floor_op = stages.front().op;
  for (size_t t = 0; t < stages.size(); ++t) {
    const int64_t bytes = stages[t].fixed_during_bytes + forced[t];
    if (bytes > floor_bytes) {
      floor_bytes = bytes;
      floor_op = stages[t].op;
    }
  }
}

ReplayPlan Problem::leastPlan() const {
  ReplayPlan plan;
  plan.by_stage.resize(stages.size());
  for (const Evictable& value : values) {
    if (!value.starts_away || value.use_stages.empty()) continue;
    auto& stage = plan.by_stage[static_cast<size_t>(value.use_stages.front())];
    stage.insert(std::lower_bound(stage.begin(), stage.end(), value.page), value.page);
  }
  return plan;
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
