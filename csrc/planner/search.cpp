#include "planner/search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <memory>
#include <set>

#include "planner/annealing.h"
#include "planner/candidates.h"
#include "planner/dear_replays.h"
#include "planner/depth_first.h"
#include "planner/exact.h"
#include "planner/greedy.h"
#include "planner/incumbent.h"
#include "planner/local_search.h"
#include "planner/lp_loop.h"
#include "planner/moments.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

// Greedy starts: budgets tried in turn until one has a plan, and the weight of the distance to the
// next use.
constexpr double kBudgetFactors[] = {1, 1.02, 1.05, 1.1, 1.2, 1.35, 1.6, 2, 4};
constexpr double kDistanceExponents[] = {1, 0.5, 0.2, 2};
// Those by forecast: values x stages of all of them, so many at most, and of the time limit.
constexpr int64_t kMostToForecast = 1'000'000, kMostForecasts = 16;
constexpr double kForecastShare = 0.05;
constexpr double kForecastJitters[] = {0.3, 0.15, 0.075, 0.0375};
constexpr size_t kForecastsInRace = 2;
constexpr double kDepthFirstShare = 0.2;  // of the time limit
constexpr double kGuideShare = 0.1;       // of the time left, for a relaxation that guides them
constexpr double kMomentShare = 0.05;     // likewise, for the plans at moments
// Annealing: bursts of this many moves, hot ones that forget their start and cold ones that refine
// it.
constexpr int64_t kFirstBurst = 300000;          // at most ...
constexpr double kFirstBurstPerSecond = 100000;  // ... and for each second of the time limit
constexpr int64_t kBurst = 1000000;
constexpr int64_t kMovesPerStage = 2000;  // small steps are searched through in no time
constexpr double kHot = 3, kCold = 0.15;
// Walks without a dear replay of the best plan: their share of the time limit in a turn, and of a
// burst's moves.
constexpr double kWarm = 0.6, kWithoutShare = 0.15;
constexpr int64_t kWithoutPart = 4;
constexpr double kUsualCost = 0.03;  // of the plain step's; what costs less is walked colder
constexpr double kLeastScale = 1e-6;
// The race: all starts for this share of it, then the best few.
constexpr double kRaceShare = 0.2;  // of the time limit
constexpr double kHeatShare = 0.5;
constexpr size_t kFinalists = 3;
constexpr double kRaceHottest = 0.05;
constexpr double kRoundUp = 0.35;
// The program.
constexpr int kAncestors = 12;
constexpr int kWidening = 3, kMostAncestors = 100;
constexpr int kMostColumnsToWiden = 30000;
// Of the time left, for what lies behind: bounds over more candidates take several times as long.
constexpr double kWideningShare = 0.1;
constexpr int kNear = 2;
constexpr double kRelaxationShare = 0.5;  // of the time limit, for all of them together
constexpr double kRelaxAgainShare =
    0.15;  // of the time left: one that takes longer is not repeated
constexpr int kMostColumnsToRelax = 150000;
// Larger programs have few ancestors. What they lack of the chains that are worth replaying the
// plans at moments have.
constexpr int kManyColumns = 30000, kFewAncestors = 4;
constexpr double kWindowSeconds = 2;  // at most ...
constexpr double kWindowShare = 0.1;  // ... and of the time limit
constexpr int kWindowsPerTurn = 4;
constexpr int kMostColumnsForWholeProgram = 12000, kMostColumnsForAnyPlan = 6000;
// Of the time limit, for the first step of the whole program and at most. Walks and windows come
// between, whose better plans leave it fewer columns.
constexpr double kFirstWholeProgramShare = 0.1, kWholeProgramShare = 0.6;
constexpr double kWholeProgramGap = 1e-4;
constexpr double kAnyGap = 10, kAnyShare = 0.5;  // where no plan is known
// When to stop.
constexpr double kLeastGain = kCloseEnough;  // what is less is no progress
// What is close to the bound in terms of the whole step may be far from it in terms of what the
// plan costs.
constexpr double kEnoughOfCost = 0.1;
constexpr double kPatienceSeconds = 5;
constexpr double kPatiencePerStage = 0.005;  // small steps are searched through in no time
constexpr double kPatienceShare = 0.5;       // of the time spent so far

}  // namespace

