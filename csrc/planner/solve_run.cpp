#include "planner/solve_run.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "graph/error.h"
#include "planner/candidates.h"
#include "planner/clock.h"
#include "planner/exact.h"
#include "planner/extract.h"
#include "planner/floor.h"
#include "planner/incumbent.h"
#include "planner/moments.h"
#include "planner/options.h"
#include "planner/planner.h"
#include "planner/price_search.h"
#include "planner/refinement.h"
#include "planner/search.h"
#include "planner/sparse_model.h"
#include "planner/timeline.h"
#include "schedule/simulator.h"

namespace poet {
namespace planner {
namespace {

// Of the time limit: then the search for a cheap plan gives way to one for any plan.
constexpr double kShareWithoutPlan = 0.4;
// Likewise; then more optimizer state stays in the store between steps.
constexpr double kShareBeforeMoreIsAway = 0.3;
// Likewise; then a bound over every schedule is looked for: a proof where the step is small enough.
constexpr double kShareBeforeProof = 0.2, kShareBeforeBound = 0.65;
// Of short steps, whose whole program branch and cut can search: at most. Once it is so close to
// the bound over its candidates, relative to the value, the bound over every schedule is next.
constexpr double kShareOfShortSteps = 0.85;
constexpr double kEnoughGapOfShortSteps = 0.009;
constexpr int kMostStagesOfShortSteps = 300;
// Of the time left then: for the bound at moments, where a proof follows.
constexpr double kShareAtMoments = 0.25;
// Likewise, for the first look for a proof, where the search goes on after it.
constexpr double kShareOfFirstProof = 0.4;
// Of the time limit, for a first bound at moments.
constexpr double kShareOfFirstBound = 0.05;
// Likewise; then a small graph that has no proof yet is searched like a large one.
constexpr double kShareOfProof = 0.4;
// Of the exact program of the least peak; walks have the rest where it proves none.
constexpr double kShareOfLeastPeak = 0.6;
// And no longer than this: it is only for the word on what would do.
constexpr double kMostSecondsAboutLeastPeak = 10;
// Relative, of the least budget that is reported where there is no plan: nobody waits for the proof
// that a few bytes of a loss cannot be had as well.
constexpr double kPeakGap = 1e-3;
// Replays of the relaxed program of all stages, up to which moments are left out.
constexpr size_t kFewBoundedCandidates = 3000;
// Up to here that proof takes milliseconds.
constexpr size_t kFewCandidates = 200;
// Of the least budget: where tensors that the step does not touch take more, the message says so.
constexpr double kWorthTelling = 0.05;
// Of the time that is left: for a walk from the plan of a proof, at most.
constexpr double kShareOfWalk = 0.2;
// Of the time limit: what must be left for another search.
constexpr double kLeastShareToSearch = 0.1;

class SolveRun {
 public:
  explicit SolveRun(const SolveInput& in)
      : graph_(in.coarsening.fine()),
        profile_(in.profile),
        options_(in.options),
        deadline_(in.time_limit_seconds),
        time_limit_seconds_(in.time_limit_seconds),
        more_may_be_away_(in.more_may_be_away),
        plain_(simulatePlain(graph_, in.profile)),
        coarsening_(in.coarsening),
        table_(coarsening_.graph()),
        problem_options_(
            problemOptions(ProblemOptions::defaultSmallBytes(plain_.peak_bytes, graph_.numOps()),
                           in.options, in.away, &coarsening_)),
        problem_(coarsening_.graph(), table_, in.profile, problem_options_),
        refinement_(problem_, coarsening_, in.fine_table, problem_options_),
        blocking_(in.profile.dma_channels == 0 || !problem_.pages()),
        best_(graph_, in.profile, in.options, refinement_, in.on_incumbent, in.on_progress,
              in.one_class_of_several) {}

  Schedule run() {
    Schedule schedule = plan();
    schedule.solve_seconds = deadline_.elapsed();
    return schedule;
  }

