#include "planner/program.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "planner/attainable_bytes.h"

namespace poet::planner {
namespace {

constexpr double kPercent = 100;

}  // namespace

double costPerSecond(const Problem& problem) {
  return problem.plain_seconds > 0 ? kPercent / problem.plain_seconds : kPercent;
}

Program::Program(const Problem& problem, const Candidates& candidates,
                 const ProgramOptions& options)
    : problem_(&problem), options_(options) {
  addSteps(candidates);
  addEvents();
  addGenerators();
  addPageOuts();
  addDeadline();
  if (options.excess_weight > 0)
    excess_column_ = model_.addColumn(options.excess_weight, 0, kInfinity, false);
  roundBudget();
}

// Rows (5') are sums and differences, and a budget that may be exceeded is none.
void Program::roundBudget() {
  if (excess_column_ >= 0) {
    most_.assign(steps_.size(), options_.budget_bytes);
    return;
  }
  most_ = attainableBytes(items_, fixed_, options_.budget_bytes);
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (options_.relaxed && steps_[s].replay >= 0) most_[s] = options_.budget_bytes;
  }
}

void Program::addSteps(const Candidates& candidates) {
  for (int t = 0; t < problem_->numStages(); ++t) {
    const Stage& stage = problem_->stages[static_cast<size_t>(t)];
    first_step_.push_back(static_cast<int>(steps_.size()));
    for (const int r : candidates[static_cast<size_t>(t)]) {
      const Replay& replay = problem_->replays[static_cast<size_t>(r)];
      const int column =
          model_.addBinary(options_.replay_weight * costPerSecond(*problem_) * replay.cost);
      const int s = static_cast<int>(steps_.size());
      steps_.push_back({.stage = t, .replay = r, .column = column});
      fixed_.push_back(stage.fixed_before_bytes);
      items_.push_back({.first = s, .last = s, .column = column, .bytes = replay.replay_bytes});
    }
    steps_.push_back({.stage = t, .replay = -1, .column = -1});
    fixed_.push_back(stage.fixed_during_bytes);
  }
  first_step_.push_back(static_cast<int>(steps_.size()));
}

void Program::addEvents() {
  events_.resize(problem_->values.size());
  for (int v = 0; v < problem_->numValues(); ++v) {
    const Evictable& value = problem_->values[static_cast<size_t>(v)];
    if (value.first_stage < 0 && !value.starts_away)
      events_[static_cast<size_t>(v)].push_back({.step = -1, .makes = true});
  }
  for (int s = 0; s < static_cast<int>(steps_.size()); ++s) {
    const MicroStep& step = steps_[static_cast<size_t>(s)];
    const auto touch = [&](int v, bool makes) {
      events_[static_cast<size_t>(v)].push_back({.step = s, .makes = makes});
    };
    if (step.replay >= 0) {
      const Replay& replay = problem_->replays[static_cast<size_t>(step.replay)];
      for (const int u : replay.inputs) touch(u, false);
      for (const int v : replay.outputs) touch(v, true);
    } else {
      const Stage& stage = problem_->stages[static_cast<size_t>(step.stage)];
      for (const int u : stage.needs) touch(u, false);
      for (const int v : stage.born) touch(v, true);
    }
  }
  for (int v = 0; v < problem_->numValues(); ++v) addValue(v, events_[static_cast<size_t>(v)]);
}

