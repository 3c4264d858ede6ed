#include "planner/moments.h"

#include <algorithm>

#include "planner/between_moments.h"
#include "planner/clock.h"
#include "planner/incumbent.h"
#include "planner/lp_loop.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

constexpr double kHalf = 0.5;
constexpr int kMostColumns = 150000;
constexpr double kShareOfRound = 0.3;         // of the time left: the next one takes longer
constexpr double kShareOfSearch = 0.3;        // likewise, kept for branch and cut ...
constexpr double kShareOfSmallSearch = 0.95;  // ... which small programs gain the most from
constexpr int kMostFreeColumns = 8000, kFewFreeColumns = 3000;
// A step to a proof goes for what a user asks for, a bound so close to the value of the best plan.
// Where it does not end in its share of the time, a small one, which takes next to no time, has the
// rest.
constexpr double kWantedGap = 0.0097;
constexpr double kShareOfStep = 0.9;
constexpr double kStep = 0.6, kSmallStep = 0.3;
constexpr double kProofGap = 1e-4;
// Rounds that add less than this share of what lies between bound and best plan, in a row.
constexpr double kLeastGapClosed = 0.01;
constexpr int kMostIdleRounds = 2;
// Relaxations that plans are rounded from: later ones have more cuts to find than plans to give.
constexpr int kMostPlans = 6;

// Where each stage of the fine problem lies: blocks and moments take turns.
class Places {
 public:
  explicit Places(const std::vector<int>& moments) : moments_(moments) {}

  int numStages() const { return 2 * static_cast<int>(moments_.size()) + 1; }
  // Of replays before the op of fine stage t.
  int blockOf(int t) const {
    return 2 * static_cast<int>(std::lower_bound(moments_.begin(), moments_.end(), t) -
                                moments_.begin());
  }
  // Of the op itself; -1 for what is before the step.
  int placeOf(int t) const {
    if (t < 0) return -1;
    return blockOf(t) + (std::binary_search(moments_.begin(), moments_.end(), t) ? 1 : 0);
  }

 private:
  const std::vector<int>& moments_;
};

// The use at its death that findUses adds: with a store it may be away then.
bool isHeldAtDeathOnly(const Problem& fine, const Evictable& value) {
  if (value.page < 0 || value.at_end || value.goes_on || value.use_stages.empty()) return false;
  const auto& uses = fine.graph().usesOf(value.id);
  return uses.empty() || uses.back().index < value.use_stages.back();
}

// A constant between two writes, which a schedule may page all the same.
bool isBetweenWrites(const Graph& graph, const Evictable& value, int t) {
  const auto& writers = graph.writersOf(value.id);
  return value.goes_on && writers.front().index < t && t < writers.back().index;
}

}  // namespace

Problem atMoments(const Problem& fine, const std::vector<int>& moments, int64_t free_bytes) {
  const Places places(moments);
  Problem coarse = fine;
  coarse.generator_bytes = 0;
  coarse.stages.clear();
  for (const int m : moments) {
    coarse.stages.push_back(
        {.op = fine.stages[static_cast<size_t>(m)].op, .fixed_during_bytes = Stage::kNoMemoryRow});
    Stage moment{.op = fine.stages[static_cast<size_t>(m)].op,
                 .fixed_during_bytes = fine.stages[static_cast<size_t>(m)].fixed_during_bytes};
    for (const Evictable& value : fine.values) {
      if (isBetweenWrites(fine.graph(), value, m)) moment.fixed_during_bytes -= value.bytes;
    }
    coarse.stages.push_back(std::move(moment));
  }
  coarse.stages.push_back({.op = fine.stages.back().op, .fixed_during_bytes = Stage::kNoMemoryRow});
  for (int v = 0; v < coarse.numValues(); ++v) {
    Evictable& value = coarse.values[static_cast<size_t>(v)];
    std::vector<int> uses = value.use_stages;
    if (isHeldAtDeathOnly(fine, value)) uses.pop_back();
    if (value.bytes <= free_bytes) uses.clear();
    value.first_stage = places.placeOf(value.first_stage);
    value.pin_stage = value.first_stage;
    value.use_stages.clear();
    for (const int t : uses) {
      const int place = places.placeOf(t);
      if (place <= value.first_stage) continue;
      if (!value.use_stages.empty() && value.use_stages.back() == place) continue;
      value.use_stages.push_back(place);
      coarse.stages[static_cast<size_t>(place)].needs.push_back(v);
    }
    if (value.first_stage >= 0)
      coarse.stages[static_cast<size_t>(value.first_stage)].born.push_back(v);
  }
  for (Replay& replay : coarse.replays) {
    replay.last_stage = -1;
    for (const int v : replay.outputs)
      replay.last_stage =
          std::max(replay.last_stage, coarse.values[static_cast<size_t>(v)].first_stage);
    replay.until_stage = places.blockOf(replay.until_stage);
    if (replay.out_stage >= 0) replay.out_stage = places.blockOf(replay.out_stage);
    replay.random_stages.clear();
    std::erase_if(replay.inputs, [&](int u) {
      const Evictable& input = coarse.values[static_cast<size_t>(u)];
      return input.first_stage > replay.last_stage || input.bytes <= free_bytes;
    });
  }
  return coarse;
}