 private:
  Schedule plan() {
    if (options_.runtime_budget_seconds &&
        plain_.makespan_seconds > *options_.runtime_budget_seconds * (1 + kSecondsTolerance)) {
      return tooSlow();
    }
    if (options_.minimize != Objective::kMemory) best_.setPlainBound(plain_.makespan_seconds);
    if (plain_.peak_bytes <= options_.ram_budget_bytes && problem_.away.empty()) {
      best_.offer(problem_.leastPlan(), PlanSource::kPlain);
      if (options_.minimize != Objective::kMemory) return finishedAbovePlain();
    }
    offerStarts();
    const size_t most = problem_.pages() ? kMostExactCandidatesWithPages : kMostExactCandidates;
    const bool small =
        problem_.exact && countCandidates(allCandidates(problem_, {.enough = most})) <= most;
    return small ? solveSmall() : solveLarge();
  }

  // No plan costs less than plain training.
  Schedule finishedAbovePlain() {
    best_.setPlainBound(plain_.makespan_seconds);
    return best_.finished();
  }

  void offerStarts() {
    for (const Schedule& start : options_.starts) {
      if (!start.hasPlan()) continue;
      const auto fine = readActions(refinement_.fine(), start);
      auto plan = fine ? refinement_.coarsened(*fine) : std::nullopt;
      if (!plan) continue;
      best_.offerGiven(start, *plan);
      starts_.push_back(std::move(*plan));
    }
  }

  // ---- small graphs: proofs
  // ---------------------------------------------------------------------------------------
  Schedule solveSmall() {
    if (options_.minimize == Objective::kMemory) {
      const ExactPeak peak = leastPeak(problem_, exactOptions(kShareOfProof));
      if (peak.plan) best_.offer(*peak.plan, PlanSource::kExact);
      best_.setBound(static_cast<double>(peak.bound_bytes), "all");
      if (best_.isOptimal()) return best_.finished();
      const bool none = peak.infeasible || peak.bound_bytes > options_.ram_budget_bytes;
      return none ? withoutPlan(peak) : solveLarge();
    }
    bool refuted = false;  // that there is a schedule
    if (problem_.floor_bytes <= options_.ram_budget_bytes) {
      const ExactPlan found =
          leastCost(problem_, options_.ram_budget_bytes, exactOptions(kShareOfProof));
      if (found.plan) best_.offer(*found.plan, PlanSource::kExact);
      if (!found.infeasible) {
        takeProof(found);
        return best_.isOptimal() ? best_.finished() : solveLarge();
      }
      // A start that the program does not model.
      if (best_.any()) return finishedAbovePlain();
      refuted = true;
    }
    ExactOptions about = aboutLeastPeak();
    if (countCandidates(allCandidates(problem_, {.enough = kFewCandidates})) > kFewCandidates)
      about.peak_gap = kPeakGap;
    ExactPeak peak = leastPeak(problem_, about);
    if (!peak.proven && !peak.infeasible) takeWalks(peak);
    if (refuted) peak.bound_bytes = std::max(peak.bound_bytes, options_.ram_budget_bytes + 1);
    return withoutPlan(peak);
  }

  ExactOptions aboutLeastPeak() const {
    ExactOptions options = exactOptions(kShareOfLeastPeak);
    options.time_limit_seconds = std::min(options.time_limit_seconds, kMostSecondsAboutLeastPeak);
    return options;
  }

  // The program may end without a plan, or with one above what walks come to.
  void takeWalks(ExactPeak& peak) {
    const SearchOutcome walked = searchLeastPeak(peak.bound_bytes);
    if (!walked.best || (peak.plan && walked.best_peak_bytes >= peak.peak_bytes)) return;
    peak.plan = walked.best;
    peak.peak_bytes = walked.best_peak_bytes;
    peak.proven = peak.peak_bytes <= peak.bound_bytes;
  }