void Program::addValue(int v, std::vector<TouchEvent>& events) {
  // Nothing comes after the last touch.
  while (events.size() > 1 && events.back().makes) events.pop_back();
  int before = -1;  // column of the gap before the event
  for (size_t k = 0; k < events.size(); ++k) {
    TouchEvent& event = events[k];
    const MicroStep step = event.step < 0 ? MicroStep{} : steps_[static_cast<size_t>(event.step)];
    int after = -1;
    const bool merged = mergesGaps() && step.replay >= 0 && !event.makes && before >= 0 &&
                        k + 1 < events.size() &&
                        steps_[static_cast<size_t>(events[k + 1].step)].stage == step.stage;
    if (k + 1 < events.size()) {
      after = event.gap_column = merged ? before : model_.addBinary(0);
      items_.push_back({.first = event.step + 1,
                        .last = events[k + 1].step,
                        .column = after,
                        .bytes = problem_->values[static_cast<size_t>(v)].bytes});
    }
    const auto atMost = [&](int a, int b, int c) {  // a <= b (+ c)
      std::vector<Term> terms = {{a, 1}, {b, -1}};
      if (c >= 0) terms.push_back({c, -1});
      model_.addRow(terms, -kInfinity, 0);
    };
    if (event.makes) {
      if (step.replay >= 0 && after >= 0) {  // (1); a first execution makes it for sure
        before >= 0 ? atMost(after, step.column, before) : atMost(after, step.column, -1);
      }
    } else if (step.replay >= 0 && before < 0) {  // it starts away, and nothing brought it back
      model_.upper[static_cast<size_t>(step.column)] = 0;
    } else if (step.replay >= 0) {  // (2)
      atMost(step.column, before, -1);
      if (after >= 0 && !merged) atMost(after, before, -1);
    } else {  // (3)
      POET_INTERNAL_ASSERT(before >= 0, "value ", v, " is used before it can be there");
      model_.lower[static_cast<size_t>(before)] = 1;
    }
    before = after;
  }
}

void Program::addGenerators() {
  generator_column_.assign(problem_->replays.size(), -1);
  if (problem_->generator_bytes == 0) return;
  for (const MicroStep& step : steps_) {
    if (step.replay < 0) continue;
    const Replay& replay = problem_->replays[static_cast<size_t>(step.replay)];
    if (replay.random_stages.empty()) continue;
    int& column = generator_column_[static_cast<size_t>(step.replay)];
    if (column < 0) {
      column = model_.addBinary(0);
      for (const int t : replay.random_stages) {
        items_.push_back({.first = executionOf(t),
                          .last = static_cast<int>(steps_.size()) - 1,
                          .column = column,
                          .bytes = problem_->generator_bytes});
      }
    }
    model_.addRow(std::vector<Term>{{step.column, 1}, {column, -1}}, -kInfinity, 0);  // (4)
  }
}

int Program::wakeColumn(int stage) {
  int& column = wake_column_[static_cast<size_t>(stage)];
  if (column < 0) {
    column = model_.addBinary(options_.replay_weight * costPerSecond(*problem_) *
                              problem_->costOfWakeUp());
  }
  return column;
}

void Program::addPageOuts() {
  out_column_.assign(problem_->replays.size(), -1);
  wake_column_.assign(problem_->stages.size() + 1, -1);
  const bool wakes = problem_->costOfWakeUp() > 0;
  const auto atMost = [&](int a, int b) {
    model_.addRow(std::vector<Term>{{a, 1}, {b, -1}}, -kInfinity, 0);
  };
  for (const int v : problem_->page_outs) {
    const int page = problem_->values[static_cast<size_t>(v)].page;
    if (wakes) {
      const int column = wakeColumn(problem_->replays[static_cast<size_t>(page)].out_stage);
      model_.lower[static_cast<size_t>(column)] = 1;
    }
  }
  for (const MicroStep& step : steps_) {
    if (step.replay < 0) continue;
    const Replay& replay = problem_->replays[static_cast<size_t>(step.replay)];
    if (!replay.is_page) continue;
    if (wakes) atMost(step.column, wakeColumn(step.stage));  // (7)
    if (replay.once_cost <= 0) continue;
    int& column = out_column_[static_cast<size_t>(step.replay)];
    if (column < 0) {
      column =
          model_.addBinary(options_.replay_weight * costPerSecond(*problem_) * replay.once_cost);
      if (wakes) atMost(column, wakeColumn(replay.out_stage));  // (7)
    }
    atMost(step.column, column);  // (4)
  }
}