Candidates momentCandidates(const Problem& coarse, double most_cost) {
  // A block serves the moment after it, too.
  return allCandidates(coarse, {.ahead = 1, .most_cost = most_cost, .rows_at_replays = false});
}

namespace {

int plainPeak(const Problem& fine) {
  const Timeline plain = makeTimeline(fine, fine.leastPlan());
  return std::max_element(
             plain.steps.begin(), plain.steps.end(),
             [](const TimelineStep& a, const TimelineStep& b) { return a.bytes < b.bytes; })
      ->stage;
}

Program programAtMoments(const Problem& coarse, int64_t budget_bytes,
                         const std::optional<double>& replay_seconds_limit,
                         double best_cost = kInfinity) {
  return Program(coarse, momentCandidates(coarse, mostCostBelow(coarse, best_cost)),
                 {.budget_bytes = budget_bytes,
                  .replay_seconds_limit = replay_seconds_limit,
                  .relaxed = true,
                  .rows_at_replays = false});
}

// Where the budget is exceeded, if it is: each moment makes the program larger.
void addMoments(const std::vector<Excess>& worst, size_t most, std::vector<int>& moments) {
  const size_t count = std::min(worst.size(), std::max<size_t>(1, most));
  const bool exceeds = worst.front().bytes > 0;
  for (size_t i = 0; i < count && (worst[i].bytes > 0 || !exceeds); ++i)
    moments.push_back(worst[i].stage);
  std::sort(moments.begin(), moments.end());
}

class BoundAtMoments {
 public:
  BoundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes, double best_cost,
                 const ExactOptions& options)
      : fine_(fine),
        free_bytes_(free_bytes),
        budget_bytes_(budget_bytes),
        best_cost_(best_cost),
        options_(options),
        deadline_(options.time_limit_seconds) {}

  BoundOverAll run() {
    moments_ = {plainPeak(fine_)};
    while (!deadline_.over()) {
      const Problem coarse = atMoments(fine_, moments_, free_bytes_);
      const Program program =
          programAtMoments(coarse, budget_bytes_, options_.replay_seconds_limit, best_cost_);
      if (result_.any && program.numColumns() > kMostColumns) break;
      const double begin = deadline_.elapsed();
      Relaxation root =
          relax(program, {.time_limit_seconds = deadline_.left(), .solver = options_.solver});
      if (root.status == SolverStatus::kInfeasible && best_cost_ < kInfinity)
        take(scaled(best_cost_));  // nothing is better
      if (!root.has_bound) break;
      const double known = result_.bound_cost;
      take(root.bound);
      if (root.status != SolverStatus::kOptimal || isClose()) break;
      const bool is_last = deadline_.elapsed() - begin > kShareOfRound * deadline_.left();
      std::vector<Excess> worst = excessBetween(fine_, moments_, free_bytes_, program, root.x);
      bool keeps_budget = worst.empty() || worst.front().bytes <= 0;
      if (keeps_budget || is_last) {
        const auto point = prove(program, root, is_last);
        if (point) {  // whole: what it exceeds the budget by says more than what fractions do
          result_.plan = planBetween(fine_, moments_, program, *point);
          worst = excessBetween(fine_, moments_, free_bytes_, program, *point);
          keeps_budget = worst.empty() || worst.front().bytes <= 0;
          if (keeps_budget) break;  // memory at first executions says no more
        }
      }
      if (worst.empty() || is_last || isClose()) break;
      if (keeps_budget && best_cost_ >= kInfinity) break;  // a first look: no plan to compare with
      const bool progressed = result_.bound_cost - known > kLeastGapClosed * (best_cost_ - known);
      idle_rounds_ = progressed || !keeps_budget ? 0 : idle_rounds_ + 1;
      if (idle_rounds_ == kMostIdleRounds) break;
      addMoments(worst, keeps_budget ? moments_.size() : moments_.size() / 2, moments_);
    }
    return std::move(result_);
  }

 private:
  void take(double scaled) {
    const double cost = fine_.constant_cost + std::max(0.0, scaled / costPerSecond(fine_));
    result_.any = true;
    result_.bound_cost = std::max(result_.bound_cost, std::min(best_cost_, cost));
  }