  void takeProof(const ExactPlan& found) {
    if (blocking_) {
      best_.setBound(plain_.makespan_seconds + found.bound_cost, "all");
    } else {
      best_.setBoundValue(boundWithOverlap(problem_, profile_, options_.minimize, found.bound_cost),
                          "all");
    }
  }

  // The exact programs add transfers to the step's seconds. Where they run beside it a schedule may
  // keep a deadline that the sum does not, so that what is proven for every schedule leaves the
  // deadline out.
  ExactOptions exactOptions(double share) const {
    return {.time_limit_seconds = share * deadline_.left(),
            .replay_seconds_limit = blocking_ ? replayLimit() : std::nullopt,
            .threads = options_.threads,
            .solver = options_.solver};
  }

  // No plan within the budget: infeasible where the least peak that any schedule needs lies above
  // it.
  Schedule withoutPlan(const ExactPeak& peak) {
    if (peak.plan && best_.offer(*peak.plan, PlanSource::kExact)) return finishedAbovePlain();
    Schedule schedule = emptySchedule(graph_, options_);
    if ((peak.infeasible && blocking_) || peak.bound_bytes > options_.ram_budget_bytes)
      schedule.status = Status::kInfeasible;
    if (peak.plan && keepsDeadline(*peak.plan)) {
      setLeast(schedule, *peak.plan, peak.peak_bytes, peak.proven);
    } else if (peak.plan) {
      ExactOptions with_deadline = aboutLeastPeak();
      with_deadline.replay_seconds_limit = replayLimit();
      const ExactPeak kept = leastPeak(problem_, with_deadline);
      if (kept.plan && keepsDeadline(*kept.plan))
        setLeast(schedule, *kept.plan, kept.peak_bytes, false);
    }
    if (!schedule.least_ram_budget && schedule.status == Status::kInfeasible) {
      schedule.message = detail::message("ram_budget of ", options_.ram_budget_bytes,
                                         " bytes cannot be met: no schedule needs less than ",
                                         peak.bound_bytes, " bytes");
    }
    return schedule;
  }

  bool keepsDeadline(const ReplayPlan& plan) const {
    return !options_.runtime_budget_seconds ||
           best_.simulated(plan).makespan_seconds <=
               *options_.runtime_budget_seconds * (1 + kSecondsTolerance);
  }

  // ---- large graphs: search
  // ---------------------------------------------------------------------------------------
  Schedule solveLarge() {
    boundable_ = isBoundable();
    if (boundable_ && problem_.exact) {
      const size_t candidates = countToProve();
      provable_ = candidates <= kMostBoundedCandidates;
      has_few_candidates_ = candidates <= kFewBoundedCandidates;
    }
    floor_ = floorOfEverySchedule(problem_, table_, problem_options_);
    if (options_.minimize == Objective::kMemory) {
      const SearchOutcome outcome = searchLeastPeak(0);
      // That adds transfers to the seconds of a step that they run beside.
      if (!best_.any() && !blocking_ && options_.runtime_budget_seconds)
        searchLeastCost(starts_, PlanSource::kGiven, time_limit_seconds_);
      return best_.any() ? best_.finished(static_cast<double>(floor_.bytes), "all")
                         : withoutPlan(outcome);
    }
    if (floor_.bytes > options_.ram_budget_bytes) {
      if (more_may_be_away_) return emptySchedule(graph_, options_);
      return withoutPlan(searchLeastPeak(0));
    }
    if (boundable_) boundAtFewMoments();
    SearchOutcome outcome = searchLeastCost(
        starts_, PlanSource::kGiven,
        (more_may_be_away_ ? kShareBeforeMoreIsAway : kShareWithoutPlan) * time_limit_seconds_);
    if (!best_.any()) {
      if (more_may_be_away_) return emptySchedule(graph_, options_);
      outcome = searchLeastPeak(options_.ram_budget_bytes);
      if (outcome.closest_peak_bytes > options_.ram_budget_bytes) return withoutPlan(outcome);
      outcome = searchLeastCost({outcome.closest}, PlanSource::kLeastPeak, time_limit_seconds_);
    }
    if (best_.any() && boundable_) {
      boundAllSchedules();
      const bool was_provable = provable_;
      boundable_ = provable_ = false;  // the search has the rest
      if (best_.gap() > kOptimalGap &&
          deadline_.left() > kLeastShareToSearch * time_limit_seconds_) {
        const SearchOutcome more =
            search_ ? search_->goOn(best_.bestPlan(), best_.bestSource(), deadline_.left())
                    : price_search_->goOn(deadline_.left());
        const bool refuted = more.best && more.best_cost < outcome.bound_cost;
        outcome.bound_cost =
            refuted ? more.bound_cost : std::max(outcome.bound_cost, more.bound_cost);
      }
      // A better plan leaves fewer columns free.
      if (was_provable && !best_.isOptimal()) proveOverAll(/*is_last=*/true);
    }
    best_.setPlainBound(plain_.makespan_seconds);
    return blocking_ ? best_.finished(plain_.makespan_seconds + outcome.bound_cost, "candidates")
                     : best_.finished();
  }