void Program::addDeadline() {
  if (!options_.replay_seconds_limit) return;
  const double scale = problem_->plain_seconds > 0 ? problem_->plain_seconds : 1;
  std::vector<Term> terms;
  for (const MicroStep& step : steps_) {
    if (step.replay < 0) continue;
    const double seconds = problem_->replays[static_cast<size_t>(step.replay)].seconds;
    if (seconds > 0) terms.push_back({step.column, seconds / scale});
  }
  for (size_t r = 0; r < out_column_.size(); ++r) {
    if (out_column_[r] >= 0)
      terms.push_back({out_column_[r], problem_->replays[r].once_seconds / scale});
  }
  model_.addRow(terms, -kInfinity,
                (*options_.replay_seconds_limit - problem_->constant_seconds) / scale);  // (6)
}

std::vector<double> Program::profile(std::span<const double> x) const {
  std::vector<double> bytes(steps_.size() + 1, 0);
  for (const MemoryItem& item : items_) {
    const double amount = x[static_cast<size_t>(item.column)] * static_cast<double>(item.bytes);
    if (amount == 0) continue;
    bytes[static_cast<size_t>(item.first)] += amount;
    bytes[static_cast<size_t>(item.last) + 1] -= amount;
  }
  double resident = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    resident += bytes[s];
    bytes[s] = resident + static_cast<double>(fixed_[s]);
  }
  bytes.pop_back();
  if (options_.relaxed && options_.rows_at_replays) relaxReplays(x, bytes);
  return bytes;
}

int Program::gapOver(int v, int step) const {
  const std::vector<TouchEvent>& events = events_[static_cast<size_t>(v)];
  const auto next = std::lower_bound(events.begin(), events.end(), step,
                                     [](const TouchEvent& e, int s) { return e.step < s; });
  return next == events.begin() || next == events.end() ? -1 : (next - 1)->gap_column;
}

int Program::replayColumn(int t, int r) const {
  for (int s = firstStepOf(t); s < executionOf(t); ++s) {
    if (steps_[static_cast<size_t>(s)].replay == r) return steps_[static_cast<size_t>(s)].column;
  }
  return -1;
}

void Program::relaxReplays(std::span<const double> x, std::vector<double>& bytes) const {
  std::vector<double> stayed(
      problem_->values.size());  // bytes (x at op(t) - r), the third sum of (5')
  for (int t = 0; t < problem_->numStages(); ++t) {
    const int execution = executionOf(t);
    if (firstStepOf(t) == execution) continue;
    double sum = 0;
    for (int v = 0; v < problem_->numValues(); ++v) {
      const int gap = gapOver(v, execution);
      stayed[static_cast<size_t>(v)] = gap < 0 ? 0 : x[static_cast<size_t>(gap)];
    }
    for (int s = firstStepOf(t); s < execution; ++s) {
      const MicroStep& step = steps_[static_cast<size_t>(s)];
      for (const int v : problem_->replays[static_cast<size_t>(step.replay)].outputs) {
        if (gapOver(v, execution) >= 0)
          stayed[static_cast<size_t>(v)] -= x[static_cast<size_t>(step.column)];
      }
    }
    for (size_t v = 0; v < stayed.size(); ++v)
      sum += stayed[v] *= static_cast<double>(problem_->values[v].bytes);
    double fixed = sum + static_cast<double>(fixed_[static_cast<size_t>(firstStepOf(t))]);
    for (size_t r = 0; r < generator_column_.size(); ++r) {
      if (generator_column_[r] < 0) continue;
      for (const int p : problem_->replays[r].random_stages) {
        if (p < t)
          fixed += x[static_cast<size_t>(generator_column_[r])] *
                   static_cast<double>(problem_->generator_bytes);
      }
    }
    for (int s = firstStepOf(t); s < execution; ++s) {
      const MicroStep& step = steps_[static_cast<size_t>(s)];
      const Replay& replay = problem_->replays[static_cast<size_t>(step.replay)];
      double load = static_cast<double>(replay.replay_bytes);
      double here = fixed;
      for (const int u : replay.inputs) {
        load += static_cast<double>(problem_->values[static_cast<size_t>(u)].bytes);
        here -= stayed[static_cast<size_t>(u)];
      }
      for (const int v : replay.outputs) here -= stayed[static_cast<size_t>(v)];
      bytes[static_cast<size_t>(s)] = here + load * x[static_cast<size_t>(step.column)];
    }
  }
}