  bool isClose() const {
    return best_cost_ - result_.bound_cost <= kCloseEnough * fine_.plain_seconds;
  }

  // Steps to a proof (program_search.h) at the moments so far, up to the cheapest point: it is
  // returned where it costs less than the best plan.
  std::optional<std::vector<double>> prove(const Program& program, Relaxation& root, bool is_last) {
    if (root.x.empty() || best_cost_ >= kInfinity) return std::nullopt;
    const double cutoff = scaled(best_cost_ - kTooLittle * fine_.plain_seconds);
    Relaxation below = root;
    const int free_columns = fixByReducedCost(cutoff, below);
    const double share = free_columns <= kFewFreeColumns ? kShareOfSmallSearch : kShareOfSearch;
    const Deadline deadline((is_last ? 1 : share) * deadline_.left());
    if (free_columns > kMostFreeColumns || !isWorthSearching(free_columns, deadline.left()))
      return std::nullopt;
    bool is_small = false;
    while (!deadline.over() && !isClose()) {
      const double bound = std::max(root.bound, scaled(result_.bound_cost));
      const double seconds = (is_small ? 1 : kShareOfStep) * deadline.left();
      const SearchResult found = searchStep(program, root, bound,
                                            {.time_limit_seconds = seconds,
                                             .relative_gap = kProofGap,
                                             .threads = options_.threads,
                                             .cutoff = cutoff,
                                             .step = is_small ? kSmallStep : nextStep(),
                                             .solver = options_.solver});
      take(found.bound);
      if (found.status == SolverStatus::kOptimal && found.plan) return program.pointOf(*found.plan);
      if (found.status != SolverStatus::kInfeasible && is_small) break;
      is_small = found.status != SolverStatus::kInfeasible;
    }
    return std::nullopt;
  }

  double nextStep() const {
    const double gap = best_cost_ - result_.bound_cost;
    const double wanted = kWantedGap * (fine_.plain_seconds + best_cost_);
    return gap > wanted ? std::max(kSmallStep, 1 - wanted / gap) : kStep;
  }

  // As the objective of the programs.
  double scaled(double cost) const { return (cost - fine_.constant_cost) * costPerSecond(fine_); }

  const Problem& fine_;
  const int64_t free_bytes_;
  const int64_t budget_bytes_;
  const double best_cost_;
  const ExactOptions& options_;
  const Deadline deadline_;
  std::vector<int> moments_;
  int idle_rounds_ = 0;
  BoundOverAll result_;
};

}  // namespace

std::vector<char> keptAtPeak(const Problem& fine, const KeptOptions& options) {
  const int peak = plainPeak(fine);
  const Problem coarse = atMoments(fine, {peak});
  const Program program =
      programAtMoments(coarse, options.budget_bytes, options.replay_seconds_limit);
  const Relaxation found =
      relax(program, {.time_limit_seconds = options.time_limit_seconds, .solver = options.solver});
  std::vector<char> kept;
  if (found.x.empty()) return kept;
  const PointAtMoments point(program, found.x);
  for (int v = 0; v < fine.numValues(); ++v) {
    const Evictable& value = fine.values[static_cast<size_t>(v)];
    const bool crosses =
        value.first_stage < peak && !value.use_stages.empty() && value.use_stages.back() > peak;
    kept.push_back(!crosses || point.resident(v, 1) > kHalf);
  }
  return kept;
}

std::vector<ReplayPlan> plansAtMoments(const Problem& fine, const KeptOptions& options) {
  const Deadline deadline(options.time_limit_seconds);
  std::vector<ReplayPlan> plans;
  std::vector<int> moments = {plainPeak(fine)};
  while (plans.size() < kMostPlans && !deadline.over()) {
    const Problem coarse = atMoments(fine, moments);
    const Program program =
        programAtMoments(coarse, options.budget_bytes, options.replay_seconds_limit);
    if (!plans.empty() && program.numColumns() > kMostColumns) break;
    const Relaxation found =
        relax(program, {.time_limit_seconds = deadline.left(), .solver = options.solver});
    if (found.x.empty()) break;
    plans.push_back(planBetween(fine, moments, program, found.x));
    const std::vector<Excess> worst = excessBetween(fine, moments, 0, program, found.x);
    if (worst.empty() || worst.front().bytes <= 0) break;
    addMoments(worst, moments.size() / 2, moments);
  }
  return plans;
}

BoundOverAll boundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes,
                            double best_cost, const ExactOptions& options) {
  return BoundAtMoments(fine, free_bytes, budget_bytes, best_cost, options).run();
}

}  // namespace poet::planner
