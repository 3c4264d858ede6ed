#include "planner/exact.h"

#include <algorithm>
#include <cmath>

#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/incumbent.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/state_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

constexpr int kMostRoundsOfStage = 3;  // how often a stage may go through its candidates
constexpr double kProofGap = 1e-6;
constexpr double kRelaxationShare = 0.6;
// Of the time limit, for the program that every schedule is a point of: the exact ones have the
// rest.
constexpr double kRelaxedShare = 0.5;
constexpr int kMostFreeColumns = 8000;
constexpr double kValueTolerance =
    1e-7;  // relative, on seconds: solver values of equal plans differ by less
constexpr int kMostTightenings = 3;

// As whoever simulates a plan counts it.
double mostSeconds(const Problem& problem, const ExactOptions& options) {
  if (!options.replay_seconds_limit) return kInfinity;
  return *options.replay_seconds_limit + kSecondsTolerance * problem.plain_seconds;
}

// Beyond the deadline; 0 or below: it is kept.
double secondsOver(const Problem& problem, const Timeline& timeline, const ExactOptions& options) {
  return timeline.replay_seconds - mostSeconds(problem, options);
}

// A solver keeps the row of the deadline to its own tolerance, which is wider than ours: where that
// lets a plan through that is too slow, again with a row that is tighter by more than that.
// `solve(limit)` solves under a limit in seconds.
template <typename Solve>
SearchResult keepingDeadline(const Problem& problem, const ExactOptions& options,
                             const Solve& solve) {
  std::optional<double> limit = options.replay_seconds_limit;
  SearchResult result = solve(limit);
  double room = 2 * kValueTolerance * problem.plain_seconds;
  for (int i = 0; i < kMostTightenings && result.plan && limit; ++i, room *= 10) {
    const double over = secondsOver(problem, makeTimeline(problem, *result.plan), options);
    if (over <= 0) break;
    limit = *options.replay_seconds_limit - over - room;
    if (*limit < 0) break;
    result = solve(limit);
  }
  return result;
}

// Shortest paths know one weight: cost and deadline must be the same, and wake-ups nothing.
bool statesDecide(const Problem& problem, const ExactOptions& options) {
  if (!problem.pages()) return true;
  if (problem.costOfWakeUp() > 0) return false;
  return !options.replay_seconds_limit || problem.costOfTransfer(1) == 1;
}

SearchResult solveOnce(const Program& program, double seconds, const ExactOptions& options,
                       const ReplayPlan* start, double absolute_gap = 0) {
  const Deadline deadline(seconds);
  Relaxation root = relax(program, {.time_limit_seconds = seconds / 2, .solver = options.solver});
  if (root.status == SolverStatus::kInfeasible) {
    SearchResult infeasible;
    infeasible.status = SolverStatus::kInfeasible;
    infeasible.bound = kInfinity;
    return infeasible;
  }
  return searchProgram(program, root,
                       {.time_limit_seconds = deadline.left(),
                        .absolute_gap = absolute_gap,
                        .threads = options.threads,
                        .start = start,
                        .solver = options.solver});
}

class LeastCost {
 public:
  LeastCost(const Problem& problem, int64_t budget_bytes, const ExactOptions& options)
      : problem_(problem),
        budget_(budget_bytes),
        options_(options),
        deadline_(options.time_limit_seconds) {}

  ExactPlan run() {
    const SearchResult bound = solve(/*relaxed=*/true, /*rounds=*/1);
    if (bound.status == SolverStatus::kInfeasible) {
      result_.infeasible = true;
      return std::move(result_);
    }
    if (std::isfinite(bound.bound))
      result_.bound_cost =
          problem_.constant_cost + std::max(0.0, bound.bound / costPerSecond(problem_));
    offer(bound.plan);
    for (int rounds = 1; rounds <= kMostRoundsOfStage && !result_.proven && !deadline_.over();
         ++rounds) {
      offer(solve(/*relaxed=*/false, rounds).plan);
      if (rounds == 1 && !result_.proven) searchAllStates();
      if (result_.infeasible) break;
    }
    return std::move(result_);
  }