  // Before there is a plan: a bound over every schedule whatever comes, mostly within a tenth of a
  // second.
  void boundAtFewMoments() {
    takeBound(boundAtMoments(problemToBound(0), problem_options_.small_bytes,
                             options_.ram_budget_bytes, kInfinity,
                             exactOptions(kShareOfFirstBound)));
  }

  Problem problemToBound(int64_t small_bytes) const {
    ProblemOptions options = problem_options_;
    if (!blocking_) options.transfer_price = 0;
    options.small_bytes = small_bytes;
    return Problem(coarsening_.graph(), table_, profile_, options);
  }

  // Of the objective's unit, a second of plain training.
  double scale() const {
    const bool joules = options_.minimize == Objective::kEnergy;
    return joules ? profile_.busyWatts() + profile_.alwaysWatts() : 1;
  }

  void takeBound(const BoundOverAll& found) {
    if (found.any)
      best_.setBoundValue(scale() * (plain_.makespan_seconds + found.bound_cost), "all");
  }

  // Of problems whose cost no schedule can beat: with overlap those of free time, energy charged.
  void boundAllSchedules() {
    if (!has_few_candidates_ && !best_.isOptimal()) {
      const Problem every_size = problemToBound(0);
      const BoundOverAll found =
          boundAtMoments(every_size, problem_options_.small_bytes, options_.ram_budget_bytes,
                         bestCost(), exactOptions(provable_ ? kShareAtMoments : 1));
      takeBound(found);
      if (found.plan && !best_.isOptimal()) walkFrom(translated(*found.plan, every_size, problem_));
    }
    if (provable_ && !best_.isOptimal()) proveOverAll(/*is_last=*/false);
  }

  // From a plan of a proof, which costs little and may exceed the budget.
  void walkFrom(const ReplayPlan& plan) {
    if (search_) search_->walkFrom(plan, kShareOfWalk * deadline_.left());
  }

  double bestCost() const {
    return best_.best().objectiveValue() / scale() - plain_.makespan_seconds;
  }

  // `is_last`: nothing else has a use for the time.
  void proveOverAll(bool is_last) {
    if (deadline_.over()) return;
    const Problem priced = problemToBound(problem_options_.small_bytes);
    const ReplayPlan& best = best_.bestPlan();
    const double share = is_last || has_few_candidates_ ? 1 : kShareOfFirstProof;
    const BoundOverAll found =
        boundOverAll(priced, options_.ram_budget_bytes,
                     {.plan = &best, .cost = bestCost(), .is_last = is_last}, exactOptions(share));
    const bool taken = found.plan && best_.offer(*found.plan, PlanSource::kBound);
    takeBound(found);
    const bool is_cheap = found.plan && makeTimeline(priced, *found.plan).replay_cost < bestCost();
    if (is_cheap && !taken && !best_.isOptimal()) walkFrom(*found.plan);
  }