class PlanSearch::Turns {
 public:
  Turns(const Problem& problem, const SearchGoal& goal, const SearchLimits& limits,
        const PlanCallback& on_better)
      : problem_(problem),
        goal_(goal),
        limits_(limits),
        on_better_(on_better),
        deadline_(limits.time_limit_seconds) {
    outcome_.closest = problem.leastPlan();
    outcome_.closest_peak_bytes = std::numeric_limits<int64_t>::max();
  }

  SearchOutcome run(const std::vector<ReplayPlan>& starts, PlanSource source) {
    for (const ReplayPlan& start : starts) consider(start, source);
    greedyStarts();
    depthFirstStarts();
    guidedStarts();
    momentStarts();
    if (limits_.bound_first && !finished()) rebuildProgram();
    if (problem_.pages()) annealWithoutPages();
    raceStarts();
    if (!outcome_.best) {
      annealOnce(firstBurst(), kHot);
      annealOnce(firstBurst(), kCold);
    }
    return takeTurns();
  }

  SearchOutcome goOn(const ReplayPlan& start, PlanSource source, double time_limit_seconds) {
    beginAgain(time_limit_seconds);
    consider(start, source);
    return takeTurns();
  }

  void walkFrom(ReplayPlan plan, double time_limit_seconds) {
    beginAgain(time_limit_seconds);
    dropUselessReplays(problem_, plan);
    consider(plan, PlanSource::kBound);
    keepAsCandidate(plan);
    // What is done with its candidates has not seen those of this plan.
    if (stale_ && outcome_.best && isClose()) setBoundAside();
    if (!is_enough_) walk(plan, burst(), kCold, PlanSource::kBound, /*pages=*/true);
  }

 private:
  void beginAgain(double time_limit_seconds) {
    limits_.time_limit_seconds = time_limit_seconds;
    limits_.enough_gap = 0;
    deadline_ = Deadline(time_limit_seconds);
    relaxation_seconds_ = last_progress_ = 0;
    turn_ = 0;
    whole_share_ = kFirstWholeProgramShare;
    tried_without_.clear();
  }

  // It goes on holding for the candidates that it is of, and is told unless others get one.
  void setBoundAside() {
    narrow_bound_ = 0;
    if (outcome_.bound_cost > problem_.constant_cost) narrow_bound_ = outcome_.bound_cost;
    outcome_.bound_cost = 0;
    stale_ = true;
  }

  SearchOutcome takeTurns() {
    while (!done()) {
      if (!program_ || stale_) {
        rebuildProgram();
        annealFromRelaxation();
      }
      if (done()) break;
      solveForAnyPlan();
      solveWholeProgram();
      if (done()) break;
      solveWindows();
      if (done()) break;
      walkWithoutDearest();
      if (done()) break;
      annealOnce(burst(), turn_ % 2 == 0 ? kHot : kCold);
      ++turn_;
    }
    outcome_.bound_cost = std::max(outcome_.bound_cost, narrow_bound_);
    return outcome_;
  }

  bool done() { return finished() && !widen(); }

  // The best plan attains the bound over its candidates: others may hold a better one.
  bool widen() {
    if (goal_.least_peak || !outcome_.best || !isClose() || deadline_.over() || is_enough_ ||
        !program_ || ancestors_ >= kMostAncestors || program_->numColumns() > kMostColumnsToWiden ||
        last_relaxation_seconds_ + whole_seconds_ > kWideningShare * deadline_.left())
      return false;
    ancestors_ *= kWidening;
    most_columns_ = kMostColumnsToRelax;
    setBoundAside();
    return true;
  }

  bool isClose() const {
    return outcome_.best_cost - outcome_.bound_cost <= replayCost(kCloseEnough);
  }

