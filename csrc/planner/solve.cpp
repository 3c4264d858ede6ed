// What is away between steps, and how the plans of several choices of it compare.
#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "planner/away.h"
#include "planner/backends/solver.h"
#include "planner/clock.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/planner.h"
#include "planner/solve_run.h"
#include "schedule/simulator.h"

namespace poet {
namespace planner {
namespace {

// Of the time limit, where what is away is a choice; then there are searches with more of it away,
// each with a share of what is left.
constexpr double kShareOfLeastAway = 0.6, kShareOfAnotherAway = 0.5;
// Where a deadline decides how much may be away: of the time limit, for what the least peak is.
constexpr double kShareOfPeakSearch = 0.3;

const IncumbentCallback kNobody;

class AwaySearch {
 public:
  AwaySearch(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
             const IncumbentCallback& on_incumbent, const ProgressCallback& on_progress)
      : graph_(graph),
        profile_(profile),
        options_(options),
        on_incumbent_(on_incumbent),
        on_progress_(on_progress),
        deadline_(options.time_limit_seconds),
        may_be_away_(mayBeAway(graph, profile, options)),
        table_(graph),
        coarsening_(graph, table_) {}

  Schedule run() {
    Schedule schedule = transfersMayBeTooSlow() ? withinDeadline() : withAsLittleAwayAsWillDo();
    const size_t all = may_be_away_.size();
    for (size_t more = count_ + 1; more <= all && mayGainByMoreAway(schedule);
         more = more == all ? all + 1 : std::min(all, 2 * more)) {
      const double share = more == all ? 1 : kShareOfAnotherAway;
      Schedule other = solveWith(options_, more, share * deadline_.left(), false);
      if (isBetter(other, schedule)) schedule = std::move(other);
    }
    takeStarts(schedule);
    schedule.solve_seconds = deadline_.elapsed();
    schedule.history = std::move(history_);
    return schedule;
  }

 private:
  bool transfersMayBeTooSlow() const {
    return options_.runtime_budget_seconds && !may_be_away_.empty();
  }

  Schedule withinDeadline() {
    if (options_.minimize == Objective::kMemory) return leastPeakWithinDeadline(options_);
    Schedule schedule = withAsLittleAwayAsWillDo(/*another_follows=*/true);
    if (schedule.hasPlan() || deadline_.over() || isTooSlow()) return schedule;
    SolveOptions about = options_;
    about.minimize = Objective::kMemory;
    about.ram_budget_bytes = std::numeric_limits<int64_t>::max();
    Schedule least = leastPeakWithinDeadline(about);
    if (!least.hasPlan()) return schedule;
    if (least.peak_bytes <= options_.ram_budget_bytes) {
      const size_t count = least.away_between_steps.size();
      SolveOptions from_it = options_;
      from_it.starts.push_back(std::move(least));
      return solveWith(from_it, count, deadline_.left(), false);
    }
    if (floorWith(may_be_away_.size()) > options_.ram_budget_bytes)
      schedule.status = Status::kInfeasible;
    setLeast(schedule, std::make_shared<const Schedule>(std::move(least)));
    return schedule;
  }

  bool isTooSlow() const {
    return simulatePlain(graph_, profile_).makespan_seconds >
           *options_.runtime_budget_seconds * (1 + kSecondsTolerance);
  }

  void setLeast(Schedule& schedule, std::shared_ptr<const Schedule> least) const {
    const int64_t bytes = least->peak_bytes;
    if (schedule.least_ram_budget && *schedule.least_ram_budget <= bytes) return;
    schedule.least_ram_budget = bytes;
    schedule.least_ram_op = least->peak_op;
    schedule.least_plan = std::move(least);
    schedule.message =
        detail::message("ram_budget of ", options_.ram_budget_bytes,
                        schedule.status == Status::kInfeasible ? " bytes cannot be met"
                                                               : " bytes: no plan was found",
                        " within the runtime budget: the least found so far is ", bytes, " bytes");
  }

  // With all of it away every peak can be had that any choice has, but its transfers may take too
  // long. So plans with none of it away are looked for as well, and with half of it.
  Schedule leastPeakWithinDeadline(const SolveOptions& options) {
    const size_t all = may_be_away_.size();
    const double whole = deadline_.left();
    Schedule best = solveWith(options, all, kShareOfPeakSearch * whole, false);
    if (best.status == Status::kOptimal || (!best.hasPlan() && isTooSlow())) return best;
    const int64_t floor = floorWith(all);
    // What is proven of this choice alone says nothing of the others.
    if (!best.hasPlan() && floor <= options.ram_budget_bytes) best.status = Status::kTimeLimit;
    size_t before = all;
    for (const size_t count : {all / 2, size_t{0}}) {
      if (deadline_.over() || count == before) break;
      before = count;
      Schedule other = solveWith(options, count, kShareOfPeakSearch * whole, false);
      if (!best.hasPlan() && !other.hasPlan() && other.least_plan) setLeast(best, other.least_plan);
      if (!isBetter(other, best)) continue;
      best = std::move(other);
      best.bound = best.bound_all = std::min(static_cast<double>(floor), best.objectiveValue());
      best.gap = (best.objectiveValue() - *best.bound) / best.objectiveValue();
      best.bound_scope = "all";
      best.status = *best.gap <= kOptimalGap ? Status::kOptimal : Status::kFeasible;
    }
    return best;
  }

  int64_t floorWith(size_t count) const {
    return Problem(graph_, table_, profile_,
                   problemOptions(0, options_, firstOf(may_be_away_, count)))
        .floor_bytes;
  }

