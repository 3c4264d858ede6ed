#include "planner/replay_forecast.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "planner/timeline.h"

namespace poet::planner {
namespace {

// Gaps x numbers of values that are kept, of a placement and of all of a plan.
constexpr int64_t kMostPlacingWork = 2'000'000, kMostPlacingWorkOfPlan = 20'000'000;

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
  gap.stage_bytes = std::max(gap.stage_bytes, stage_bytes_[at(stage)]);
}

ReplayForecast::Gap ReplayForecast::merged(size_t resident) const {
  const Gap &sooner = gaps_[resident], &later = gaps_[resident + 1];
  Gap gap = sooner;
  add(gap, residents_[resident], wanted_at_[resident]);
  gap.cost += later.cost;
  gap.bytes += later.bytes;
  gap.values += later.values;
  gap.stage_bytes = std::max(gap.stage_bytes, later.stage_bytes);
  gap.link_bytes = std::max(gap.link_bytes, later.link_bytes);
  return gap;
}

int64_t ReplayForecast::freeBytes(const Gap& gap, int64_t later_bytes) const {
  return budget_bytes_ - gap.stage_bytes - gap.link_bytes - later_bytes;
}

double ReplayForecast::costOf(const Gap& gap, int64_t later_bytes) const {
  if (gap.values == 0) return 0;
  const int64_t free_bytes = freeBytes(gap, later_bytes);
  const double mean_bytes = std::max(1.0, gap.bytes / gap.values);
  const auto spare =
      static_cast<int64_t>(static_cast<double>(std::max<int64_t>(0, free_bytes)) / mean_bytes);
  return gap.cost / gap.values * reversalRuns(gap.values + 1, spare);
}

// What is wanted behind the peak, soonest first: in memory, or missing then.
std::vector<ReplayForecast::Wanted> ReplayForecast::wantedFrom(const Moment& moment,
                                                               bool with_locked) const {
  std::vector<Wanted> wanted;
  for (int v = 0; v < problem_.numValues(); ++v) {
    const Evictable& value = problem_.values[at(v)];
    const bool resident = moment.resident[at(v)] != 0;
    const bool comes = value.first_stage >= moment.stage && value.first_stage < peak_stage_;
    if (resident ? moment.locked[at(v)] && !with_locked
                 : value.first_stage >= moment.stage && !comes)
      continue;
    const int stage = wantedAt(v, moment.stage);
    // Missing now, but not when it is wanted: made right before the peak.
    if (comes && stage == peak_stage_ && value.first_stage == peak_stage_ - 1) continue;
    const bool is_of_this_stage = stage == moment.stage && (!resident || with_locked);
    if (stage >= 0 && !is_of_this_stage) wanted.push_back({.stage = stage, .value = v});
  }
  std::sort(wanted.begin(), wanted.end());
  return wanted;
}

void ReplayForecast::lookAt(const Moment& moment) {
  std::fill(place_.begin(), place_.end(), -1);
  residents_.clear();
  wanted_at_.clear();
  gaps_.assign(1, {});
  for (const auto& [stage, v] : wantedFrom(moment, /*with_locked=*/false)) {
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

int64_t ReplayForecast::roomForKept(const Moment& moment, const std::vector<int>& coming) const {
  int64_t most = 0;
  if (!coming.empty()) {
    Gap walk;
    for (const int v : coming) add(walk, v, moment.stage);
    most = stage_bytes_[at(moment.stage)] + walk.link_bytes;
  }
  for (int t = moment.stage; t <= std::max(moment.stage, peak_stage_); ++t) {
    const Stage& stage = problem_.stages[at(t)];
    const int64_t needs = stage_bytes_[at(t)] - stage.fixed_before_bytes;
    most = std::max(most, stage.fixed_during_bytes + needs);
  }
  return moment.budget_bytes - most;
}

// See Note [Placement]: best_[k][i] is wanted i kept, and k that are wanted later.
class ReplayForecast::Placing {
 public:
  Placing(const ReplayForecast& forecast, std::vector<Wanted> wanted, std::vector<char> may_stay,
          int64_t room_bytes)
      : forecast_(forecast),
        wanted_(std::move(wanted)),
        may_stay_(std::move(may_stay)),
        room_bytes_(room_bytes),
        num_wanted_(static_cast<int>(wanted_.size())) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < num_wanted_; ++i) {
      if (mayStay(i)) least = std::min(least, std::max<int64_t>(1, bytesOf(i)));
    }
    most_kept_ =
        static_cast<int>(std::min<int64_t>(num_wanted_, std::max<int64_t>(0, room_bytes) / least));
  }

  int64_t work() const { return int64_t{num_wanted_} * num_wanted_ * (most_kept_ + 1); }

  std::vector<char> run() {
    best_.assign(at(most_kept_), std::vector<Choice>(at(num_wanted_)));
    for (int i = num_wanted_; i-- > 0;) {
      if (mayStay(i)) placeBehind(i);
    }
    placeBehind(-1);
    std::vector<char> kept(may_stay_.size(), 0);
    for (int i = whole_.next, k = whole_count_ - 1; k >= 0; i = best_[at(k)][at(i)].next, --k)
      kept[at(wanted_[at(i)].value)] = 1;
    return kept;
  }

 private:
  struct Choice {
    double cost = std::numeric_limits<double>::infinity();  // of all gaps behind it
    int64_t bytes = 0;                                      // of what is kept, itself included
    int next = -1;                                          // the next that is kept
  };

  bool mayStay(int i) const { return may_stay_[at(wanted_[at(i)].value)] != 0; }
  int64_t bytesOf(int i) const { return forecast_.problem_.values[at(wanted_[at(i)].value)].bytes; }

  // All choices of the next that is kept behind i; -1: behind none. The gap between them grows.
  void placeBehind(int i) {
    Gap gap;
    for (int next = i + 1; next < num_wanted_; ++next) {
      if (mayStay(next)) {
        for (int k = 1; k <= most_kept_; ++k) take(i, k, next, gap, best_[at(k - 1)][at(next)]);
      }
      forecast_.add(gap, wanted_[at(next)].value, wanted_[at(next)].stage);
    }
    take(i, 0, -1, gap, {.cost = 0});
  }

  void take(int i, int k, int next, const Gap& gap, const Choice& behind) {
    if (gap.values > 0 && forecast_.freeBytes(gap, behind.bytes) < 0) return;
    const Choice found{.cost = behind.cost + forecast_.costOf(gap, behind.bytes),
                       .bytes = behind.bytes + (i < 0 ? 0 : bytesOf(i)),
                       .next = next};
    if (found.bytes > room_bytes_ || (i >= 0 && k >= most_kept_)) return;
    Choice& best = i < 0 ? whole_ : best_[at(k)][at(i)];
    if (found.cost >= best.cost) return;
    best = found;
    if (i < 0) whole_count_ = k;
  }

  const ReplayForecast& forecast_;
  const std::vector<Wanted> wanted_;
  const std::vector<char> may_stay_;  // by value
  const int64_t room_bytes_;
  const int num_wanted_;
  int most_kept_ = 0;
  std::vector<std::vector<Choice>> best_;
  Choice whole_;
  int whole_count_ = 0;  // kept in it
};

std::vector<char> ReplayForecast::placement(const Moment& moment, const std::vector<int>& coming) {
  budget_bytes_ = moment.budget_bytes;
  std::vector<char> may_stay(problem_.values.size(), 0);
  for (int v = 0; v < problem_.numValues(); ++v)
    may_stay[at(v)] = moment.resident[at(v)] || problem_.values[at(v)].first_stage >= moment.stage;
  for (const int v : coming) may_stay[at(v)] = 1;
  Placing placing(*this, wantedFrom(moment, /*with_locked=*/true), std::move(may_stay),
                  roomForKept(moment, coming));
  placing_work_ += placing.work();
  if (placing.work() > kMostPlacingWork || placing_work_ > kMostPlacingWorkOfPlan) return {};
  return placing.run();
}

}  // namespace poet::planner
