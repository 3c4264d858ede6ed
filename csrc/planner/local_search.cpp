#include "planner/local_search.h"

#include <algorithm>
#include <cmath>

#include "planner/backends/solver.h"

namespace poet::planner {
namespace {

constexpr size_t kLeastColumns = 150;
constexpr double kExcessPrice =
    50 * 100;  // of a whole budget of excess, against percent of the plain step's seconds
constexpr double kExcessTolerance = 0.5;  // bytes
constexpr double kLoose = 0.03;           // of the budget
constexpr double kDisagreement = 0.02;
constexpr double kWindowGap = 1e-4;
constexpr double kFast = 0.35, kSlow = 0.9;  // shares of the window's time: windows grow and shrink
constexpr double kGrowth = 1.2, kShrinkage = 0.8;
constexpr double kLeastGain = 1e-9;

}  // namespace

LocalSearch::LocalSearch(const Program& program, const Relaxation& relaxation,
                         const LocalSearchOptions& options)
    : program_(program),
      relaxation_(relaxation),
      options_(options),
      random_(options.seed + 17),
      rows_(program.model()) {
  for (const std::vector<int>& cut : relaxation.cut_columns) {
    std::vector<Term> terms;
    for (const int column : cut) terms.push_back({column, 1});
    rows_.addRow(terms, 1, kInfinity);
  }
  transpose();
  describeColumns();
}

void LocalSearch::transpose() {
  rows_of_.resize(static_cast<size_t>(rows_.numColumns()));
  for (int r = 0; r < rows_.numRows(); ++r) {
    for (int e = rows_.row_start[static_cast<size_t>(r)];
         e < rows_.row_start[static_cast<size_t>(r) + 1]; ++e) {
      rows_of_[static_cast<size_t>(rows_.index[static_cast<size_t>(e)])].push_back(r);
    }
  }
}

void LocalSearch::describeColumns() {
  const auto columns = static_cast<size_t>(program_.numColumns());
  const Problem& problem = program_.problem();
  first_stage_.assign(columns, problem.endStage());
  last_stage_.assign(columns, 0);
  columns_of_.resize(problem.values.size());
  const auto span = [&](int column, int first, int last) {
    first_stage_[static_cast<size_t>(column)] =
        std::min(first_stage_[static_cast<size_t>(column)], first);
    last_stage_[static_cast<size_t>(column)] =
        std::max(last_stage_[static_cast<size_t>(column)], last);
  };
  for (const MicroStep& step : program_.steps()) {
    if (step.replay < 0) continue;
    span(step.column, step.stage, step.stage);
    const int owner = problem.replays[static_cast<size_t>(step.replay)].outputs.front();
    columns_of_[static_cast<size_t>(owner)].push_back(step.column);
  }
  for (size_t v = 0; v < problem.values.size(); ++v) {
    const auto& events = program_.events()[v];
    for (size_t k = 0; k + 1 < events.size(); ++k) {
      const auto stageOf = [&](const TouchEvent& event) {
        return event.step < 0 ? 0 : program_.steps()[static_cast<size_t>(event.step)].stage;
      };
      span(events[k].gap_column, stageOf(events[k]), stageOf(events[k + 1]));
      columns_of_[v].push_back(events[k].gap_column);
    }
  }
}

double LocalSearch::scoreOf(const std::vector<double>& point, double& excess) const {
  const std::vector<double> bytes = program_.profile(point);
  const auto budget = static_cast<double>(program_.options().budget_bytes);
  excess = std::max(0.0, *std::max_element(bytes.begin(), bytes.end()) - budget);
  if (excess < kExcessTolerance) excess = 0;
  double score = kExcessPrice * excess / budget;
  for (size_t c = 0; c < point.size(); ++c) score += rows_.cost[c] * point[c];
  return score;
}

void LocalSearch::moveTo(std::vector<double> point) {
  point_ = std::move(point);
  score_ = scoreOf(point_, excess_);
}

// ---- windows
// --------------------------------------------------------------------------------------------------------

std::vector<char> LocalSearch::pickValues(bool disagreeing) {
  std::vector<char> free(point_.size(), 0);
  const size_t values = columns_of_.size();
  std::vector<size_t> centres;
  for (size_t i = 0, n = 1 + below(3); i < n; ++i) centres.push_back(below(values));
  std::vector<char> taken(values, 0);
  size_t count = 0;
  for (size_t reach = 0; count < size_ && reach <= values; ++reach) {
    for (const size_t centre : centres) {
      for (const size_t v :
           {centre - std::min(reach, centre), std::min(values - 1, centre + reach)}) {
        if (taken[v]) continue;
        taken[v] = 1;
        for (const int column : columns_of_[v]) {
          const auto c = static_cast<size_t>(column);
          if (disagreeing && std::abs(point_[c] - relaxation_.x[c]) <= kDisagreement) continue;
          free[c] = 1;
          ++count;
        }
      }
    }
  }
  return free;
}

std::vector<char> LocalSearch::pickStages() {
  const std::vector<double> bytes = program_.profile(point_);
  const auto budget = static_cast<double>(program_.options().budget_bytes);
  const auto for_step =
      static_cast<double>(program_.problem().bytesForStep(program_.options().budget_bytes));
  const double tight = excess_ > 0 ? budget : budget - kLoose * for_step;
  std::vector<int> hot;
  for (size_t s = 0; s < bytes.size(); ++s) {
    const int stage = program_.steps()[s].stage;
    if (bytes[s] >= tight && (hot.empty() || hot.back() != stage)) hot.push_back(stage);
  }
  const int stages = program_.problem().numStages();
  const int centre = !hot.empty() && uniform() < 0.8
                         ? hot[below(hot.size())]
                         : static_cast<int>(below(static_cast<size_t>(stages)));
  std::vector<char> free;
  for (int reach = 2;; reach += std::max(1, reach / 3)) {
    free.assign(point_.size(), 0);
    size_t count = 0;
    for (size_t c = 0; c < point_.size(); ++c) {
      const bool meets = last_stage_[c] >= centre - reach && first_stage_[c] <= centre + reach;
      const bool ends = first_stage_[c] >= centre - reach || last_stage_[c] <= centre + reach;
      if (meets && ends) {
        free[c] = 1;
        ++count;
      }
    }
    if (count >= size_ || reach > stages) return free;
  }
}

// Whether generator states are kept follows from the replays: let it.
void LocalSearch::freeGenerators(std::vector<char>& free) const {
  for (size_t c = 0; c < free.size(); ++c) {
    if (first_stage_[c] > last_stage_[c]) free[c] = 1;  // no event of its own
  }
}

LocalSearch::Window LocalSearch::makeWindow(const std::vector<char>& free) {
  Window window;
  window.elastic = excess_ > 0;
  std::vector<int> place(point_.size(), -1);
  for (size_t c = 0; c < point_.size(); ++c) {
    if (!free[c]) continue;
    place[c] =
        window.model.addColumn(rows_.cost[c], rows_.lower[c], rows_.upper[c], rows_.integer[c]);
    window.columns.push_back(static_cast<int>(c));
    window.start.push_back(point_[c]);
  }
  if (window.elastic) {
    window.model.addColumn(kExcessPrice, 0, kInfinity, false);
    window.start.push_back(excess_ / static_cast<double>(program_.options().budget_bytes));
  }
  addProgramRows(free, place, window);
  addMemoryRows(free, place, window);
  return window;
}

void LocalSearch::addProgramRows(const std::vector<char>& free, const std::vector<int>& place,
                                 Window& window) const {
  std::vector<int> touched;
  for (const int column : window.columns) {
    const auto& rows = rows_of_[static_cast<size_t>(column)];
    touched.insert(touched.end(), rows.begin(), rows.end());
  }
  std::sort(touched.begin(), touched.end());
  touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
  std::vector<Term> terms;
  for (const int r : touched) {
    terms.clear();
    double fixed = 0, least = 0, most = 0;
    for (int e = rows_.row_start[static_cast<size_t>(r)];
         e < rows_.row_start[static_cast<size_t>(r) + 1]; ++e) {
      const auto c = static_cast<size_t>(rows_.index[static_cast<size_t>(e)]);
      const double a = rows_.value[static_cast<size_t>(e)];
      if (free[c]) {
        terms.push_back({place[c], a});
        (a < 0 ? least : most) += a;
      } else {
        fixed += a * point_[c];
      }
    }
    const double lower = rows_.row_lower[static_cast<size_t>(r)] - fixed;
    const double upper = rows_.row_upper[static_cast<size_t>(r)] - fixed;
    if (least < lower - 1e-9 || most > upper + 1e-9) window.model.addRow(terms, lower, upper);
  }
}

// One row for each stretch of steps between which no free item begins or ends: its greatest fixed
// load. Stretches whose items are a subset of a neighbour's with no less fixed load say nothing
// new.
void LocalSearch::addMemoryRows(const std::vector<char>& free, const std::vector<int>& place,
                                Window& window) const {
  std::vector<double> fixed_point(point_);
  for (const int column : window.columns) fixed_point[static_cast<size_t>(column)] = 0;
  const std::vector<double> fixed = program_.profile(fixed_point);
  const auto budget = static_cast<double>(program_.options().budget_bytes);
  const size_t steps = fixed.size();
  std::vector<double> free_bytes(steps + 1, 0);
  std::vector<char> begins(steps + 1, 0), ends(steps + 1, 0);
  std::vector<std::vector<const MemoryItem*>> starting(steps);
  for (const MemoryItem& item : program_.items()) {
    if (!free[static_cast<size_t>(item.column)] || item.first > item.last) continue;
    free_bytes[static_cast<size_t>(item.first)] += static_cast<double>(item.bytes);
    free_bytes[static_cast<size_t>(item.last) + 1] -= static_cast<double>(item.bytes);
    begins[static_cast<size_t>(item.first)] = 1;
    ends[static_cast<size_t>(item.last) + 1] = 1;
    starting[static_cast<size_t>(item.first)].push_back(&item);
  }
  struct Stretch {
    size_t first, step;   // first step, and the one with the greatest fixed load
    bool grows, shrinks;  // against the stretch before it
    bool hard = false;
  };
  std::vector<Stretch> stretches;
  double potential = 0;
  for (size_t s = 0; s < steps; ++s) {
    potential += free_bytes[s];
    if (s == 0 || begins[s] || ends[s]) stretches.push_back({s, s, begins[s] != 0, ends[s] != 0});
    Stretch& stretch = stretches.back();
    if (fixed[s] > fixed[stretch.step]) stretch.step = s;
    if (fixed[s] + potential > budget) stretch.hard = true;
  }
  std::vector<const MemoryItem*> active;
  std::vector<Term> terms;
  for (size_t i = 0; i < stretches.size(); ++i) {
    const Stretch& stretch = stretches[i];
    const size_t end = i + 1 < stretches.size() ? stretches[i + 1].first : steps;
    active.erase(std::remove_if(active.begin(), active.end(),
                                [&](const MemoryItem* item) {
                                  return static_cast<size_t>(item->last) < stretch.first;
                                }),
                 active.end());
    active.insert(active.end(), starting[stretch.first].begin(), starting[stretch.first].end());
    if (!stretch.hard) continue;
    const bool in_next = i + 1 < stretches.size() && !stretches[i + 1].shrinks &&
                         fixed[stretches[i + 1].step] >= fixed[stretch.step];
    const bool in_last = i > 0 && !stretch.grows &&
                         fixed[stretches[i - 1].step] >= fixed[stretch.step] &&
                         stretches[i - 1].hard;
    if (in_next || in_last) continue;
    terms.clear();
    for (const MemoryItem* item : active) {
      if (static_cast<size_t>(item->last) + 1 >= end) {
        terms.push_back(
            {place[static_cast<size_t>(item->column)], static_cast<double>(item->bytes) / budget});
      }
    }
    mergeTerms(terms);
    if (window.elastic) terms.push_back({window.model.numColumns() - 1, -1});
    window.model.addRow(terms, -kInfinity, (budget - fixed[stretch.step]) / budget);
  }
}

bool LocalSearch::improveOnce(double time_limit_seconds) {
  if (columns_of_.empty()) return false;  // every value is too small to be a choice
  const double limit = std::min(options_.window_seconds, time_limit_seconds);
  std::vector<char> free;
  const double kind = uniform();
  const double stage_share = excess_ > 0 ? 0.7 : 0.25;
  if (kind < stage_share) {
    free = pickStages();
  } else {
    const bool guided = !relaxation_.x.empty() && uniform() < 0.45;
    free = pickValues(guided);
  }
  freeGenerators(free);
  const Window window = makeWindow(free);
  last_was_everything_ = window.columns.size() == point_.size();
  if (window.columns.empty()) return false;
  const Deadline clock(limit);
  const MipResult mip = solveMip(window.model, {.time_limit_seconds = limit,
                                                .relative_gap = kWindowGap,
                                                .threads = options_.threads,
                                                .start = window.start,
                                                .solver = options_.solver});
  const double used = clock.elapsed();
  if (used < kFast * options_.window_seconds) {
    size_ = std::min(static_cast<size_t>(static_cast<double>(size_) * kGrowth) + 1, point_.size());
  } else if (used > kSlow * options_.window_seconds) {
    size_ = std::max(kLeastColumns, static_cast<size_t>(static_cast<double>(size_) * kShrinkage));
  }
  if (mip.x.empty()) return false;
  std::vector<double> next = point_;
  for (size_t i = 0; i < window.columns.size(); ++i)
    next[static_cast<size_t>(window.columns[i])] = isYes(mip.x[i]) ? 1 : 0;
  program_.leastRetention(next);
  double excess = 0;
  const double score = scoreOf(next, excess);
  if (score > score_ + kLeastGain) return false;
  const bool better = score < score_ - kLeastGain;
  point_ = std::move(next);
  score_ = score;
  excess_ = excess;
  return better;
}

}  // namespace poet::planner