  bool isEnough() const {
    const double value = problem_.plain_seconds + outcome_.best_cost;
    return outcome_.best_cost - outcome_.bound_cost <=
           std::min(limits_.enough_gap * value, kEnoughOfCost * outcome_.best_cost);
  }

  double replayCost(double share) const { return share * std::max(problem_.plain_seconds, 1e-12); }

  bool keepsDeadline(double seconds) const {
    return !goal_.replay_seconds_limit ||
           seconds <= *goal_.replay_seconds_limit + kSecondsTolerance * problem_.plain_seconds;
  }

  // Takes a plan in: as the best, as the closest, or not at all.
  void consider(const ReplayPlan& plan, PlanSource source) {
    const Timeline timeline = makeTimeline(problem_, plan);
    if (!keepsDeadline(timeline.replay_seconds)) return;
    if (timeline.peak_bytes < outcome_.closest_peak_bytes) {
      outcome_.closest_peak_bytes = timeline.peak_bytes;
      outcome_.closest = plan;
      if (goal_.least_peak || !outcome_.best) progressed();
    }
    const bool fits = goal_.least_peak || timeline.peak_bytes <= goal_.budget_bytes;
    const bool better =
        !outcome_.best || (goal_.least_peak ? timeline.peak_bytes < outcome_.best_peak_bytes
                                            : timeline.replay_cost < outcome_.best_cost);
    if (!fits || !better) return;
    if (!outcome_.best || goal_.least_peak ||
        outcome_.best_cost - timeline.replay_cost > replayCost(kLeastGain))
      progressed();
    outcome_.best = plan;
    outcome_.best_peak_bytes = timeline.peak_bytes;
    outcome_.best_cost = timeline.replay_cost;
    dropRefutedBounds();
    if (on_better_) is_enough_ = on_better_(plan, source, outcome_.bound_cost);
  }

  // A plan below a bound over candidates has a replay that is none of them.
  void dropRefutedBounds() {
    const double least = outcome_.best_cost + replayCost(kCloseEnough);
    if (narrow_bound_ > least) narrow_bound_ = 0;
    if (outcome_.bound_cost <= least) return;
    outcome_.bound_cost = 0;
    stale_ = true;
  }

  void progressed() { last_progress_ = deadline_.elapsed(); }

  bool finished() const {
    if (deadline_.over() || is_enough_) return true;
    if (goal_.least_peak && outcome_.best &&
        outcome_.best_peak_bytes <= std::max(goal_.budget_bytes, goal_.enough_bytes))
      return true;
    if (!outcome_.best && deadline_.elapsed() > limits_.seconds_without_plan) return true;
    if (outcome_.best && !goal_.least_peak && (isClose() || isEnough())) return true;
    if (turn_ < 2) return false;
    if (!outcome_.best) return false;
    return deadline_.elapsed() - last_progress_ >
           std::max(std::min(kPatienceSeconds, kPatiencePerStage * problem_.numStages()),
                    kPatienceShare * deadline_.elapsed());
  }

  const ReplayPlan& current() const { return outcome_.best ? *outcome_.best : outcome_.closest; }

  void greedyStarts() {
    consider(problem_.leastPlan(), PlanSource::kPlain);
    for (const double factor : kBudgetFactors) {
      const auto more =
          (factor - 1) * static_cast<double>(problem_.bytesForStep(goal_.budget_bytes));
      const int64_t budget = goal_.budget_bytes + static_cast<int64_t>(more);
      bool any = false;
      for (const double exponent : kDistanceExponents) {
        if (deadline_.over()) return;
        const auto plan =
            greedyPlan(problem_, {.budget_bytes = budget, .distance_exponent = exponent});
        if (!plan) continue;
        any = true;
        consider(*plan, PlanSource::kGreedy);
        keepAsCandidate(*plan);
        starts_.push_back(*plan);
        mendGreedy(*plan, budget, exponent);
      }
      if (budget == goal_.budget_bytes) forecastStarts(budget);
      if (any) return;
    }
  }