 private:
  void searchAllStates() {
    if (!statesDecide(problem_, options_)) return;
    const StateSearchResult all =
        searchStates(problem_, budget_, mostSeconds(problem_, options_), deadline_);
    if (!all.complete) return;
    if (!all.plan) {
      result_.infeasible = !result_.plan;
      return;
    }
    result_.bound_cost = makeTimeline(problem_, *all.plan).replay_cost;
    offer(all.plan);
  }

  SearchResult solve(bool relaxed, int rounds) {
    const auto within = [&](const std::optional<double>& limit) {
      const Program program(
          problem_, allCandidates(problem_, {.rounds = rounds}),
          {.budget_bytes = budget_, .replay_seconds_limit = limit, .relaxed = relaxed});
      const ReplayPlan* start = result_.plan && !relaxed ? &*result_.plan : nullptr;
      const double seconds = (relaxed ? kRelaxedShare : 1) * deadline_.left();
      return solveOnce(program, seconds, options_, start);
    };
    if (relaxed) return within(options_.replay_seconds_limit);
    return keepingDeadline(problem_, options_, within);
  }

  void offer(const std::optional<ReplayPlan>& plan) {
    if (!plan) return;
    const Timeline timeline = makeTimeline(problem_, *plan);
    if (timeline.peak_bytes > budget_ || secondsOver(problem_, timeline, options_) > 0) return;
    if (!result_.plan || timeline.replay_cost < cost_) {
      result_.plan = plan;
      cost_ = timeline.replay_cost;
    }
    const double total = problem_.plain_seconds + cost_;
    result_.proven = cost_ - result_.bound_cost <= kValueTolerance * total;
  }

  const Problem& problem_;
  const int64_t budget_;
  const ExactOptions& options_;
  const Deadline deadline_;
  ExactPlan result_;
  double cost_ = 0;
};

class LeastPeak {
 public:
  LeastPeak(const Problem& problem, const ExactOptions& options)
      : problem_(problem), options_(options), deadline_(options.time_limit_seconds) {}

  ExactPeak run() {
    result_.bound_bytes = problem_.floor_bytes;
    const SearchResult bound = solve(/*relaxed=*/true, /*rounds=*/1);
    if (bound.status == SolverStatus::kInfeasible) {
      result_.infeasible = true;
      return std::move(result_);
    }
    // The objective is peak / floor - 1; peaks are whole bytes.
    const double floor = static_cast<double>(problem_.floor_bytes);
    if (std::isfinite(bound.bound)) {
      const double least = floor * (1 + bound.bound - kValueTolerance);
      result_.bound_bytes = std::max(result_.bound_bytes, static_cast<int64_t>(std::ceil(least)));
    }
    offer(bound.plan);
    for (int rounds = 1; rounds <= kMostRoundsOfStage && !isCloseEnough() && !deadline_.over();
         ++rounds) {
      offer(solve(/*relaxed=*/false, rounds).plan);
      if (rounds == 1 && !isCloseEnough()) searchAllStates();
    }
    return std::move(result_);
  }

 private:
  // Is there a plan below the best peak? Until there is none.
  void searchAllStates() {
    if (!statesDecide(problem_, options_)) return;
    while (result_.plan && !isCloseEnough()) {
      const StateSearchResult all = searchStates(problem_, result_.peak_bytes - 1,
                                                 mostSeconds(problem_, options_), deadline_);
      if (!all.complete) return;
      if (!all.plan) result_.bound_bytes = result_.peak_bytes;
      offer(all.plan ? all.plan : result_.plan);
    }
  }

