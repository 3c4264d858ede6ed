#include "planner/replay_forecast.h"

#include <algorithm>
#include <utility>

#include "planner/timeline.h"

namespace poet::planner {
namespace {

size_t at(int i) { return static_cast<size_t>(i); }

}  // namespace

double reversalRuns(double links, int64_t spare) {
  if (links <= 1) return 0;
  if (spare <= 0) return links * (links - 1) / 2;
  double reach = 1, runs = 0;  // C(spare + 1 + r, r), and the runs of the links up to there
  for (int64_t r = 1; reach < links; ++r) {
    const double next = reach * static_cast<double>(spare + 1 + r) / static_cast<double>(r);
    runs += static_cast<double>(r) * (std::min(next, links) - reach);
    reach = next;
  }
  return runs;
}

ReplayForecast::ReplayForecast(const Problem& problem)
    : problem_(problem), place_(problem.values.size(), -1) {
  const OpId peak = makeTimeline(problem, problem.leastPlan()).peak_op;
  for (int t = 0; t < problem.numStages(); ++t) {
    const Stage& stage = problem.stages[at(t)];
    if (stage.op == peak) peak_stage_ = t;
    int64_t bytes = stage.fixed_before_bytes;
    for (const int u : stage.needs) bytes += problem.values[at(u)].bytes;
    stage_bytes_.push_back(bytes);
  }
}

// -1: not behind the peak.
int ReplayForecast::wantedAt(int v, int stage) const {
  return problem_.plainTouchFrom(v, std::max(stage, peak_stage_));
}

double ReplayForecast::costOf(int v) const {
  const int recipe = problem_.values[at(v)].recipe;
  if (recipe < 0) return 0;
  const Replay& replay = problem_.replays[at(recipe)];
  return replay.cost / static_cast<double>(replay.outputs.size());
}

void ReplayForecast::add(Gap& gap, int v, int stage) const {
  const Evictable& value = problem_.values[at(v)];
  if (value.recipe < 0) return;
  const Replay& replay = problem_.replays[at(value.recipe)];
  int64_t link = replay.replay_bytes;
  for (const int u : replay.outputs) link -= problem_.values[at(u)].bytes;
  for (const int u : replay.inputs) link += problem_.values[at(u)].bytes;
  gap.link_bytes = std::max(gap.link_bytes, link);
  gap.cost += costOf(v);
  gap.bytes += static_cast<double>(value.bytes);
  ++gap.values;
  if (gap.stage < 0) gap.stage = stage;
}

ReplayForecast::Gap ReplayForecast::merged(size_t resident) const {
  const Gap &sooner = gaps_[resident], &later = gaps_[resident + 1];
  Gap gap = sooner;
  add(gap, residents_[resident], wanted_at_[resident]);
  gap.cost += later.cost;
  gap.bytes += later.bytes;
  gap.values += later.values;
  if (gap.stage < 0) gap.stage = later.stage;
  gap.link_bytes = std::max(gap.link_bytes, later.link_bytes);
  return gap;
}

double ReplayForecast::costOf(const Gap& gap, int64_t later_bytes) const {
  if (gap.values == 0) return 0;
  const int64_t free_bytes =
      budget_bytes_ - stage_bytes_[at(gap.stage)] - gap.link_bytes - later_bytes;
  const double mean_bytes = std::max(1.0, gap.bytes / gap.values);
  const auto spare =
      static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, free_bytes)) / mean_bytes);
  return gap.cost / gap.values * reversalRuns(gap.values + 1, spare);
}

void ReplayForecast::lookAt(const Moment& moment) {
  std::vector<std::pair<int, int>> wanted;  // stage, value
  for (int v = 0; v < problem_.numValues(); ++v) {
    const Evictable& value = problem_.values[at(v)];
    place_[at(v)] = -1;
    const bool resident = moment.resident[at(v)] != 0;
    const bool comes = value.first_stage >= moment.stage && value.first_stage < peak_stage_;
    if (resident ? moment.locked[at(v)] : value.first_stage >= moment.stage && !comes) continue;
    const int stage = wantedAt(v, moment.stage);
    const bool is_on_its_way = !resident && stage == moment.stage;
    if (stage >= 0 && !is_on_its_way) wanted.emplace_back(stage, v);
  }
  std::sort(wanted.begin(), wanted.end(), [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first < b.first : a.second > b.second;
  });
  residents_.clear();
  wanted_at_.clear();
  gaps_.assign(1, {});
  for (const auto& [stage, v] : wanted) {
    if (moment.resident[at(v)]) {
      place_[at(v)] = static_cast<int>(residents_.size());
      residents_.push_back(v);
      wanted_at_.push_back(stage);
      gaps_.emplace_back();
    } else {
      add(gaps_.back(), v, stage);
    }
  }
  budget_bytes_ = moment.budget_bytes;
  later_bytes_.assign(gaps_.size(), 0);
  later_cost_.assign(gaps_.size() + 1, 0);
  cost_ = 0;
  int64_t later_bytes = 0;
  for (size_t i = gaps_.size(); i-- > 0;) {
    if (i < residents_.size()) later_bytes += problem_.values[at(residents_[i])].bytes;
    later_bytes_[i] = later_bytes;
    later_cost_[i] = later_cost_[i + 1] + costOf(gaps_[i], later_bytes);
    cost_ += costOf(gaps_[i], later_bytes - moment.excess_bytes);
  }
  sooner_cost_.clear();
}

const std::vector<double>& ReplayForecast::soonerWith(int64_t bytes) {
  for (const auto& [known, costs] : sooner_cost_) {
    if (known == bytes) return costs;
  }
  std::vector<double> costs(gaps_.size() + 1, 0);
  for (size_t i = 0; i < gaps_.size(); ++i)
    costs[i + 1] = costs[i] + costOf(gaps_[i], later_bytes_[i] - bytes);
  sooner_cost_.emplace_back(bytes, std::move(costs));
  return sooner_cost_.back().second;
}

double ReplayForecast::riseWithout(int v) {
  if (place_[at(v)] < 0) return 0;
  const auto i = static_cast<size_t>(place_[at(v)]);
  const int64_t bytes = problem_.values[at(v)].bytes;
  const double without =
      soonerWith(bytes)[i] + costOf(merged(i), later_bytes_[i + 1]) + later_cost_[i + 2];
  return without - cost_;
}

}  // namespace poet::planner