void Program::relaxedRow(int step, std::vector<Term>& terms) const {
  const MicroStep& here = steps_[static_cast<size_t>(step)];
  const Replay& replay = problem_->replays[static_cast<size_t>(here.replay)];
  const int execution = executionOf(here.stage);
  std::map<int, double> coefficients;
  coefficients[here.column] += static_cast<double>(replay.replay_bytes);
  std::vector<char> own(problem_->values.size(), 0);
  for (const int u : replay.inputs) {
    own[static_cast<size_t>(u)] = 1;
    coefficients[here.column] +=
        static_cast<double>(problem_->values[static_cast<size_t>(u)].bytes);
  }
  for (const int v : replay.outputs) own[static_cast<size_t>(v)] = 1;
  for (int v = 0; v < problem_->numValues(); ++v) {
    const int gap = own[static_cast<size_t>(v)] ? -1 : gapOver(v, execution);
    if (gap < 0) continue;
    const auto bytes = static_cast<double>(problem_->values[static_cast<size_t>(v)].bytes);
    coefficients[gap] += bytes;
    const Evictable& value = problem_->values[static_cast<size_t>(v)];
    for (const int r : {value.recipe, value.page}) {
      const int made = r < 0 ? -1 : replayColumn(here.stage, r);
      if (made >= 0) coefficients[made] -= bytes;
    }
  }
  for (size_t r = 0; r < generator_column_.size(); ++r) {
    if (generator_column_[r] < 0) continue;
    for (const int p : problem_->replays[r].random_stages) {
      if (p < here.stage)
        coefficients[generator_column_[r]] += static_cast<double>(problem_->generator_bytes);
    }
  }
  const auto budget = static_cast<double>(options_.budget_bytes);
  for (const auto& [column, bytes] : coefficients) {
    if (bytes != 0) terms.push_back({column, bytes / budget});
  }
}

std::vector<MemoryRow> Program::violatedRows(std::span<const double> x, double tolerance) const {
  const std::vector<double> bytes = profile(x);
  const auto budget = static_cast<double>(options_.budget_bytes);
  const double allowed = excess_column_ >= 0 ? x[static_cast<size_t>(excess_column_)] * budget : 0;
  std::vector<MemoryRow> rows;
  int stage = -1;
  for (size_t s = 0; s < steps_.size(); ++s) {
    if (!options_.rows_at_replays && steps_[s].replay >= 0) continue;
    const double excess = bytes[s] - static_cast<double>(most_[s]) - allowed;
    if (excess <= tolerance * budget) continue;
    if (steps_[s].stage != stage) {
      stage = steps_[s].stage;
      rows.push_back({.step = static_cast<int>(s), .excess_bytes = excess});
    } else if (excess > rows.back().excess_bytes) {
      rows.back() = {.step = static_cast<int>(s), .excess_bytes = excess};
    }
  }
  std::sort(rows.begin(), rows.end(), [](const MemoryRow& a, const MemoryRow& b) {
    return a.excess_bytes != b.excess_bytes ? a.excess_bytes > b.excess_bytes : a.step < b.step;
  });
  return rows;
}

