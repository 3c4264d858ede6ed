#include "planner/large_search.h"

#include <algorithm>
#include <array>

#include "planner/annealing.h"
#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/greedy.h"
#include "planner/lp_loop.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

constexpr double kCloseEnough = 1e-3;  // of the plain step's seconds
constexpr int kCandidatesPerStage = 12;
constexpr int kUsefulDistance = 2;
constexpr int kMostRounds = 8;        // of annealing
constexpr int kStaleRounds = 3;       // without a better plan
constexpr double kRoundShare = 0.08;  // of the time limit, a round of annealing
constexpr double kLongestRound = 4;   // seconds
constexpr double kRelaxationShare = 0.15;
constexpr double kAnnealingShare = 0.6;  // until then, the rest is the program's
constexpr int64_t kMovesForPeak = 400'000;
constexpr int kBisections = 6;

double replaySeconds(const Problem& problem, const ReplayPlan& plan) {
  return makeTimeline(problem, plan).replay_seconds;
}

// The cheapest of the greedy plans, at the budget where there is one, else at the least multiple of
// it.
ReplayPlan greedyStart(const Problem& problem, int64_t budget_bytes) {
  ReplayPlan start;
  start.by_stage.resize(problem.stages.size());
  for (const double slack : {1.0, 1.05, 1.1, 1.2, 1.4}) {
    std::optional<double> best;
    for (const double exponent : {1.0, 0.5, 0.2, 2.0}) {
      const auto budget = static_cast<int64_t>(slack * static_cast<double>(budget_bytes));
      const auto plan =
          greedyPlan(problem, {.budget_bytes = budget, .distance_exponent = exponent});
      if (!plan) continue;
      const double seconds = replaySeconds(problem, *plan);
      if (best && seconds >= *best) continue;
      best = seconds;
      start = *plan;
    }
    if (best) break;
  }
  return start;
}

class LargeSearch {
 public:
  LargeSearch(const Problem& problem, const LargeOptions& options, const LargeCallbacks& callbacks)
      : problem_(problem),
        options_(options),
        callbacks_(callbacks),
        deadline_(options.time_limit_seconds) {}

  bool run() {
    start_ = greedyStart(problem_, options_.budget_bytes);
    offer(start_);
    annealRound(0);
    boundByRelaxation();
    for (int round = 1; round < kMostRounds && !isDone() && stale_ < kStaleRounds; ++round) {
      if (deadline_.elapsed() > kAnnealingShare * options_.time_limit_seconds) break;
      annealRound(round);
    }
    if (!isDone()) polish();
    return best_.has_value();
  }

 private:
  bool isDone() const {
    return deadline_.over() ||
           (best_ && seconds_ - bound_ <= kCloseEnough * problem_.plain_seconds);
  }

  void offer(const ReplayPlan& plan) {
    const Timeline timeline = makeTimeline(problem_, plan);
    if (timeline.peak_bytes > options_.budget_bytes) return;
    if (options_.replay_seconds_limit && timeline.replay_seconds > *options_.replay_seconds_limit)
      return;
    if (best_ && timeline.replay_seconds >= seconds_ - 1e-4 * problem_.plain_seconds)
      ++stale_;
    else
      stale_ = 0;
    if (best_ && timeline.replay_seconds >= seconds_) return;
    best_ = plan;
    seconds_ = timeline.replay_seconds;
    callbacks_.plan(plan);
  }

  // Even rounds start from the best plan, odd ones afresh.
  void annealRound(int round) {
    const double share = std::min(kLongestRound, kRoundShare * options_.time_limit_seconds);
    const AnnealingResult result = anneal(problem_, best_ && round % 2 == 0 ? *best_ : start_,
                                          {.budget_bytes = options_.budget_bytes,
                                           .replay_seconds_limit = options_.replay_seconds_limit,
                                           .time_limit_seconds = std::min(share, deadline_.left()),
                                           .seed = static_cast<uint64_t>(round)});
    if (result.best) {
      offer(*result.best);
    } else {
      ++stale_;
      if (!best_) start_ = result.closest;
    }
  }

  Program program() const {
    Candidates candidates = ancestorCandidates(problem_, kCandidatesPerStage, kUsefulDistance);
    if (best_) include(problem_, *best_, candidates);
    return Program(problem_, candidates,
                   {.budget_bytes = options_.budget_bytes,
                    .replay_seconds_limit = options_.replay_seconds_limit});
  }

  void boundByRelaxation() {
    const double share = std::min(deadline_.left(), kRelaxationShare * options_.time_limit_seconds);
    const Relaxation root = relax(program(), {.time_limit_seconds = share});
    if (!root.has_bound) return;
    bound_ = std::max(0.0, root.objective / costPerSecond(problem_));
    callbacks_.candidates_bound(bound_);
  }

  // The whole program, from the best plan.
  void polish() {
    const Program whole = program();
    Relaxation root = relax(whole, {.time_limit_seconds = 0.3 * deadline_.left()});
    if (root.status == SolverStatus::kInfeasible || deadline_.over()) return;
    const SearchResult found = searchProgram(whole, root,
                                             {.time_limit_seconds = deadline_.left(),
                                              .relative_gap = 1e-3,
                                              .threads = options_.threads,
                                              .start = best_ ? &*best_ : nullptr});
    if (found.plan) offer(*found.plan);
  }

  const Problem& problem_;
  const LargeOptions& options_;
  const LargeCallbacks& callbacks_;
  const Deadline deadline_;
  ReplayPlan start_;
  std::optional<ReplayPlan> best_;
  double seconds_ = 0;
  double bound_ = 0;
  int stale_ = 0;
};

}  // namespace

bool searchLarge(const Problem& problem, const LargeOptions& options,
                 const LargeCallbacks& callbacks) {
  return LargeSearch(problem, options, callbacks).run();
}

ExactPeak searchLeastPeak(const Problem& problem, const LargeOptions& options) {
  const Deadline deadline(options.time_limit_seconds);
  ExactPeak result;
  result.bound_bytes = problem.floor_bytes;
  const auto take = [&](const ReplayPlan& plan) {
    const Timeline timeline = makeTimeline(problem, plan);
    if (options.replay_seconds_limit && timeline.replay_seconds > *options.replay_seconds_limit)
      return;
    if (result.plan && timeline.peak_bytes >= result.peak_bytes) return;
    result.plan = plan;
    result.peak_bytes = timeline.peak_bytes;
  };
  ReplayPlan start = greedyStart(problem, problem.floor_bytes);
  take(start);
  int64_t target = problem.floor_bytes;
  int64_t low = problem.floor_bytes;
  for (int i = 0; i < kBisections && !deadline.over(); ++i) {
    const AnnealingResult found = anneal(problem, start,
                                         {.budget_bytes = target,
                                          .replay_seconds_limit = options.replay_seconds_limit,
                                          .time_limit_seconds = deadline.left(),
                                          .most_moves = kMovesForPeak,
                                          .seed = static_cast<uint64_t>(i)});
    take(found.closest);
    if (found.best) {
      take(*found.best);
      start = *found.best;
    } else {
      low = target;
    }
    if (!result.plan || result.peak_bytes <= problem.floor_bytes) break;
    if (result.peak_bytes - low <= 1) break;
    target = low + (result.peak_bytes - low) / 2;
  }
  result.proven = result.plan && result.peak_bytes <= result.bound_bytes;
  return result;
}

}  // namespace poet::planner
