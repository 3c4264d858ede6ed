// Where a TrainingStep's plans come from: the store is measured, poet-solver asked, the session
// told.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>

#include "device/profile.h"
#include "graph/graph.h"
#include "planner/planner.h"
#include "runtime/session.h"
#include "runtime/training_step.h"
#include "schedule/schedule.h"

namespace poet {

// plan() runs on one thread at a time; the rest from any thread.
class StepPlanner {
 public:
  // Throws ArgumentError where an option makes no sense, or page_dir takes no page file. Warns
  // (c10::WarningHandler) where the system's own directory takes none: then nothing is paged.
  StepPlanner(std::shared_ptr<Session> session, const TrainingStepOptions& options);

  // Keeps the steps to come inside the budget where they have no plan. On the thread that runs
  // them: before the first call, and after a recorded one, whose peak a share is of.
  void keepInside();
  void keepInside(const Graph& recorded);

  // Puts a plan in force for the variant, or notes (and warns, once) that there is none.
  void plan(int variant, const std::stop_token& stop);

  // The variant's plan no longer keeps the budget: the next one leaves room for what is still to
  // come, where there is a plan that does.
  void outgrow(int variant, int64_t bytes_to_come);

  // That much more lies beside the variant's step, and its plan keeps the budget: it stays.
  void grow(int variant, int64_t bytes);

  std::shared_ptr<const Schedule> scheduleOf(int variant) const;  // null before the first
  int64_t numPlans() const;
  std::string message() const;  // the last word where there is no plan

 private:
  void setBudget(int64_t bytes);
  void measureStore();
  void stopPaging(const std::string& why);
  SolveOptions requestFor(const Graph& graph);
  Schedule search(const Graph& graph, SolveOptions solve, int64_t room,
                  const std::stop_token& stop) const;
  bool putInForce(int variant, const Graph& graph, const std::shared_ptr<const Schedule>& schedule);
  void giveUp(int variant, const std::shared_ptr<const Schedule>& schedule, int64_t budget_bytes);
  void keep(int variant, const std::shared_ptr<const Schedule>& schedule, std::string message);
  void say(const std::string& text) const;

  std::shared_ptr<Session> session_;
  TrainingStepOptions options_;
  DeviceProfile profile_;
  bool paging_;
  bool store_is_measured_ = false;
  int64_t policed_peak_bytes_ = 0;
  bool warned_ = false;
  bool is_policed_ = false;  // by the online policy
  int64_t largest_peak_bytes_ = 0;

  mutable std::mutex mutex_;  // of what plan() shares with the rest
  std::map<int, std::shared_ptr<const Schedule>> schedules_;
  std::map<int, int64_t> bytes_to_come_;  // of outgrown plans
  std::string message_;
};

}  // namespace poet
