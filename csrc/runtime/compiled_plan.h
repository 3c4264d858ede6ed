// CompiledPlan: a schedule and its recording, packed for the hot path.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/profile.h"
#include "graph/recipes.h"
#include "schedule/schedule.h"
#include "trace/recording.h"

namespace poet {

// See Note [Recoverability] in graph/recipes.h for rescues and roots.
class CompiledPlan {
 public:
  // What the hot path reads of an op, packed: after a kernel that went through megabytes every line
  // is a cache miss.
  struct HotOp {
    const void* schema;
    const Slot* slots;  // of the arguments, behind them those of the results: the recording's
    uint64_t numbers;   // of those that may be tried with others, see Note [Results shaped by data]
    uint32_t n_in, n_out;
    uint16_t n_args, n_returns;
    bool metadata_only, reads_no_data, record, has_before, has_after, has_rescue, has_dead, mutates,
        raises, shaped_by_data;
  };

  // Throws ScheduleError if the schedule is not the recording's, or has no plan.
  CompiledPlan(std::shared_ptr<const Recording> recording, std::shared_ptr<const Schedule> schedule,
               const DeviceProfile& profile);

  const Recording& recording() const { return *recording_; }
  const std::shared_ptr<const Recording>& sharedRecording() const { return recording_; }
  const Graph& graph() const { return *recording_->graph; }
  const Schedule& schedule() const { return *schedule_; }
  const DeviceProfile& profile() const { return profile_; }
  const RecipeTable& recipes() const { return recipes_; }
  size_t numOps() const { return hot_.size(); }

  const HotOp& hot(size_t op) const { return hot_[op]; }
  // Recipe (index into recipes()) of a kRecompute action's argument.
  int recipeOfAction(int32_t arg) const { return action_recipe_[static_cast<size_t>(arg)]; }
  std::span<const ValueId> rescuesBefore(size_t op) const { return rescue_[op]; }
  std::span<const ValueId> rootsOf(ValueId value) const {
    const int r = recipes_.recipeOf(value);
    return r < 0 ? std::span<const ValueId>() : roots_[static_cast<size_t>(r)];
  }
  // Whether evicting the value before op `op`, without a copy in the store, would lose it for the
  // program: nothing plans to recompute it, and by then nothing could.
  bool wouldBeLost(ValueId value, size_t op) const {
    const int r = recipes_.recipeOf(value);
    if (r < 0) return true;
    const OpId until = recipes_.recipes()[static_cast<size_t>(r)].recoverable_until;
    const OpId now(static_cast<int64_t>(op));
    return last_return_[static_cast<size_t>(value.index)] <= now && now > until;
  }
  // Whether the records of ops hold the value: it came from outside and outlives the step anyway.
  bool isHeldByRecords(ValueId value) const {
    const Value& v = graph().value(value);
    return !v.producer.valid() && v.death == graph().endOfStep();
  }
  // Whether it has no action: the step runs as it would without a plan.
  bool movesNothing() const { return moves_nothing_; }
  // Whether the plan moves anything to the store.
  bool pages() const { return stored_bytes_ >= 0; }
  bool pagesValue(ValueId value) const { return paged_[static_cast<size_t>(value.index)]; }
  // In the store at once, at most; -1: the plan does not page.
  int64_t storedBytes() const { return stored_bytes_; }
  // Values from before the step that the plan moves before any op has shown them, ascending.
  const std::vector<ValueId>& movedEarly() const { return moved_early_; }
  bool isAwayBetweenSteps(ValueId value) const {
    const auto& away = schedule_->away_between_steps;
    return std::binary_search(away.begin(), away.end(), value);
  }
  // Bytes resident while each op runs, by the simulator (POET_VERIFY).
  const std::vector<int64_t>& residentBytes() const { return resident_bytes_; }
  // By which the plan's own peak exceeds its budget, as only that of joined plans may.
  int64_t excessBytes() const {
    return schedule_->ram_budget_bytes ? schedule_->peak_bytes - *schedule_->ram_budget_bytes : 0;
  }
  // Random ops that a planned recompute repeats: the simulator counts their generator states.
  bool keepsGenerator(size_t op) const { return keeps_generator_[op]; }

  // That it takes of memory itself; recording and schedule are others', too.
  int64_t ownBytes() const;

  // Ops whose arguments a replay may need; more may be asked for by plans that share this plan's
  // first ops.
  void recordAlso(size_t op) { hot_[op].record = true; }

  // These stay in memory, whatever the plan says: native code has read them.
  void pin(ValueId value) { pinned_.push_back(value); }
  const std::vector<ValueId>& pinned() const { return pinned_; }

 private:
  void packOps();
  void matchRecipes();
  void markRecorded();
  void findRecoverability();
  std::vector<std::vector<ValueId>> findRoots() const;
  std::vector<bool> findReturns();
  void findPaged();

  std::shared_ptr<const Recording> recording_;
  std::shared_ptr<const Schedule> schedule_;
  DeviceProfile profile_;
  RecipeTable recipes_;
  std::vector<HotOp> hot_;
  std::vector<int> action_recipe_;
  IdLists<ValueId> rescue_;  // by op
  IdLists<ValueId> roots_;   // by recipe
  std::vector<int64_t> resident_bytes_;
  std::vector<bool> keeps_generator_;
  // By value: before this op the schedule recomputes it for the last time.
  std::vector<OpId> last_return_;
  std::vector<bool> paged_;
  std::vector<ValueId> moved_early_;
  int64_t stored_bytes_ = -1;
  bool moves_nothing_ = false;
  std::vector<ValueId> pinned_;
};

}  // namespace poet
