#include "runtime/plan_join.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/error.h"
#include "schedule/simulator.h"

namespace poet {

// ------------------------------------------------------------------------------------------------
// where values are

PlannedState::PlannedState(const Recording& recording, const Schedule& schedule)
    : recording_(recording),
      schedule_(schedule),
      resident_(recording.graph->values().size(), false),
      retained_(resident_.size(), false),
      stored_(resident_.size(), false) {
  const auto& away = schedule.away_between_steps;
  for (ValueId v(0); static_cast<size_t>(v.index) < resident_.size(); ++v.index) {
    resident_[static_cast<size_t>(v.index)] = !recording.graph->value(v).producer.valid() &&
                                              !std::binary_search(away.begin(), away.end(), v);
  }
  for (const ValueId v : away) stored_[static_cast<size_t>(v.index)] = true;
}

void PlannedState::come(ValueId v, size_t at) {
  resident_[static_cast<size_t>(v.index)] = true;
  if (at > static_cast<size_t>(recording_.graph->lastShown(v).index))
    retained_[static_cast<size_t>(v.index)] = true;
}

void PlannedState::apply(const Action& action, size_t op) {
  const auto arg = static_cast<size_t>(action.arg);
  switch (action.kind) {
    case ActionKind::kFree:
      resident_[arg] = retained_[arg] = false;
      return;
    case ActionKind::kRetain:
      retained_[arg] = true;
      return;
    case ActionKind::kPageIn:
      come(ValueId(action.arg), op);
      return;
    case ActionKind::kRecompute:
      for (ValueId v : recording_.graph->madeBy(schedule_.recipes[arg].front())) come(v, op);
      return;
    case ActionKind::kPageOut:
      stored_[arg] = true;
      return;
  }
}

void PlannedState::runOp(size_t op) {
  for (ValueId v : recording_.graph->ops()[op].mutates)
    stored_[static_cast<size_t>(v.index)] = false;
  for (ValueId v : recording_.graph->madeBy(OpId(static_cast<int64_t>(op))))
    resident_[static_cast<size_t>(v.index)] = true;
}

void PlannedState::passDeaths(size_t op) {
  for (auto i = recording_.dead_begin[op]; i < recording_.dead_begin[op + 1]; ++i) {
    const auto v = static_cast<size_t>(recording_.dead_after[static_cast<size_t>(i)].index);
    if (!retained_[v]) resident_[v] = false;
  }
}

void PlannedState::runTo(size_t end) {
  for (size_t op = 0; op < end; ++op) {
    for (const Action& action : schedule_.before[op]) apply(action, op);
    runOp(op);
    for (const Action& action : schedule_.after[op]) apply(action, op);
    passDeaths(op);
  }
}

// ------------------------------------------------------------------------------------------------
// the joined schedule

namespace {

// Replays within replays: each is a call within a call.
constexpr size_t kDeepest = 500;

class Join {
 public:
  Join(const CompiledPlan& from, const CompiledPlan& to, size_t at)
      : to_(to), at_(at), joined_(begun(from)), is_(to.recording(), joined_) {
    is_.runTo(at);
    for (ValueId v(0); static_cast<size_t>(v.index) < is_.size(); ++v.index) {
      if (!isShared(v) && is_.isResident(v)) is_.forgetCopy(v);
    }
  }

  // Nothing where a value that the other plan counts on cannot come back.
  std::optional<Schedule> make(bool at_once) {
    PlannedState wanted(to_.recording(), to_.schedule());
    wanted.runTo(at_);
    wanted_ = &wanted;
    letGo();
    if (at_once) {
      op_ = at_;
      for (ValueId v(0); static_cast<size_t>(v.index) < is_.size(); ++v.index) {
        if (wanted.isResident(v) && !bringBack(v)) return std::nullopt;
      }
    }
    for (op_ = at_; op_ <= static_cast<size_t>(joined_.num_ops); ++op_) {
      if (!passActions(wanted) || !passOp(wanted)) return std::nullopt;
    }
    return std::move(joined_);
  }

 private:
  const Graph& graph() const { return to_.graph(); }
  std::vector<Action>& here() { return joined_.before[op_]; }

  // Whether the value has the same number in both steps.
  bool isShared(ValueId v) const {
    return static_cast<size_t>(v.index) < to_.recording().first_shown.size() &&
           static_cast<size_t>(to_.recording().first_shown[static_cast<size_t>(v.index)].index) <
               at_;
  }

