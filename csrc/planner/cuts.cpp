#include "planner/cuts.h"

#include <algorithm>

namespace poet::planner {
namespace {

constexpr double kViolation = 0.02;
constexpr double kWindowSpacing =
    1.3;  // stage starts tried per touch: the last ones, then ever sparser
constexpr double kZero = 1e-9;

}  // namespace

PathCutSeparator::PathCutSeparator(const Program& program)
    : program_(program), lookup_(program.problem().values.size()), labels_(lookup_.size()) {
  const auto& steps = program.steps();
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].replay < 0) continue;
    for (const int v : program.problem().replays[static_cast<size_t>(steps[s].replay)].outputs) {
      Lookup& lookup = lookup_[static_cast<size_t>(v)];
      const bool page = program.problem().replays[static_cast<size_t>(steps[s].replay)].is_page;
      lookup.made_steps.push_back(static_cast<int>(s));
      lookup.made_columns.push_back(steps[s].column);
      lookup.made_by_page.push_back(page);
    }
  }
  for (size_t v = 0; v < lookup_.size(); ++v) {
    const auto& events = program.events()[v];
    for (size_t k = 0; k + 1 < events.size(); ++k) {
      lookup_[v].gap_first.push_back(events[k].step);
      lookup_[v].gap_last.push_back(events[k + 1].step);
      lookup_[v].gap_columns.push_back(events[k].gap_column);
    }
  }
}

std::vector<PathCut> PathCutSeparator::separate(std::span<const double> x) {
  for (Lookup& lookup : lookup_) {
    lookup.made_sum.assign(1, 0);
    lookup.paged_sum.assign(1, 0);
    for (size_t k = 0; k < lookup.made_columns.size(); ++k) {
      const double made = x[static_cast<size_t>(lookup.made_columns[k])];
      lookup.made_sum.push_back(lookup.made_sum.back() + made);
      lookup.paged_sum.push_back(lookup.paged_sum.back() + (lookup.made_by_page[k] ? made : 0));
    }
  }
  std::vector<PathCut> cuts;
  const Problem& problem = program_.problem();
  for (int t = 0; t < problem.numStages(); ++t) {
    for (const int v : problem.stages[static_cast<size_t>(t)].needs) separateTouch(x, t, v, cuts);
  }
  std::sort(cuts.begin(), cuts.end(), [](const PathCut& a, const PathCut& b) {
    return a.value != b.value ? a.value < b.value : a.columns < b.columns;
  });
  return cuts;
}

void PathCutSeparator::separateTouch(std::span<const double> x, int t, int v,
                                     std::vector<PathCut>& cuts) {
  const Lookup& lookup = lookup_[static_cast<size_t>(v)];
  const int previous = program_.problem().plainTouchBefore(v, t);
  window_end_ = program_.executionOf(t);
  auto k = std::lower_bound(lookup.made_steps.begin(), lookup.made_steps.end(), window_end_) -
           lookup.made_steps.begin();
  PathCut best;
  best.value = 1 - kViolation;
  int last_stage = -1;
  int stages = 0;
  double next_tried = 1;
  while (--k >= 0) {
    const int stage =
        program_.steps()[static_cast<size_t>(lookup.made_steps[static_cast<size_t>(k)])].stage;
    if (stage <= previous) break;
    if (stage == last_stage) continue;
    last_stage = stage;
    const bool earliest =
        k == 0 ||
        program_.steps()[static_cast<size_t>(lookup.made_steps[static_cast<size_t>(k) - 1])]
                .stage <= previous;
    if (++stages < next_tried && !earliest) continue;
    next_tried = std::max(next_tried + 1, next_tried * kWindowSpacing);
    ++window_;
    window_stage_ = stage;
    window_first_ = program_.firstStepOf(stage);
    const double value = label(x, v);
    if (value < best.value - 1e-6) best = follow(v, value);
  }
  if (!best.columns.empty()) cuts.push_back(std::move(best));
}

// Recursion depth: the longest chain of inputs with fractional replays, a few hundred.
double PathCutSeparator::label(std::span<const double> x, int v) {
  Label& label_v = labels_[static_cast<size_t>(v)];
  if (label_v.window == window_) return label_v.value;
  label_v.window = window_;
  label_v.next = -1;
  const int gap = gapAcross(v);
  const double kept = gap >= 0 ? x[static_cast<size_t>(gap)] : 0;
  if (kept >= 1 - kViolation) return label_v.value = 1;  // on no violated path
  const Lookup& lookup = lookup_[static_cast<size_t>(v)];
  const double made = within(lookup, lookup.made_sum);
  const double paged = within(lookup, lookup.paged_sum);
  label_v.value = kept + made;
  const Problem& problem = program_.problem();
  const int recipe = problem.values[static_cast<size_t>(v)].recipe;
  if (made - paged <= kZero || recipe < 0) return label_v.value;
  const Replay& replay = problem.replays[static_cast<size_t>(recipe)];
  double least = label_v.value;
  int next = -1;
  for (const int u : replay.inputs) {
    if (problem.values[static_cast<size_t>(u)].first_stage >= window_stage_)
      continue;  // does not exist yet
    const double through = kept + paged + label(x, u);
    if (through < least - kZero) {
      least = through;
      next = u;
    }
  }
  labels_[static_cast<size_t>(v)].value = least;
  labels_[static_cast<size_t>(v)].next = next;
  return least;
}

double PathCutSeparator::within(const Lookup& lookup, const std::vector<double>& sum) const {
  const auto from =
      std::lower_bound(lookup.made_steps.begin(), lookup.made_steps.end(), window_first_);
  const auto to = std::lower_bound(from, lookup.made_steps.end(), window_end_);
  return sum[static_cast<size_t>(to - lookup.made_steps.begin())] -
         sum[static_cast<size_t>(from - lookup.made_steps.begin())];
}

// Column of the gap that spans the start of the window; -1 where there is none.
int PathCutSeparator::gapAcross(int v) const {
  const Lookup& lookup = lookup_[static_cast<size_t>(v)];
  const auto k = std::lower_bound(lookup.gap_first.begin(), lookup.gap_first.end(), window_first_) -
                 lookup.gap_first.begin() - 1;
  if (k < 0 || lookup.gap_last[static_cast<size_t>(k)] < window_first_) return -1;
  return lookup.gap_columns[static_cast<size_t>(k)];
}

PathCut PathCutSeparator::follow(int v, double value) const {
  PathCut cut;
  cut.value = value;
  for (int z = v; z >= 0; z = labels_[static_cast<size_t>(z)].next) {
    if (const int gap = gapAcross(z); gap >= 0) cut.columns.push_back(gap);
    const bool goes_on = labels_[static_cast<size_t>(z)].next >= 0;
    const Lookup& lookup = lookup_[static_cast<size_t>(z)];
    for (size_t k = 0; k < lookup.made_steps.size(); ++k) {
      if (goes_on && !lookup.made_by_page[k]) continue;
      if (lookup.made_steps[k] >= window_first_ && lookup.made_steps[k] < window_end_) {
        cut.columns.push_back(lookup.made_columns[k]);
      }
    }
  }
  std::sort(cut.columns.begin(), cut.columns.end());
  cut.columns.erase(std::unique(cut.columns.begin(), cut.columns.end()), cut.columns.end());
  return cut;
}

}  // namespace poet::planner