  // What stays in the store between steps costs two transfers in each of them, so it is as little
  // as will do: nothing, or the first that may be away whose absence lets the floor fit, or all.
  Schedule withAsLittleAwayAsWillDo(bool another_follows = false) {
    const size_t all = may_be_away_.size();
    // The least peak is that of every schedule, with whatever may be away.
    count_ = options_.minimize == Objective::kMemory
                 ? all
                 : fewestAway(all, options_.ram_budget_bytes,
                              [&](size_t count) { return floorWith(count); });
    for (;; count_ = moreAway(count_, all)) {
      const bool last = count_ == all;
      const double share = mayChoose() && !last ? kShareOfLeastAway : 1;
      Schedule schedule =
          solveWith(options_, count_, share * deadline_.left(), !last || another_follows);
      if (last || schedule.hasPlan()) return schedule;
      if (deadline_.over()) {  // with more of them away it might do
        schedule.status = Status::kTimeLimit;
        return schedule;
      }
    }
  }

  Schedule solveWith(const SolveOptions& options, size_t count, double seconds,
                     bool more_may_be_away) {
    // With all of it away every other choice's peak can be had, if there is time for transfers.
    const bool all_do = options.minimize == Objective::kMemory &&
                        (!options.runtime_budget_seconds || count == may_be_away_.size());
    const bool one_of_several = !all_do && (mayChoose() || options.minimize == Objective::kMemory);
    const bool wakes =
        options.paging && options.minimize == Objective::kEnergy && profile_.wake_joules > 0;
    const int search = ++searches_;
    const bool is_asked = options.minimize == options_.minimize;
    const ProgressCallback note = [&](const SearchPoint& point) {
      if (is_asked) tell(point, search);
    };
    Schedule found = solveWithAway({.coarsening = coarsening_,
                                    .fine_table = table_,
                                    .profile = profile_,
                                    .options = options,
                                    .on_incumbent = is_asked ? on_incumbent_ : kNobody,
                                    .on_progress = note,
                                    .away = firstOf(may_be_away_, count),
                                    .time_limit_seconds = seconds,
                                    .more_may_be_away = more_may_be_away,
                                    .one_class_of_several = one_of_several || wakes});
    // Transfers between steps take time: with less of them away the deadline might be kept.
    if (mayChoose() && one_of_several && count > 0 && options.runtime_budget_seconds &&
        found.status == Status::kInfeasible && !isTooSlow())
      found.status = Status::kTimeLimit;
    return found;
  }

  // Of the search that has the best plan so far: that of another one says nothing of it.
  void tell(SearchPoint point, int search) {
    const bool better = point.value && (!told_.value || *point.value < *told_.value);
    if (told_.value && !better && search != told_search_) return;
    told_search_ = search;
    told_ = point;
    point.seconds = deadline_.elapsed();
    history_.push_back(point);
    if (on_progress_) on_progress_(point);
  }

  // Away a value that no op writes costs one transfer a step, and two where it leaves and returns
  // within it; so more away than must be may cost less. A live program may look at them between its
  // steps: there it is no choice.
  bool mayChoose() const { return profile_.direct_kernels && !may_be_away_.empty(); }

  bool mayGainByMoreAway(const Schedule& schedule) const {
    if (!schedule.hasPlan() || options_.minimize == Objective::kMemory) return false;
    return mayChoose() && schedule.status != Status::kOptimal && !deadline_.over();
  }

  static bool isBetter(const Schedule& one, const Schedule& other) {
    if (!one.hasPlan()) return false;
    return !other.hasPlan() || one.objectiveValue() < other.objectiveValue();
  }

  // A start may be what no problem here models, or have something else away: it is never lost.
  void takeStarts(Schedule& schedule) const {
    for (const Schedule& start : options_.starts) {
      std::optional<Schedule> own = asGiven(graph_, profile_, options_, start);
      if (!own || !keepsBudgets(*own, options_) || !isBetter(*own, schedule)) continue;
      const double value = own->objectiveValue();
      own->start = std::string(toString(PlanSource::kGiven)) + "; starts: " + start.method;
      const double trivial = trivialBound();
      const double known = std::max(schedule.bound_all.value_or(trivial), trivial);
      // What is below a bound refutes it: the bound speaks of what the problem models.
      const bool refuted = known > value * (1 + kOptimalGap);
      own->bound = own->bound_all = std::min(refuted ? trivial : known, value);
      own->gap = value > 0 ? (value - *own->bound) / value : 0.0;
      if (*own->gap <= kOptimalGap) own->status = Status::kOptimal;
      schedule = std::move(*own);
    }
  }

  // Undercut by no schedule, modelled or not.
  double trivialBound() const {
    if (options_.minimize == Objective::kMemory) return static_cast<double>(graph_.baseBytes());
    const SimulationResult plain = simulatePlain(graph_, profile_);
    return options_.minimize == Objective::kEnergy ? plain.energy_joules : plain.makespan_seconds;
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const IncumbentCallback& on_incumbent_;
  const ProgressCallback& on_progress_;
  const Deadline deadline_;
  const std::vector<ValueId> may_be_away_;
  const RecipeTable table_;
  const Coarsening coarsening_;
  size_t count_ = 0;  // of those that are away
  int searches_ = 0, told_search_ = 0;
  SearchPoint told_;
  std::vector<SearchPoint> history_;
};

}  // namespace
}  // namespace planner

Schedule solve(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
               const IncumbentCallback& on_incumbent, const ProgressCallback& on_progress) {
  planner::checkOptions(options);
  for (const Schedule& start : options.starts) start.checkAgainst(graph);
  planner::checkSolver(options.solver);
  std::optional<planner::WorkMeter> meter;
  if (options.deterministic) meter.emplace();
  return planner::AwaySearch(graph, profile, options, on_incumbent, on_progress).run();
}

}  // namespace poet