  // Is there a bound over every schedule at all? With overlap, time alone has none worth the name.
  bool isBoundable() const {
    const bool bounded =
        blocking_ || (options_.minimize == Objective::kEnergy && profile_.store_watts > 0);
    return bounded && profile_.wake_joules <= 0 && options_.minimize != Objective::kMemory;
  }

  // How many replays the relaxed program of all stages has.
  size_t countToProve() const {
    return countCandidates(
        allCandidates(problem_, {.rows_at_replays = false, .enough = kMostBoundedCandidates}));
  }

  SearchOutcome searchLeastCost(const std::vector<ReplayPlan>& starts, PlanSource source,
                                double seconds_without_plan) {
    if (!blocking_) {
      price_search_.emplace(
          PriceSearchInput{.graph = coarsening_.graph(),
                           .table = table_,
                           .profile = profile_,
                           .options = problem_options_,
                           .goal = {.budget_bytes = options_.ram_budget_bytes,
                                    .replay_seconds_limit = replayLimit()},
                           .limits = limits(seconds_without_plan, shareToSearch())},
          starts, source, best_);
      return price_search_->run();
    }
    SearchLimits search_limits = limits(seconds_without_plan, shareToSearch());
    if (boundable_ && isShort()) search_limits.enough_gap = kEnoughGapOfShortSteps;
    search_.emplace(problem_,
                    SearchGoal{.budget_bytes = options_.ram_budget_bytes,
                               .replay_seconds_limit = replayLimit()},
                    search_limits, [&](const ReplayPlan& plan, PlanSource from, double bound_cost) {
                      best_.setBound(plain_.makespan_seconds + bound_cost, "candidates");
                      best_.offer(plan, from);
                      return best_.isOptimal();
                    });
    return search_->run(starts, source);
  }

  // Always the same search, whatever the budget is: a budget at the least that was reported finds
  // its plan again.
  SearchOutcome searchLeastPeak(int64_t enough_bytes) {
    return PlanSearch(problem_,
                      {.budget_bytes = problem_.floor_bytes,
                       .replay_seconds_limit = replayLimit(),
                       .least_peak = true,
                       .enough_bytes = enough_bytes},
                      limits(time_limit_seconds_, 1),
                      [&](const ReplayPlan& plan, PlanSource source, double) {
                        best_.offer(plan, source);
                        return false;
                      })
        .run({});
  }

  SearchLimits limits(double seconds_without_plan, double share) const {
    return {.time_limit_seconds = share * deadline_.left(),
            .seconds_without_plan = seconds_without_plan,
            .threads = options_.threads,
            .solver = options_.solver};
  }

  double shareToSearch() const {
    if (provable_) return kShareBeforeProof;
    if (!boundable_) return 1;
    return isShort() ? kShareOfShortSteps : kShareBeforeBound;
  }

  bool isShort() const { return blocking_ && problem_.numStages() <= kMostStagesOfShortSteps; }

  Schedule withoutPlan(const SearchOutcome& outcome) {
    Schedule schedule = emptySchedule(graph_, options_);
    if (outcome.closest_peak_bytes > plain_.peak_bytes) {  // no walk kept the deadline; plain does
      if (floor_.bytes > options_.ram_budget_bytes) schedule.status = Status::kInfeasible;
      setLeast(schedule, plainSchedule(graph_, profile_, options_), plain_.peak_bytes,
               plain_.peak_bytes <= floor_.bytes);
      return schedule;
    }
    const bool proven = outcome.closest_peak_bytes <= floor_.bytes;
    if (floor_.bytes > options_.ram_budget_bytes) schedule.status = Status::kInfeasible;
    setLeast(schedule, outcome.closest, outcome.closest_peak_bytes, proven);
    return schedule;
  }