  // The first plan's actions up to the parting, and none from there on. Of values that only the
  // other step knows, the other plan's.
  Schedule begun(const CompiledPlan& from) {
    Schedule joined = to_.schedule();
    const Schedule& first = from.schedule();
    std::vector<ValueId> away;
    for (const ValueId v : first.away_between_steps) {
      if (isShared(v)) away.push_back(v);
    }
    for (const ValueId v : joined.away_between_steps) {
      if (!isShared(v)) away.push_back(v);
    }
    std::sort(away.begin(), away.end());
    joined.away_between_steps = std::move(away);
    const std::vector<Action> none;
    const auto taken = [&](const std::vector<Action>& of_first, const std::vector<Action>& of_other,
                           size_t op) {
      std::vector<Action> actions;
      for (Action action : of_first) {
        const bool recomputes = action.kind == ActionKind::kRecompute;
        if (recomputes)
          action.arg = chainOf(joined, first.recipes[static_cast<size_t>(action.arg)]);
        if (!recomputes && !isShared(ValueId(action.arg))) continue;
        // What the other step goes on to show, the program keeps.
        const bool is_held = action.kind == ActionKind::kRetain &&
                             graph().lastShown(ValueId(action.arg)).index != static_cast<int>(op);
        if (!is_held) actions.push_back(action);
      }
      for (const Action& action : of_other) {
        if (action.kind != ActionKind::kRecompute && !isShared(ValueId(action.arg)))
          actions.push_back(action);
      }
      return actions;
    };
    for (size_t op = 0; op < joined.before.size(); ++op) {
      const bool is_begun = op < at_;
      joined.before[op] = is_begun ? taken(first.before[op], joined.before[op], op) : none;
      if (op >= joined.after.size()) continue;  // there is a last `before`, at the step's end
      joined.after[op] = is_begun ? taken(first.after[op], joined.after[op], op) : none;
    }
    return joined;
  }

  // What the other plan has let go of by now, and what it holds beyond its death.
  void letGo() {
    op_ = at_;
    for (ValueId v(0); static_cast<size_t>(v.index) < is_.size(); ++v.index) {
      if (is_.isResident(v) && !wanted_->isResident(v)) letGoOf(v, wanted_->isStored(v));
      if (!is_.isResident(v) || is_.isRetained(v) || !wanted_->isRetained(v)) continue;
      const auto shown = static_cast<size_t>(graph().lastShown(v).index);
      const Action retain{ActionKind::kRetain, v.index};
      joined_.after[shown].push_back(retain);  // the program still holds it
      is_.apply(retain, shown);
    }
  }

  void act(const Action& action) {
    here().push_back(action);
    is_.apply(action, op_);
  }

  void letGoOf(ValueId v, bool to_store) {
    if (to_store && !is_.isStored(v)) act({ActionKind::kPageOut, v.index});
    act({ActionKind::kFree, v.index});
  }

  bool bringBack(ValueId v, size_t depth = 0) {
    if (is_.isResident(v)) return true;
    if (!is_.isStored(v)) return recompute(v, depth);
    act({ActionKind::kPageIn, v.index});
    return true;
  }

  bool recompute(ValueId v, size_t depth) {
    const int r = to_.recipes().recipeOf(v);
    if (r < 0 || depth > kDeepest) return false;
    const Recipe& recipe = to_.recipes().recipes()[static_cast<size_t>(r)];
    const OpId now(static_cast<int64_t>(op_));
    if (now <= recipe.lastOp() || now > recipe.unchanged_until) return false;
    std::vector<ValueId> for_this;
    for (ValueId input : recipe.inputs) {
      if (is_.isResident(input)) continue;
      for_this.push_back(input);
      if (!bringBack(input, depth + 1)) return false;
    }
    for (ValueId output : recipe.outputs) {
      if (!is_.isResident(output) && output != v) for_this.push_back(output);
    }
    act({ActionKind::kRecompute, chainOf(joined_, recipe.ops)});
    for (ValueId one : for_this) {
      if (is_.isResident(one) && !wanted_->isResident(one)) act({ActionKind::kFree, one.index});
    }
    return true;
  }

  static int32_t chainOf(Schedule& schedule, const std::vector<OpId>& ops) {
    const auto found = std::find(schedule.recipes.begin(), schedule.recipes.end(), ops);
    const auto index = static_cast<int32_t>(found - schedule.recipes.begin());
    if (found == schedule.recipes.end()) schedule.recipes.push_back(ops);
    return index;
  }