double Program::memoryRow(int step, std::vector<Term>& terms) const {
  terms.clear();
  const auto budget = static_cast<double>(options_.budget_bytes);
  if (options_.relaxed && steps_[static_cast<size_t>(step)].replay >= 0) {
    relaxedRow(step, terms);
  } else {
    for (const MemoryItem& item : items_) {
      if (item.first <= step && step <= item.last) {
        terms.push_back({item.column, static_cast<double>(item.bytes) / budget});
      }
    }
    mergeTerms(terms);
  }
  const auto left = static_cast<double>(mostBytes(step) - fixed_[static_cast<size_t>(step)]);
  if (excess_column_ >= 0) {
    terms.push_back({excess_column_, -1});
    return left / budget;
  }
  // Bytes are whole: half of one more lets no plan through. CBC's probing cuts off points at which
  // the row is tight otherwise (program_search_test has one).
  constexpr double kHalfByte = 0.5;
  return (left + kHalfByte) / budget;
}

std::optional<std::vector<double>> Program::pointOf(const ReplayPlan& plan) const {
  std::vector<double> x(static_cast<size_t>(numColumns()), 0);
  for (int t = 0; t < problem_->numStages(); ++t) {
    int s = firstStepOf(t);
    for (const int r : plan.by_stage[static_cast<size_t>(t)]) {
      while (s < executionOf(t) && steps_[static_cast<size_t>(s)].replay != r) ++s;
      if (s == executionOf(t)) return std::nullopt;
      x[static_cast<size_t>(steps_[static_cast<size_t>(s)].column)] = 1;
      ++s;
    }
  }
  leastRetention(x);
  setExcess(x);
  return x;
}

ReplayPlan Program::planOf(std::span<const double> x) const {
  ReplayPlan plan;
  plan.by_stage.resize(problem_->stages.size());
  for (const MicroStep& step : steps_) {
    if (step.replay >= 0 && isYes(x[static_cast<size_t>(step.column)])) {
      plan.by_stage[static_cast<size_t>(step.stage)].push_back(step.replay);
    }
  }
  return plan;
}

void Program::leastRetention(std::vector<double>& x) const {
  for (const auto* columns : {&generator_column_, &out_column_, &wake_column_}) {
    for (const int column : *columns) {
      if (column >= 0) x[static_cast<size_t>(column)] = model_.lower[static_cast<size_t>(column)];
    }
  }
  for (const MicroStep& step : steps_) {
    if (step.replay < 0) continue;
    double& r = x[static_cast<size_t>(step.column)];
    r = isYes(r) ? 1 : 0;
    const int generator = generator_column_[static_cast<size_t>(step.replay)];
    if (r > 0 && generator >= 0) x[static_cast<size_t>(generator)] = 1;
    const int out = out_column_[static_cast<size_t>(step.replay)];
    const Replay& replay = problem_->replays[static_cast<size_t>(step.replay)];
    if (r > 0 && out >= 0) x[static_cast<size_t>(out)] = 1;
    if (r == 0 || !replay.is_page) continue;
    for (const int stage : {step.stage, out >= 0 ? replay.out_stage : step.stage}) {
      const int wake = wake_column_[static_cast<size_t>(stage)];
      if (wake >= 0) x[static_cast<size_t>(wake)] = 1;
    }
  }
  for (const std::vector<TouchEvent>& events : events_) {
    bool needed = false;
    for (size_t k = events.size(); k-- > 0;) {
      const TouchEvent& event = events[k];
      const MicroStep step = event.step < 0 ? MicroStep{} : steps_[static_cast<size_t>(event.step)];
      if (event.gap_column >= 0) x[static_cast<size_t>(event.gap_column)] = needed ? 1 : 0;
      const bool runs = step.column < 0 || isYes(x[static_cast<size_t>(step.column)]);
      if (runs) needed = !event.makes;
    }
  }
}

void Program::setExcess(std::vector<double>& x) const {
  if (excess_column_ < 0) return;
  const std::vector<double> bytes = profile(x);
  const auto budget = static_cast<double>(options_.budget_bytes);
  const double peak = *std::max_element(bytes.begin(), bytes.end());
  x[static_cast<size_t>(excess_column_)] = std::max(0.0, peak / budget - 1);
}

}  // namespace poet::planner