  // They cost many replays: taken where nothing else has a plan.
  void depthFirstStarts() {
    if (finished() || (outcome_.best && !goal_.least_peak)) return;
    const double seconds =
        std::min(deadline_.left(), kDepthFirstShare * limits_.time_limit_seconds);
    const auto plan = goal_.least_peak ? leastDepthFirstPlan(problem_, goal_.budget_bytes,
                                                             outcome_.closest_peak_bytes, seconds)
                                       : anyDepthFirstPlan(problem_, goal_.budget_bytes, seconds);
    if (plan) consider(*plan, PlanSource::kDepthFirst);
  }

  // Chains whose memory is short have the fewest replays from here. In the race only where they
  // beat the other starts: it has little time for each.
  void forecastStarts(int64_t budget) {
    std::vector<CostedPlan> found = forecastPlans(budget);
    double least = std::numeric_limits<double>::infinity();  // of the other starts
    for (const ReplayPlan& start : starts_)
      least = std::min(least, makeTimeline(problem_, start).replay_cost);
    std::erase_if(found, [&](const CostedPlan& each) { return each.cost >= least; });
    if (found.size() > kForecastsInRace) found.resize(kForecastsInRace);
    for (const CostedPlan& each : found) {
      consider(each.plan, PlanSource::kForecast);
      keepAsCandidate(each.plan);
      starts_.push_back(each.plan);
    }
  }

  struct CostedPlan {
    double cost = 0;
    ReplayPlan plan;
  };

  // Cheapest first. What goes early decides much of what follows, so it is tried again with other
  // choices where two are about as good.
  std::vector<CostedPlan> forecastPlans(int64_t budget) const {
    const int64_t size = static_cast<int64_t>(problem_.values.size()) * problem_.numStages();
    std::vector<CostedPlan> found;
    if (problem_.pages() || size > kMostToForecast) return found;
    const int64_t tries = std::min(kMostForecasts, kMostToForecast / std::max<int64_t>(1, size));
    const double begin = deadline_.elapsed();
    for (int64_t i = 0; i < tries; ++i) {
      if (deadline_.elapsed() - begin > kForecastShare * limits_.time_limit_seconds) break;
      const double jitter = i > 0 ? kForecastJitters[i % std::ssize(kForecastJitters)] : 0;
      const auto plan = greedyPlan(problem_, {.budget_bytes = budget,
                                              .jitter = jitter,
                                              .seed = static_cast<uint64_t>(i),
                                              .forecast = true,
                                              .placed = i == 0});
      if (plan) found.push_back({makeTimeline(problem_, *plan).replay_cost, *plan});
    }
    std::stable_sort(found.begin(), found.end(),
                     [](const auto& a, const auto& b) { return a.cost < b.cost; });
    return found;
  }

  // What the relaxation at the peak drops there goes first (keptAtPeak).
  void guidedStarts() {
    if (goal_.least_peak || finished()) return;
    const std::vector<char> kept =
        keptAtPeak(problem_, {.budget_bytes = goal_.budget_bytes,
                              .replay_seconds_limit = goal_.replay_seconds_limit,
                              .time_limit_seconds = kGuideShare * deadline_.left(),
                              .solver = limits_.solver});
    if (kept.empty()) return;
    for (const double exponent : kDistanceExponents) {
      if (deadline_.over()) return;
      const auto plan = greedyPlan(
          problem_,
          {.budget_bytes = goal_.budget_bytes, .distance_exponent = exponent, .kept = kept});
      if (!plan) continue;
      consider(*plan, PlanSource::kGuidedGreedy);
      starts_.push_back(*plan);
      mendGreedy(*plan, goal_.budget_bytes, exponent, kept);
    }
    if (outcome_.best) keepAsCandidate(*outcome_.best);
  }

