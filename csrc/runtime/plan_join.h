// One plan for a step that begins under one variant's plan and goes on under another's.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/compiled_plan.h"

namespace poet {

// Where a schedule has its values: after the actions and ops that it was told of, in their order.
class PlannedState {
 public:
  // As the step begins.
  PlannedState(const Recording& recording, const Schedule& schedule);

  void apply(const Action& action, size_t op);  // of before[op] or after[op]
  void runOp(size_t op);                        // what it makes is there
  void passDeaths(size_t op);                   // and what dies by it is not, unless retained
  // Everything up to just before the actions of op `end`.
  void runTo(size_t end);

  bool isResident(ValueId v) const { return resident_[static_cast<size_t>(v.index)]; }
  bool isRetained(ValueId v) const { return retained_[static_cast<size_t>(v.index)]; }
  // There is none any more.
  void forgetCopy(ValueId v) { stored_[static_cast<size_t>(v.index)] = false; }
  // The store has a copy of what the value is by now.
  bool isStored(ValueId v) const { return stored_[static_cast<size_t>(v.index)]; }
  size_t size() const { return resident_.size(); }

 private:
  void come(ValueId v, size_t at);

  const Recording& recording_;
  const Schedule& schedule_;
  std::vector<bool> resident_, retained_, stored_;
};

// Note [Joined plans]
// Steps that begin alike begin under the plan of one of them. Where they part, values are not where
// the other plan has them by then: what it counts on is away, and what it has let go of is here.
// Bringing everything back at once takes the budget by surprise: recomputing needs memory beside
// what is there already. So the whole step is one schedule of the other variant: the first plan's
// actions up to the parting, then the other's, which bring back what is missing either at once or
// only where it is needed. The simulator tells which of these keeps the budget, and what the step's
// peak will be. The executor then finds every value where the joined schedule has it.
//
// What the other plan has in the store by then is copied there before it goes; where it counts on a
// copy that is not there, the value is made again. Values from before the step that no op has shown
// until the parting have other numbers in the two steps, and so are where the other plan has them:
// the executor sees to that as it changes over (what is in memory then has no copy yet). What is
// away as the step begins is what the first plan has away, and all that the other one does not
// expect back by the end stays in memory.
//
// Of the two ways the one inside the budget that takes less time, else the one of the lower peak.
// Null where neither can be carried out. The first `at` ops of both are the same.
std::shared_ptr<CompiledPlan> joinPlans(const CompiledPlan& from, const CompiledPlan& to,
                                        size_t at);

}  // namespace poet
