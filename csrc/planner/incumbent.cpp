#include "planner/incumbent.h"

#include <algorithm>

#include "graph/error.h"
#include "planner/clock.h"
#include "planner/extract.h"
#include "planner/options.h"
#include "schedule/simulator.h"

namespace poet::planner {
namespace {

constexpr double kSecondsPerOp = 2e-6;  // of work, to simulate a plan

}  // namespace

std::optional<Schedule> asGiven(const Graph& graph, const DeviceProfile& profile,
                                const SolveOptions& options, const Schedule& start) {
  if (!start.hasPlan()) return std::nullopt;
  Schedule own = emptySchedule(graph, options);
  own.status = Status::kFeasible;
  own.before = start.before;
  own.after = start.after;
  own.recipes = start.recipes;
  own.away_between_steps = start.away_between_steps;
  try {
    finalize(graph, profile, own);
  } catch (const ScheduleError&) {
    return std::nullopt;  // no schedule of this graph
  }
  own.believed_peak_bytes = own.peak_bytes;
  own.believed_seconds = own.makespan_seconds;
  return own;
}

Schedule plainSchedule(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options) {
  Schedule nothing;
  nothing.status = Status::kFeasible;
  const auto ops = static_cast<size_t>(graph.numOps());
  nothing.before.resize(ops + 1);
  nothing.after.resize(ops);
  std::optional<Schedule> plain = asGiven(graph, profile, options, nothing);
  POET_INTERNAL_ASSERT(plain, "plain training is no schedule of its own graph");
  return std::move(*plain);
}

bool keepsBudgets(const Schedule& schedule, const SolveOptions& options) {
  if (schedule.peak_bytes > options.ram_budget_bytes) return false;
  return !options.runtime_budget_seconds ||
         schedule.makespan_seconds <= *options.runtime_budget_seconds * (1 + kSecondsTolerance);
}

bool Incumbent::offer(const ReplayPlan& plan, PlanSource source) {
  return take(simulated(plan), plan, source);
}

bool Incumbent::offerGiven(const Schedule& schedule, const ReplayPlan& plan) {
  noteGiven(schedule.method);
  std::optional<Schedule> own = asGiven(graph_, profile_, options_, schedule);
  return own && take(std::move(*own), plan, PlanSource::kGiven);
}

void Incumbent::noteGiven(const std::string& method) {
  if (std::find(given_.begin(), given_.end(), method) == given_.end()) given_.push_back(method);
}

bool Incumbent::take(Schedule&& schedule, const ReplayPlan& plan, PlanSource source) {
  if (!keepsBudgets(schedule, options_)) return false;
  if (best_ && schedule.objectiveValue() >= best_->objectiveValue()) return false;
  best_ = std::move(schedule);
  best_plan_ = plan;
  best_source_ = source;
  best_->start = toString(source);
  for (size_t i = 0; i < given_.size(); ++i)
    best_->start += (i == 0 ? "; starts: " : ", ") + given_[i];
  dropRefutedBounds();
  describe(*best_);
  if (callback_) callback_(*best_);
  tellProgress();
  return true;
}

Schedule Incumbent::simulated(const ReplayPlan& plan) const {
  chargeWork(kSecondsPerOp * graph_.numOps());
  if (const std::optional<Schedule> plain = withoutActions(plan)) return *plain;
  Schedule schedule = emptySchedule(graph_, options_);
  schedule.status = Status::kFeasible;
  writeActions(refinement_.fine(), refinement_.refined(plan), schedule);
  if (profile_.dma_channels > 0) {
    Schedule timed = schedule;
    if (timeTransfers(timed, true)) {
      if (profile_.wake_joules <= 0 || options_.runtime_budget_seconds) return timed;
      // Transfers that are spread out wake the store more often.
      Schedule unmoved = schedule;
      const bool better =
          timeTransfers(unmoved, false) && unmoved.objectiveValue() < timed.objectiveValue();
      return better ? unmoved : timed;
    }
  }
  finalize(graph_, profile_, schedule);
  return schedule;
}

// The plan's frees cost nothing, and gain nothing where all that plain training keeps has room.
std::optional<Schedule> Incumbent::withoutActions(const ReplayPlan& plan) const {
  if (!plan.empty() || options_.minimize == Objective::kMemory || !refinement_.fine().away.empty())
    return std::nullopt;
  Schedule plain = plainSchedule(graph_, profile_, options_);
  if (!keepsBudgets(plain, options_)) return std::nullopt;
  return plain;
}

// The simulator has the last word: false where it does not find what the timing says.
bool Incumbent::timeTransfers(Schedule& schedule, bool moves) const {
  const int64_t plan_bytes = schedule.believed_peak_bytes;
  const int64_t budget_bytes = options_.minimize == Objective::kMemory
                                   ? std::min(options_.ram_budget_bytes, plan_bytes)
                                   : options_.ram_budget_bytes;
  try {
    timing_.improve(budget_bytes, schedule, moves);
    finalize(graph_, profile_, schedule);
  } catch (const ScheduleError&) {
    return false;
  }
  return schedule.peak_bytes <= std::max(budget_bytes, plan_bytes) &&
         schedule.makespan_seconds <= schedule.believed_seconds * (1 + kSecondsTolerance);
}

void Incumbent::setBound(double bound, const std::string& scope) {
  if (options_.minimize == Objective::kEnergy)
    bound = profile_.joules({.busy_seconds = bound, .makespan_seconds = bound});
  setBoundValue(bound, scope);
}

void Incumbent::setPlainBound(double seconds) {
  if (options_.minimize == Objective::kEnergy)
    seconds = profile_.joules({.busy_seconds = seconds, .makespan_seconds = seconds});
  trivial_bound_ = seconds;
  all_bound_ = std::max(all_bound_.value_or(seconds), seconds);
  tellProgress();
}

void Incumbent::setBoundValue(double bound, const std::string& scope) {
  if (scope == "all") {
    std::optional<double>& known = one_class_of_several_ ? class_bound_ : all_bound_;
    known = std::max(known.value_or(bound), bound);
  } else {
    // Over those that were tried last: more of them have less of a bound.
    candidates_bound_ = bound;
  }
  dropRefutedBounds();
  tellProgress();
}

bool Incumbent::refutes(const std::optional<double>& bound) const {
  return best_ && bound && *bound > best_->objectiveValue() * (1 + kOptimalGap);
}

// A plan below a bound over candidates has a replay that is none of them. One below a bound over
// every schedule was given to start from, and is none that the problem models.
void Incumbent::dropRefutedBounds() {
  if (refutes(candidates_bound_)) candidates_bound_.reset();
  if (refutes(class_bound_)) class_bound_.reset();
  if (refutes(all_bound_)) all_bound_ = trivial_bound_;
}

std::optional<double> Incumbent::greatestBound() const {
  return std::max({all_bound_, class_bound_, candidates_bound_});  // none is less than any
}

void Incumbent::tellProgress() {
  SearchPoint now;
  now.bound = greatestBound();
  if (best_) {
    now.value = best_->objectiveValue();
    if (now.bound) now.bound = std::min(*now.bound, *now.value);
  }
  if (now == told_) return;
  told_ = now;
  if (on_progress_) on_progress_(now);
}

double Incumbent::gap() const {
  const std::optional<double> bound = greatestBound();
  if (!best_ || !bound) return 1;
  const double value = best_->objectiveValue();
  return value > 0 ? std::max(0.0, (value - *bound) / value) : 0.0;
}

bool Incumbent::isOptimal() const {
  const std::optional<double> bound = std::max(all_bound_, class_bound_);
  if (!best_ || !bound) return false;
  const double value = best_->objectiveValue();
  return value - *bound <= kOptimalGap * value;
}

Schedule Incumbent::finished() {
  describe(*best_);
  return *best_;
}

// A bound over all schedules that proves the plan, else the greatest that is known, with its scope.
void Incumbent::describe(Schedule& schedule) const {
  const double value = schedule.objectiveValue();
  const auto gapTo = [&](double bound) {
    return value > 0 ? std::max(0.0, (value - bound) / value) : 0.0;
  };
  schedule.status = Status::kFeasible;
  if (all_bound_) schedule.bound_all = std::min(*all_bound_, value);
  const std::optional<double> of_some = std::max(candidates_bound_, class_bound_);
  const bool candidates = of_some && (!all_bound_ || *of_some > *all_bound_);
  if (all_bound_ && value - *all_bound_ <= kOptimalGap * value) {
    schedule.status = Status::kOptimal;
    schedule.bound = std::min(*all_bound_, value);
    schedule.gap = 0.0;
    schedule.bound_scope = "all";
  } else if (all_bound_ || of_some) {
    schedule.bound = std::min(candidates ? *of_some : *all_bound_, value);
    schedule.gap = gapTo(*schedule.bound);
    schedule.bound_scope = candidates ? "candidates" : "all";
  }
}

}  // namespace poet::planner