  // Their replays are candidates.
  void momentStarts() {
    if (goal_.least_peak || finished()) return;
    for (ReplayPlan& plan :
         plansAtMoments(problem_, {.budget_bytes = goal_.budget_bytes,
                                  .replay_seconds_limit = goal_.replay_seconds_limit,
                                  .time_limit_seconds = kMomentShare * deadline_.left(),
                                  .solver = limits_.solver})) {
      dropUselessReplays(problem_, plan);
      consider(plan, PlanSource::kMoments);
      keepAsCandidate(plan);
    }
  }

  // Note [Racing starts]
  // Greedy plans that differ in what they evict are good in different ways, and their costs say
  // little of what a cold walk makes of them; a hot one forgets them. So each is walked from for a
  // short while, and the best few for longer. docs/planner.md has what that gains.
  void raceStarts() {
    if (goal_.least_peak || starts_.empty() || finished()) return;
    const double seconds = std::min(kRaceShare * limits_.time_limit_seconds, deadline_.left());
    const int64_t moves = 2 * firstBurst();
    std::vector<AnnealingResult> heat;
    const auto walk = [&](const ReplayPlan& start, double share, int64_t most) {
      return anneal(problem_, start,
                    {.budget_bytes = goal_.budget_bytes,
                     .replay_seconds_limit = goal_.replay_seconds_limit,
                     .most_moves = most,
                     .hottest = kRaceHottest,
                     .temperature_scale = temperatureScale(),
                     .time_limit_seconds = std::min(share * seconds, deadline_.left()),
                     .seed = ++seed_});
    };
    const auto count = static_cast<int64_t>(starts_.size());
    for (const ReplayPlan& start : starts_) {
      if (deadline_.over()) break;
      heat.push_back(walk(start, kHeatShare / static_cast<double>(count),
                          static_cast<int64_t>(kHeatShare * static_cast<double>(moves)) / count));
    }
    std::erase_if(heat, [](const AnnealingResult& result) { return !result.best; });
    std::stable_sort(heat.begin(), heat.end(),
                     [](const auto& a, const auto& b) { return a.cost < b.cost; });
    if (heat.size() > kFinalists) heat.resize(kFinalists);
    for (const AnnealingResult& finalist : heat) {
      consider(*finalist.best, PlanSource::kRace);
      const AnnealingResult last =
          walk(*finalist.best, (1 - kHeatShare) / kFinalists,
               static_cast<int64_t>((1 - kHeatShare) * static_cast<double>(moves)) /
                   static_cast<int64_t>(kFinalists));
      const ReplayPlan& plan = last.best ? *last.best : *finalist.best;
      consider(plan, PlanSource::kRace);
      keepAsCandidate(plan);
    }
  }

  // It knows of generator states too late: again with what they took less.
  void mendGreedy(const ReplayPlan& plan, int64_t budget, double exponent,
                  const std::vector<char>& kept = {}) {
    const int64_t excess = makeTimeline(problem_, plan).peak_bytes - budget;
    if (goal_.least_peak || budget != goal_.budget_bytes || excess <= 0) return;
    const auto mended = greedyPlan(
        problem_, {.budget_bytes = budget - excess, .distance_exponent = exponent, .kept = kept});
    if (mended) consider(*mended, kept.empty() ? PlanSource::kGreedy : PlanSource::kGuidedGreedy);
  }

  // Below its best peak so far where the peak is what counts.
  int64_t annealingBudget() const {
    if (!goal_.least_peak) return goal_.budget_bytes;
    const int64_t best = outcome_.closest_peak_bytes;
    const int64_t gap = best - goal_.budget_bytes;
    return best - std::max<int64_t>(1, gap >> (2 + turn_ % 4));
  }

  // The relaxation is to have its share of a short search too.
  int64_t firstBurst() const {
    return std::min({kFirstBurst, kMovesPerStage * problem_.numStages(),
                     static_cast<int64_t>(kFirstBurstPerSecond * limits_.time_limit_seconds)});
  }
  int64_t burst() const { return std::min(kBurst, kMovesPerStage * problem_.numStages()); }