  bool passActions(PlannedState& wanted) {
    for (const Action& action : to_.schedule().before[op_]) {
      const ValueId v(action.arg);
      if (action.kind == ActionKind::kRecompute) {
        const int r = to_.recipeOfAction(action.arg);
        const Recipe& recipe = to_.recipes().recipes()[static_cast<size_t>(r)];
        for (ValueId input : recipe.inputs) {
          if (!bringBack(input)) return false;
        }
        act(action);
      } else if (action.kind == ActionKind::kFree && is_.isResident(v)) {
        letGoOf(v, wanted.isStored(v));
      } else if (action.kind == ActionKind::kPageOut && is_.isResident(v) && !is_.isStored(v)) {
        act(action);
      } else if (action.kind == ActionKind::kPageIn && !bringBack(v)) {
        return false;
      }
      wanted.apply(action, op_);
    }
    return true;
  }

  bool passOp(PlannedState& wanted) {
    const auto& recording = to_.recording();
    if (op_ == static_cast<size_t>(joined_.num_ops)) {  // what outlives the step
      for (ValueId v(0); static_cast<size_t>(v.index) < is_.size(); ++v.index) {
        const bool stays = wanted.isResident(v) && !wanted.isRetained(v);
        // Where the first plan does not have it away between steps, this one must not either.
        const bool comes_back = !is_.isResident(v) && !stays && wanted.isStored(v) &&
                                graph().value(v).death == graph().endOfStep() && !isAway(v);
        if ((stays || comes_back) && !bringBack(v)) return false;
      }
      return true;
    }
    const OpId op(static_cast<int64_t>(op_));
    for (ValueId v : graph().dataInputs(op)) {
      if (!bringBack(v)) return false;
    }
    for (auto i = recording.dead_begin[op_]; i < recording.dead_begin[op_ + 1]; ++i) {
      const ValueId v = recording.dead_after[static_cast<size_t>(i)];
      const bool is_needed = to_.recipes().mustEndResident(v) || isRetainedAfter(v);
      if (wanted.isResident(v) && is_needed && !bringBack(v)) return false;
    }
    is_.runOp(op_);
    wanted.runOp(op_);
    for (const Action& action : to_.schedule().after[op_]) {
      const bool is_copied =
          action.kind == ActionKind::kPageOut &&
          (!is_.isResident(ValueId(action.arg)) || is_.isStored(ValueId(action.arg)));
      if (!is_copied) joined_.after[op_].push_back(action);
      if (!is_copied) is_.apply(action, op_);
      wanted.apply(action, op_);
    }
    is_.passDeaths(op_);
    wanted.passDeaths(op_);
    return true;
  }

  bool isAway(ValueId v) const {
    const auto& away = joined_.away_between_steps;
    return std::binary_search(away.begin(), away.end(), v);
  }

  bool isRetainedAfter(ValueId v) const {
    const auto& actions = to_.schedule().after[op_];
    return std::find(actions.begin(), actions.end(), Action{ActionKind::kRetain, v.index}) !=
           actions.end();
  }

  const CompiledPlan& to_;
  size_t at_;
  size_t op_ = 0;
  Schedule joined_;
  PlannedState is_;                 // as the joined schedule has it
  PlannedState* wanted_ = nullptr;  // as the other plan has it
};

}  // namespace

std::shared_ptr<CompiledPlan> joinPlans(const CompiledPlan& from, const CompiledPlan& to,
                                        size_t at) {
  std::optional<Schedule> best;
  const auto fits = [](const Schedule& one) {
    return !one.ram_budget_bytes || one.peak_bytes <= *one.ram_budget_bytes;
  };
  for (const bool at_once : {true, false}) {
    try {
      std::optional<Schedule> joined = Join(from, to, at).make(at_once);
      if (!joined) continue;
      finalize(to.graph(), to.profile(), *joined);
      const bool better = !best || (fits(*joined) && !fits(*best)) ||
                          (fits(*joined) == fits(*best) &&
                           (fits(*best) ? joined->makespan_seconds < best->makespan_seconds
                                        : joined->peak_bytes < best->peak_bytes));
      if (better) best = std::move(joined);
    } catch (const ScheduleError&) {  // one of the plan's actions has no meaning in the other step
    }
  }
  if (!best) return nullptr;
  try {
    return std::make_shared<CompiledPlan>(
        to.sharedRecording(), std::make_shared<const Schedule>(std::move(*best)), to.profile());
  } catch (const ScheduleError&) {
    return nullptr;
  }
}

}  // namespace poet
