// What is away between steps, and how the plans of several choices of it compare.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/away.h"
#include "planner/backends/solver.h"
#include "planner/clock.h"
#include "planner/incumbent.h"
#include "planner/options.h"
#include "planner/planner.h"
#include "planner/solve_run.h"

namespace poet {
namespace planner {
namespace {

// Of the time limit, where what is away is a choice; then there are searches with more of it away,
// each with a share of what is left.
constexpr double kShareOfLeastAway = 0.6, kShareOfAnotherAway = 0.5;

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
    Schedule schedule = withAsLittleAwayAsWillDo();
    const size_t all = may_be_away_.size();
    for (size_t more = count_ + 1; more <= all && mayGainByMoreAway(schedule);
         more = more == all ? all + 1 : std::min(all, 2 * more)) {
      const double share = more == all ? 1 : kShareOfAnotherAway;
      Schedule other = solveWith(more, share * deadline_.left(), false);
      if (isBetter(other, schedule)) schedule = std::move(other);
    }
    takeStarts(schedule);
    schedule.solve_seconds = deadline_.elapsed();
    schedule.history = std::move(history_);
    return schedule;
  }

 private:
  // What stays in the store between steps costs two transfers in each of them, so it is as little
  // as will do: nothing, or the first that may be away whose absence lets the floor fit, or all.
  Schedule withAsLittleAwayAsWillDo() {
    const size_t all = may_be_away_.size();
    const auto floorWith = [&](size_t count) {
      return Problem(graph_, table_, profile_,
                     problemOptions(0, options_, firstOf(may_be_away_, count)))
          .floor_bytes;
    };
    // The least peak is that of every schedule, with whatever may be away.
    count_ = options_.minimize == Objective::kMemory
                 ? all
                 : fewestAway(all, options_.ram_budget_bytes, floorWith);
    for (;; count_ = moreAway(count_, all)) {
      const bool last = count_ == all;
      const double share = mayChoose() && !last ? kShareOfLeastAway : 1;
      Schedule schedule = solveWith(count_, share * deadline_.left(), !last);
      if (last || schedule.hasPlan()) return schedule;
      if (deadline_.over()) {  // with more of them away it might do
        schedule.status = Status::kTimeLimit;
        return schedule;
      }
    }
  }

  Schedule solveWith(size_t count, double seconds, bool more_may_be_away) {
    // With all of it away every other choice's peak can be had, if there is time for transfers.
    const bool all_do = options_.minimize == Objective::kMemory && !options_.runtime_budget_seconds;
    const bool one_of_several = mayChoose() && !all_do;
    const bool wakes =
        options_.paging && options_.minimize == Objective::kEnergy && profile_.wake_joules > 0;
    const ProgressCallback note = [&](SearchPoint point) {
      point.seconds = deadline_.elapsed();
      history_.push_back(point);
      if (on_progress_) on_progress_(point);
    };
    Schedule found = solveWithAway({.coarsening = coarsening_,
                                    .fine_table = table_,
                                    .profile = profile_,
                                    .options = options_,
                                    .on_incumbent = on_incumbent_,
                                    .on_progress = note,
                                    .away = firstOf(may_be_away_, count),
                                    .time_limit_seconds = seconds,
                                    .more_may_be_away = more_may_be_away,
                                    .one_class_of_several = one_of_several || wakes});
    // Transfers between steps take time: with less of them away the deadline might be kept.
    if (one_of_several && count > 0 && options_.runtime_budget_seconds &&
        found.status == Status::kInfeasible)
      found.status = Status::kTimeLimit;
    return found;
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
      if (schedule.bound_all) own->bound_all = std::min(*schedule.bound_all, value);
      if (own->bound_all) {
        own->bound = own->bound_all;
        own->bound_scope = "all";
        own->gap = value > 0 ? (value - *own->bound) / value : 0.0;
      }
      schedule = std::move(*own);
    }
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