  // ---- outcomes without a plan
  // ------------------------------------------------------------------------------------
  Schedule tooSlow() {
    Schedule schedule = emptySchedule(graph_, options_);
    schedule.status = Status::kInfeasible;
    schedule.message = detail::message("runtime_budget of ", *options_.runtime_budget_seconds,
                                       " s cannot be met: plain training alone takes ",
                                       plain_.makespan_seconds, " s");
    return schedule;
  }

  void setLeast(Schedule& schedule, const ReplayPlan& plan, int64_t peak_bytes, bool proven) {
    setLeast(schedule, best_.simulated(plan), peak_bytes, proven);
  }

  void setLeast(Schedule& schedule, Schedule least, int64_t peak_bytes, bool proven) {
    // What a plan needs is the simulator's to say.
    proven = proven && least.peak_bytes <= peak_bytes;
    peak_bytes = std::max(peak_bytes, least.peak_bytes);
    schedule.least_ram_budget = peak_bytes;
    schedule.least_ram_op = least.peak_op;
    schedule.least_plan = std::make_shared<const Schedule>(std::move(least));
    const char* deadline = options_.runtime_budget_seconds ? " within the runtime budget" : "";
    schedule.message = detail::message(
        "ram_budget of ", options_.ram_budget_bytes,
        schedule.status == Status::kInfeasible ? " bytes cannot be met"
                                               : " bytes: no plan was found",
        deadline, ": ",
        proven ? "the least that any schedule needs is " : "the least found so far is ", peak_bytes,
        " bytes, at ", name(schedule.least_ram_op), untouched(peak_bytes));
  }

  std::string name(OpId op) const {
    if (!op.valid() || op >= graph_.endOfStep()) return "the end of the step";
    return detail::message("op ", op.index, " (", graph_.op(op).name, ")");
  }

  // What lies in memory beside the step counts, and only the user can do something about it.
  std::string untouched(int64_t of_bytes) const {
    if (static_cast<double>(graph_.baseBytes()) < kWorthTelling * static_cast<double>(of_bytes))
      return "";
    return detail::message("; ", graph_.baseBytes(),
                           " of them belong to tensors that no op of the step touches");
  }

  std::optional<double> replayLimit() const {
    if (!options_.runtime_budget_seconds) return std::nullopt;
    return std::max(0.0, *options_.runtime_budget_seconds - plain_.makespan_seconds);
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const Deadline deadline_;
  const double time_limit_seconds_;
  const bool more_may_be_away_;  // another run follows where this one finds no plan
  const SimulationResult plain_;
  // Searches and bounds are of the coarse graph; what they find is a plan of the fine one.
  const Coarsening& coarsening_;
  const RecipeTable table_;
  const ProblemOptions problem_options_;
  const Problem problem_;
  const Refinement refinement_;
  const bool blocking_;  // program and simulator agree on time
  Floor floor_;
  Incumbent best_;
  std::vector<ReplayPlan> starts_;
  std::optional<PlanSearch> search_;         // of the least cost, where transfers block ...
  std::optional<PriceSearch> price_search_;  // ... and where they do not
  // Is there a bound over every schedule at all, and is the relaxed program of all stages within
  // reach? Not tried yet.
  bool boundable_ = false, provable_ = false;
  bool has_few_candidates_ = false;  // within such easy reach that its moments say nothing sooner
};

}  // namespace

ProblemOptions problemOptions(int64_t small_bytes, const SolveOptions& options,
                              const std::vector<ValueId>& away, const Coarsening* coarsening) {
  return {.small_bytes = small_bytes,
          .objective = options.minimize,
          .recompute = options.recompute,
          .paging = options.paging,
          .away = away,
          .has_deadline = options.runtime_budget_seconds.has_value(),
          .coarsening = coarsening};
}

Schedule solveWithAway(const SolveInput& input) { return SolveRun(input).run(); }

}  // namespace planner
}  // namespace poet