  // Temperatures are for plans that cost a few percent of the step. Where paging is almost free
  // they cost a hundredth of that, and at the temperatures of the others a walk forgets everything.
  double temperatureScale() const {
    if (goal_.least_peak || !outcome_.best) return 1;
    return std::clamp(outcome_.best_cost / replayCost(kUsualCost), kLeastScale, 1.0);
  }

  void annealOnce(int64_t moves, double hottest) {
    annealFrom(current(), moves, hottest, PlanSource::kAnnealing);
  }

  // Note [Without the dearest] in dear_replays.h. All again once the plan is better.
  void walkWithoutDearest() {
    if (goal_.least_peak || !outcome_.best) return;
    if (tried_without_cost_ > outcome_.best_cost) tried_without_.clear();
    tried_without_cost_ = outcome_.best_cost;
    const double until = deadline_.elapsed() +
                         std::min(deadline_.left(), kWithoutShare * limits_.time_limit_seconds);
    for (const std::vector<int>& without : dearestReplays(problem_, *outcome_.best)) {
      if (finished() || deadline_.elapsed() >= until) break;
      if (!tried_without_.insert(without).second) continue;
      const AnnealingResult found = anneal(problem_, current(),
                                           {.budget_bytes = goal_.budget_bytes,
                                            .replay_seconds_limit = goal_.replay_seconds_limit,
                                            .most_moves = burst() / kWithoutPart,
                                            .hottest = kWarm,
                                            .temperature_scale = temperatureScale(),
                                            .time_limit_seconds = until - deadline_.elapsed(),
                                            .seed = ++seed_,
                                            .without = without});
      if (!found.best) break;  // where plans are hard to find at all, windows are of more use
      if (found.cost >= outcome_.best_cost) continue;
      consider(*found.best, PlanSource::kAnnealing);
      keepAsCandidate(*found.best);
    }
  }

  // Page-ins double the moves, and a good mix is often a good plan of recomputes with a few of
  // them.
  void annealWithoutPages() {
    annealFrom(problem_.leastPlan(), firstBurst(), kHot, PlanSource::kAnnealing, /*pages=*/false);
    if (extra_.empty()) return;
    const ReplayPlan found = extra_.back();
    annealFrom(found, firstBurst(), kCold, PlanSource::kAnnealing, /*pages=*/false);
  }

  void annealFrom(const ReplayPlan& start, int64_t moves, double hottest, PlanSource source,
                  bool pages = true) {
    if (!finished()) walk(start, moves, hottest, source, pages);
  }

  void walk(const ReplayPlan& start, int64_t moves, double hottest, PlanSource source, bool pages) {
    const AnnealingResult result = anneal(problem_, start,
                                          {.budget_bytes = annealingBudget(),
                                           .replay_seconds_limit = goal_.replay_seconds_limit,
                                           .most_moves = moves,
                                           .hottest = hottest,
                                           .temperature_scale = temperatureScale(),
                                           .time_limit_seconds = deadline_.left(),
                                           .seed = ++seed_,
                                           .pages = pages});
    if (result.best) {
      consider(*result.best, source);
      keepAsCandidate(*result.best);
    } else {
      consider(result.closest, source);
      keepAsCandidate(result.closest);
    }
  }

  void keepAsCandidate(const ReplayPlan& plan) {
    extra_.push_back(plan);
    if (!program_ || !program_->pointOf(plan)) stale_ = true;
  }

  void rebuildProgram() {
    search_.reset();
    program_ = programWith(ancestors_);
    if (program_->numColumns() > most_columns_ && ancestors_ > kFewAncestors) {
      ancestors_ = kFewAncestors;
      program_ = programWith(ancestors_);
    }
    relaxation_ = relaxed();
    if (relaxation_.has_bound && !goal_.least_peak) {
      narrow_bound_ = 0;
      outcome_.bound_cost =
          problem_.constant_cost + std::max(0.0, relaxation_.bound / costPerSecond(problem_));
    }
    search_ = std::make_unique<LocalSearch>(*program_, relaxation_,
                                            LocalSearchOptions{.window_seconds = windowSeconds(),
                                                               .threads = limits_.threads,
                                                               .seed = seed_,
                                                               .solver = limits_.solver});
    stale_ = false;
    whole_tried_ = std::numeric_limits<double>::infinity();
    whole_seconds_ = 0;
  }