  SearchResult solve(bool relaxed, int rounds) {
    const auto within = [&](const std::optional<double>& limit) {
      const Program program(problem_, allCandidates(problem_, {.rounds = rounds}),
                            {.budget_bytes = std::max<int64_t>(1, problem_.floor_bytes),
                             .replay_seconds_limit = limit,
                             .relaxed = relaxed,
                             .replay_weight = 0,
                             .excess_weight = 1});
      const ReplayPlan* start = result_.plan && !relaxed ? &*result_.plan : nullptr;
      const double seconds = (relaxed ? kRelaxedShare : 1) * deadline_.left();
      return solveOnce(program, seconds, options_, start, options_.peak_gap);
    };
    if (relaxed) return within(options_.replay_seconds_limit);
    return keepingDeadline(problem_, options_, within);
  }

  bool isCloseEnough() const {
    const double gap = static_cast<double>(result_.peak_bytes - result_.bound_bytes);
    return result_.plan && gap <= options_.peak_gap * static_cast<double>(result_.bound_bytes);
  }

  void offer(const std::optional<ReplayPlan>& plan) {
    if (!plan) return;
    const Timeline timeline = makeTimeline(problem_, *plan);
    if (secondsOver(problem_, timeline, options_) > 0) return;
    if (!result_.plan || timeline.peak_bytes < result_.peak_bytes) {
      result_.plan = plan;
      result_.peak_bytes = timeline.peak_bytes;
    }
    result_.proven = result_.peak_bytes <= result_.bound_bytes;
  }

  const Problem& problem_;
  const ExactOptions& options_;
  const Deadline deadline_;
  ExactPeak result_;
};

}  // namespace

ExactPlan leastCost(const Problem& problem, int64_t budget_bytes, const ExactOptions& options) {
  return LeastCost(problem, budget_bytes, options).run();
}

BoundOverAll boundOverAll(const Problem& problem, int64_t budget_bytes, const KnownPlan& best,
                          const ExactOptions& options) {
  const Deadline deadline(options.time_limit_seconds);
  const Program program(problem,
                        allCandidates(problem, {.most_cost = mostCostBelow(problem, best.cost),
                                                .rows_at_replays = false}),
                        {.budget_bytes = budget_bytes,
                         .replay_seconds_limit = options.replay_seconds_limit,
                         .relaxed = true,
                         .rows_at_replays = false});
  const auto costOf = [&](double scaled) {
    return problem.constant_cost + std::max(0.0, scaled / costPerSecond(problem));
  };
  Relaxation root = relax(program, {.time_limit_seconds = kRelaxationShare * deadline.left(),
                                    .solver = options.solver});
  if (root.status == SolverStatus::kInfeasible && std::isfinite(best.cost))
    return {.any = true, .bound_cost = best.cost, .plan = {}};  // nothing is better
  BoundOverAll result;
  if (!root.has_bound) return result;
  result.any = true;
  result.bound_cost = std::min(costOf(root.bound), best.cost);
  if (deadline.over() || !std::isfinite(best.cost)) return result;
  const double cutoff = (best.cost - problem.constant_cost) * costPerSecond(problem);
  const int free_columns = fixByReducedCost(cutoff, root);
  const bool is_worth = best.is_last || isWorthSearching(free_columns, deadline.left());
  if (free_columns > kMostFreeColumns || !is_worth) return result;
  const SearchResult found =
      searchProgram(program, root,
                    {.time_limit_seconds = deadline.left(),
                     .relative_gap = kProofGap,
                     // Where many values are of one size, the last digits are most of the work.
                     .absolute_gap = kCloseEnough * problem.plain_seconds * costPerSecond(problem),
                     .threads = options.threads,
                     .start = best.plan,
                     .solver = options.solver});
  const bool none = found.status == SolverStatus::kInfeasible;  // nothing below the best plan
  const double bound = none ? best.cost : std::min(costOf(found.bound), best.cost);
  result.bound_cost = std::max(result.bound_cost, bound);
  result.plan = found.plan;
  return result;
}

ExactPeak leastPeak(const Problem& problem, const ExactOptions& options) {
  return LeastPeak(problem, options).run();
}

}  // namespace poet::planner
