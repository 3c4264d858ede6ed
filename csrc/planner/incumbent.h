// The best plan so far, as the simulator sees it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "planner/plan_source.h"
#include "planner/planner.h"
#include "planner/refinement.h"
#include "planner/replay_plan.h"
#include "planner/transfer_timing.h"

namespace poet::planner {

// Seconds are sums of thousands of doubles, in an order of their own in every part that adds them
// up.
inline constexpr double kSecondsTolerance = 1e-9;  // relative
// A plan is optimal when it lies this close to a bound that holds for every schedule.
inline constexpr double kOptimalGap = 1e-6;  // relative
// Of the plain step's cost: how far a plan may be from the bound for a search to end.
inline constexpr double kCloseEnough = kOptimalGap / 2;
// A step to a proof need not look for plans that are better by less: that there is none below ends
// the search.
inline constexpr double kTooLittle = 0.9 * kCloseEnough;

// A schedule that was given to start from, as it stands: with the figures of this graph and device.
// None where it is no schedule of this graph.
std::optional<Schedule> asGiven(const Graph& graph, const DeviceProfile& profile,
                                const SolveOptions& options, const Schedule& start);

// Plain training.
Schedule plainSchedule(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options);

// Whether it keeps memory budget and deadline.
bool keepsBudgets(const Schedule& schedule, const SolveOptions& options);

class Incumbent {
 public:
  // `one_class_of_several`: what is said to bound all schedules holds for those alone that the
  // problem models (one choice of what is away between steps, say), unless no plan could cost less
  // than plain training.
  Incumbent(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options,
            const Refinement& refinement, const IncumbentCallback& callback,
            const ProgressCallback& on_progress, bool one_class_of_several = false)
      : graph_(graph),
        profile_(profile),
        options_(options),
        refinement_(refinement),
        callback_(callback),
        on_progress_(on_progress),
        one_class_of_several_(one_class_of_several),
        facts_(graph),
        timing_(facts_, profile) {
    if (options.minimize == Objective::kMemory)
      trivial_bound_ = static_cast<double>(graph.baseBytes());
  }

  // Takes the plan of the coarse graph if the simulator finds it within the budgets and better than
  // the best so far; then the callback hears of it. True where it was taken.
  bool offer(const ReplayPlan& plan, PlanSource source);

  // Likewise of a schedule of the fine graph that was given to start from, as it stands; `plan`
  // holds its replays. Plans found from then on name its method, too (Schedule::start).
  bool offerGiven(const Schedule& schedule, const ReplayPlan& plan);

  // The plan as a schedule with the simulator's figures, whether it keeps the budgets or not. Its
  // transfers are timed where they run beside computation (TransferTiming).
  Schedule simulated(const ReplayPlan& plan) const;

  bool any() const { return best_.has_value(); }
  const Schedule& best() const { return *best_; }
  const ReplayPlan& bestPlan() const { return best_plan_; }  // where there is one
  PlanSource bestSource() const { return best_source_; }     // likewise

  // (value - bound) / value with the bounds known by now; 1 without a plan or a bound.
  double gap() const;
  // Whether the best plan attains a bound over every schedule that the problem models.
  bool isOptimal() const;

  // A lower bound, in seconds of a busy device (bytes for the least peak); "all" beats "candidates"
  // where both are known.
  void setBound(double bound, const std::string& scope);
  // Likewise, in the objective's unit.
  void setBoundValue(double bound, const std::string& scope);
  // Likewise, one that holds whatever class a schedule is of.
  void setPlainBound(double seconds);

  // The best plan with its bound: optimal where it attains a bound over all schedules.
  Schedule finished();
  Schedule finished(double bound, const std::string& scope) {
    setBound(bound, scope);
    return finished();
  }

 private:
  bool take(Schedule&& schedule, const ReplayPlan& plan, PlanSource source);
  void noteGiven(const std::string& method);
  void describe(Schedule& schedule) const;
  bool refutes(const std::optional<double>& bound) const;
  void dropRefutedBounds();
  std::optional<double> greatestBound() const;
  void tellProgress();
  std::optional<Schedule> withoutActions(const ReplayPlan& plan) const;
  bool timeTransfers(Schedule& schedule, bool moves) const;

  const Graph& graph_;
  const DeviceProfile& profile_;
  const SolveOptions& options_;
  const Refinement& refinement_;
  const IncumbentCallback& callback_;
  const ProgressCallback& on_progress_;
  const bool one_class_of_several_;
  const GraphFacts facts_;
  const TransferTiming timing_;
  std::optional<Schedule> best_;
  ReplayPlan best_plan_;
  PlanSource best_source_ = PlanSource::kPlain;
  std::vector<std::string> given_;  // methods of the schedules to start from, each once
  std::optional<double> all_bound_, candidates_bound_;
  // What no schedule undercuts, modelled or not: plain training's cost, bytes beside the step.
  std::optional<double> trivial_bound_;
  std::optional<double> class_bound_;  // of all schedules of the one class
  SearchPoint told_;
};

}  // namespace poet::planner