  double windowSeconds() const {
    return std::min(kWindowSeconds, kWindowShare * limits_.time_limit_seconds);
  }

  std::unique_ptr<Program> programWith(int ancestors) const {
    const double best_cost = goal_.least_peak || !outcome_.best ? kAnyCost : outcome_.best_cost;
    Candidates candidates =
        ancestorCandidates(problem_, ancestors, kNear, mostCostBelow(problem_, best_cost));
    for (const ReplayPlan& plan : extra_) include(problem_, plan, candidates);
    include(problem_, current(), candidates);
    return std::make_unique<Program>(
        problem_, candidates,
        ProgramOptions{.budget_bytes = goal_.budget_bytes,
                       .replay_seconds_limit = goal_.replay_seconds_limit,
                       .replay_weight = 1});
  }

  // Nothing is known of it where there is no time for it: windows do without.
  Relaxation relaxed() {
    const double left = std::min(
        deadline_.left(), kRelaxationShare * limits_.time_limit_seconds - relaxation_seconds_);
    if (left <= 0 || program_->numColumns() > kMostColumnsToRelax ||
        last_relaxation_seconds_ > kRelaxAgainShare * deadline_.left())
      return {};
    const double begin = deadline_.elapsed();
    Relaxation found = relax(*program_, {.time_limit_seconds = left, .solver = limits_.solver});
    last_relaxation_seconds_ = deadline_.elapsed() - begin;
    relaxation_seconds_ += last_relaxation_seconds_;
    return found;
  }

  // Where transfers take the place of recomputes the relaxed program is nearly whole: its rounded
  // point keeps no budget, but a cold search soon mends that.
  void annealFromRelaxation() {
    if (goal_.least_peak || relaxation_.x.empty() || !problem_.pages() || finished()) return;
    std::vector<double> x = relaxation_.x;
    for (const MicroStep& step : program_->steps()) {
      if (step.replay < 0) continue;
      double& r = x[static_cast<size_t>(step.column)];
      r = r >= kRoundUp ? 1 : 0;
    }
    ReplayPlan plan = program_->planOf(x);
    dropUselessReplays(problem_, plan);
    annealFrom(plan, firstBurst(), kCold, PlanSource::kRelaxation);
    stale_ = false;  // the next program may have its candidates: this one is still good
  }

  void solveWindows() {
    auto point = program_->pointOf(current());
    if (!point) {
      stale_ = true;
      return;
    }
    search_->moveTo(std::move(*point));
    for (int i = 0; i < kWindowsPerTurn && !finished(); ++i) {
      if (!search_->improveOnce(deadline_.left())) continue;
      ReplayPlan plan = program_->planOf(search_->point());
      dropUselessReplays(problem_, plan);
      consider(plan, PlanSource::kWindow);
    }
  }

  // Where the walks find nothing that fits, any point of the program will do.
  void solveForAnyPlan() {
    if (finished() || goal_.least_peak || outcome_.best || !relaxation_.has_bound) return;
    if (program_->numColumns() > kMostColumnsForAnyPlan) return;
    Relaxation root = relaxation_;
    const SearchResult result = searchProgram(
        *program_, root,
        {.time_limit_seconds = std::min(deadline_.left(), kAnyShare * limits_.time_limit_seconds),
         .relative_gap = kAnyGap,
         .threads = limits_.threads,
         .solver = limits_.solver});
    if (result.plan) consider(*result.plan, PlanSource::kProgram);
  }

