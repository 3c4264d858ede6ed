#include "planner/cuts.h"

#include <algorithm>
#include <map>
#include <utility>

namespace poet::planner {
namespace {

constexpr double kViolation = 0.02;
constexpr double kZero = 1e-9;

}  // namespace

PathCutSeparator::PathCutSeparator(const Program& program)
    : program_(program), lookup_(program.problem().values.size()), labels_(lookup_.size()) {
  const auto& steps = program.steps();
  for (size_t s = 0; s < steps.size(); ++s) {
    if (steps[s].replay < 0) continue;
    const Replay& replay = program.problem().replays[static_cast<size_t>(steps[s].replay)];
    for (const int v : replay.outputs) {
      Lookup& lookup = lookup_[static_cast<size_t>(v)];
      lookup.made_steps.push_back(static_cast<int>(s));
      lookup.made_columns.push_back(steps[s].column);
      lookup.made_by_page.push_back(replay.is_page);
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
  gatherLive(x);
  const Problem& problem = program_.problem();
  std::map<std::pair<int, int>, PathCut> best;  // by (stage, value)
  for (const int tau : live_stages_) {
    ++window_;
    window_stage_ = tau;
    window_first_ = program_.firstStepOf(tau);
    for (int v = 0; v < problem.numValues(); ++v) {
      if (problem.values[static_cast<size_t>(v)].first_stage >= tau) continue;
      const int t = problem.plainTouchFrom(v, tau);
      if (t < 0) continue;
      const int touch = program_.executionOf(t);
      const double value = label(x, v, touch);
      if (value >= 1 - kViolation) continue;
      PathCut& cut = best[{t, v}];
      if (cut.columns.empty() || value < cut.value - kZero) cut = follow(v, touch, value);
    }
  }
  std::vector<PathCut> cuts;
  for (auto& [touch, cut] : best) cuts.push_back(std::move(cut));
  std::sort(cuts.begin(), cuts.end(), [](const PathCut& a, const PathCut& b) {
    return a.value != b.value ? a.value < b.value : a.columns < b.columns;
  });
  return cuts;
}

void PathCutSeparator::gatherLive(std::span<const double> x) {
  live_stages_.clear();
  for (size_t v = 0; v < lookup_.size(); ++v) {
    Lookup& lookup = lookup_[v];
    lookup.live.clear();
    lookup.replayed_before.assign(1, 0);
    lookup.paged_before.assign(1, 0);
    for (size_t k = 0; k < lookup.made_columns.size(); ++k) {
      const double made = x[static_cast<size_t>(lookup.made_columns[k])];
      if (made <= kZero) continue;
      const bool page = lookup.made_by_page[k] != 0;
      lookup.live.push_back(static_cast<int>(k));
      lookup.replayed_before.push_back(lookup.replayed_before.back() + (page ? 0 : made));
      lookup.paged_before.push_back(lookup.paged_before.back() + (page ? made : 0));
      live_stages_.push_back(program_.steps()[static_cast<size_t>(lookup.made_steps[k])].stage);
    }
    labels_[v].assign(lookup.live.size() + 1, Label{});
  }
  std::sort(live_stages_.begin(), live_stages_.end());
  live_stages_.erase(std::unique(live_stages_.begin(), live_stages_.end()), live_stages_.end());
}

// Recursion depth: the longest chain of inputs with fractional replays, a few hundred.
double PathCutSeparator::label(std::span<const double> x, int v, int before) {
  const Lookup& lookup = lookup_[static_cast<size_t>(v)];
  const size_t end = numLiveBefore(lookup, before);
  if (const Label& known = labels_[static_cast<size_t>(v)][end]; known.window == window_)
    return known.value;
  Label found;
  found.window = window_;
  const int gap = gapAcross(v);
  const double kept = gap >= 0 ? x[static_cast<size_t>(gap)] : 0;
  if (kept >= 1 - kViolation) {  // on no violated path
    found.value = 1;
    labels_[static_cast<size_t>(v)][end] = found;
    return found.value;
  }
  const size_t begin = std::min(numLiveBefore(lookup, window_first_), end);
  double paged = lookup.paged_before[end] - lookup.paged_before[begin];
  if (const int out = outColumn(v); out >= 0 && x[static_cast<size_t>(out)] < paged) {
    paged = x[static_cast<size_t>(out)];
    found.by_page_out = true;
  }
  // Its replays are charged from the latest on, until one of them is charged to an input instead.
  double charged = lookup.replayed_before[end] - lookup.replayed_before[begin];
  const int recipe = program_.problem().values[static_cast<size_t>(v)].recipe;
  for (size_t k = end; k-- > begin;) {
    const auto made = static_cast<size_t>(lookup.live[k]);
    if (lookup.made_by_page[made]) continue;
    const double later = lookup.replayed_before[end] - lookup.replayed_before[k + 1];
    if (later >= charged - kZero) break;
    int next = -1;
    const double through = later + chargeInputs(x, recipe, lookup.made_steps[made], next);
    if (next < 0 || through >= charged - kZero) continue;
    charged = through;
    found.pass = static_cast<int>(k);
    found.next = next;
  }
  found.value = kept + paged + charged;
  labels_[static_cast<size_t>(v)][end] = found;
  return found.value;
}

// The least label of the inputs of a replay at `step`; `next` is the input that has it.
double PathCutSeparator::chargeInputs(std::span<const double> x, int recipe, int step, int& next) {
  const Problem& problem = program_.problem();
  double least = 1;
  for (const int u : problem.replays[static_cast<size_t>(recipe)].inputs) {
    if (problem.values[static_cast<size_t>(u)].first_stage >= window_stage_)
      continue;  // does not exist yet
    const double value = label(x, u, step);
    if (value >= least) continue;
    least = value;
    next = u;
  }
  return least;
}

size_t PathCutSeparator::numLiveBefore(const Lookup& lookup, int step) const {
  const auto end = std::partition_point(lookup.live.begin(), lookup.live.end(), [&](int k) {
    return lookup.made_steps[static_cast<size_t>(k)] < step;
  });
  return static_cast<size_t>(end - lookup.live.begin());
}

// Column of the gap that spans the start of the window; -1 where there is none.
int PathCutSeparator::gapAcross(int v) const {
  const Lookup& lookup = lookup_[static_cast<size_t>(v)];
  const auto k = std::lower_bound(lookup.gap_first.begin(), lookup.gap_first.end(), window_first_) -
                 lookup.gap_first.begin() - 1;
  if (k < 0 || lookup.gap_last[static_cast<size_t>(k)] < window_first_) return -1;
  return lookup.gap_columns[static_cast<size_t>(k)];
}

// Column of the page_out that a page-in of v needs; -1 where every plan has it, or none has.
int PathCutSeparator::outColumn(int v) const {
  const int page = program_.problem().values[static_cast<size_t>(v)].page;
  return page < 0 ? -1 : program_.outColumn(page);
}

PathCut PathCutSeparator::follow(int v, int before, double value) const {
  PathCut cut;
  cut.value = value;
  while (v >= 0) {
    const Lookup& lookup = lookup_[static_cast<size_t>(v)];
    const Label& label = labels_[static_cast<size_t>(v)][numLiveBefore(lookup, before)];
    if (const int gap = gapAcross(v); gap >= 0) cut.columns.push_back(gap);
    if (label.by_page_out) cut.columns.push_back(outColumn(v));
    const int passed =
        label.pass < 0
            ? window_first_ - 1
            : lookup.made_steps[static_cast<size_t>(lookup.live[static_cast<size_t>(label.pass)])];
    for (size_t k = 0; k < lookup.made_steps.size(); ++k) {
      const int s = lookup.made_steps[k];
      if (s < window_first_ || s >= before) continue;
      if (lookup.made_by_page[k] ? !label.by_page_out : s > passed)
        cut.columns.push_back(lookup.made_columns[k]);
    }
    v = label.next;
    before = passed;
  }
  std::sort(cut.columns.begin(), cut.columns.end());
  cut.columns.erase(std::unique(cut.columns.begin(), cut.columns.end()), cut.columns.end());
  return cut;
}

}  // namespace poet::planner