  // A step towards a proof (Note [Steps to a proof]) in each turn, where little is left to decide
  // between plan and bound. After one that found no end the next has twice the time; one that had
  // the most of it is not tried again before the plan is better.
  void solveWholeProgram() {
    if (finished() || goal_.least_peak || !outcome_.best || relaxation_.x.empty()) return;
    const bool is_better = outcome_.best_cost <= whole_tried_ - replayCost(kLeastGain);
    if (!is_better && whole_share_ > kWholeProgramShare) return;
    const double cutoff = scaled(outcome_.best_cost - replayCost(kTooLittle));
    Relaxation below = relaxation_;
    const int free_columns = fixByReducedCost(cutoff, below);
    if (free_columns > kMostColumnsForWholeProgram) return;
    double share = std::min(whole_share_, kWholeProgramShare);
    const auto seconds = [&] {
      return std::min(deadline_.left(), share * limits_.time_limit_seconds);
    };
    while (!isWorthSearching(free_columns, seconds())) {
      if (share >= kWholeProgramShare) return;
      share = std::min(2 * share, kWholeProgramShare);
    }
    const ReplayPlan start = current();
    const double begin = deadline_.elapsed();
    const SearchResult result = searchStep(*program_, relaxation_, scaled(outcome_.bound_cost),
                                           {.time_limit_seconds = seconds(),
                                            .relative_gap = kWholeProgramGap,
                                            .threads = limits_.threads,
                                            .start = &start,
                                            .cutoff = cutoff,
                                            .solver = limits_.solver});
    whole_seconds_ += deadline_.elapsed() - begin;
    if (result.status == SolverStatus::kStopped) {
      whole_tried_ = outcome_.best_cost;
      whole_share_ = 2 * share;
    } else {
      progressed();
    }
    const double bound = problem_.constant_cost + result.bound / costPerSecond(problem_);
    outcome_.bound_cost = std::max(outcome_.bound_cost, std::min(bound, outcome_.best_cost));
    if (result.plan) consider(*result.plan, PlanSource::kProgram);
  }

  // As the objective of the program.
  double scaled(double cost) const {
    return (cost - problem_.constant_cost) * costPerSecond(problem_);
  }

  const Problem& problem_;
  const SearchGoal goal_;
  SearchLimits limits_;
  const PlanCallback on_better_;
  Deadline deadline_;
  SearchOutcome outcome_;
  std::vector<ReplayPlan> extra_;   // plans whose replays are candidates
  std::vector<ReplayPlan> starts_;  // of the race
  std::unique_ptr<Program> program_;
  Relaxation relaxation_;
  std::unique_ptr<LocalSearch> search_;
  bool is_enough_ = false;  // whoever hears of plans wants no better one
  bool stale_ = true;       // extra_ has grown since the program was built
  double whole_tried_ = std::numeric_limits<double>::infinity();  // best cost at that time
  double whole_seconds_ = 0;                                      // of all steps of the program
  double whole_share_ = kFirstWholeProgramShare;                  // of the time limit, for the next
  std::set<std::vector<int>> tried_without_;                      // replays, of a plan of this cost
  double tried_without_cost_ = 0;
  uint64_t seed_ = 0;
  int turn_ = 0;
  int ancestors_ = kAncestors;
  int most_columns_ = kManyColumns;  // more once it is widened: else it would come back to the few
  double narrow_bound_ = 0;  // over fewer candidates, while there is none over the present ones
  double last_progress_ = 0;
  double relaxation_seconds_ = 0, last_relaxation_seconds_ = 0;
};

PlanSearch::PlanSearch(const Problem& problem, const SearchGoal& goal, const SearchLimits& limits,
                       const PlanCallback& on_better)
    : turns_(std::make_unique<Turns>(problem, goal, limits, on_better)) {}

PlanSearch::~PlanSearch() = default;

SearchOutcome PlanSearch::run(const std::vector<ReplayPlan>& starts, PlanSource source) {
  return turns_->run(starts, source);
}

SearchOutcome PlanSearch::goOn(const ReplayPlan& start, PlanSource source,
                               double time_limit_seconds) {
  return turns_->goOn(start, source, time_limit_seconds);
}

void PlanSearch::walkFrom(const ReplayPlan& plan, double time_limit_seconds) {
  turns_->walkFrom(plan, time_limit_seconds);
}

}  // namespace poet::planner
