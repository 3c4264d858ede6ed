// The op streams that one wrapped step has shown so far, and which of them to expect next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "memory/block_script.h"
#include "runtime/compiled_plan.h"
#include "trace/recording.h"

namespace poet {

// Note [Variants]
// Gradient accumulation, an evaluation pass, the last batch of an epoch change a step's op stream:
// each stream is a variant with a plan of its own. A step starts with the variant that followed the
// longest matching history before, and changes over to another one where the streams part
// (Executor::switchTo). Where the shapes of the batch are known beforehand, only variants that ran
// with such a batch come into question: no history tells when an epoch's last, shorter batch comes.
enum class VariantState : uint8_t {
  kSeenOnce,  // the next step may look different: optimizers create their state in the first one
  kStable,    // seen twice: worth a plan
  kPlanned,
  kUnplannable,  // the planner found none
};

struct Variant {
  std::shared_ptr<const Recording> recording;  // null: see letGoOfSeenOnce
  uint64_t signature = 0;                      // the recording's
  std::shared_ptr<CompiledPlan> plan;
  std::vector<OutsideValue> outside;  // as the variant's last step found them
  VariantState state = VariantState::kSeenOnce;
  int64_t last_used = 0;
  // Of its plan with those that steps of other variants began under: see Note [Joined plans].
  struct Joined {
    std::weak_ptr<const CompiledPlan> from;
    size_t at;
    std::shared_ptr<CompiledPlan> plan;  // null: none can be made
  };
  std::vector<Joined> joined;
  std::optional<uint64_t> batch;  // of its last step, see VariantSet::expectBatch
  // See Note [Outgrown plans].
  bool has_unchecked_base = false;
  int64_t more_bytes = 0;        // beside it than its plan knew of, at the last check
  int64_t followed_then = 0;     // of its steps, at that check
  int64_t growth_per_step = 0;   // of these bytes, before it
  int64_t followed = 0;          // steps that began with its plan since that came into force
  int64_t unchecked_until = 0;   // of them
  int64_t arena_bytes_then = 0;  // the most in the arena when a step began at which it was checked
  // In use at the first op and at the end of the last step in which it was checked; 0: none was.
  int64_t in_use_first_op = 0, in_use_end = 0;
  // Beside it beyond what its plan knew of, by what the end of a step showed: Note [What stays].
  int64_t late_bytes = 0;
  // The most in the arena during its last step that followed its plan from the first op on.
  int64_t arena_peak_bytes = 0;
  // The least of each op over its first steps in a plan, and of what the program takes before it;
  // and how many these are.
  std::vector<float> op_seconds, host_seconds;
  int timed_steps = 0;
  // Where the blocks of steps in its plan lie; made with each plan.
  std::shared_ptr<BlockScript> script;

  // So many bytes more lie beside it. Whether there were more at this check and at the one before.
  bool noteMore(int64_t bytes);
  int64_t growthSinceCheck() const { return growth_per_step * (followed - followed_then); }
};

// Not thread-safe: the session serializes.
class VariantSet {
 public:
  static constexpr size_t kMaxVariants = 64;
  // In one plan: what was seen once before them will hardly come again.
  static constexpr int kCallsThatShowAStep = 8;

  // Adds a traced step, or merges it into the variant of the same signature (least seconds,
  // greatest workspace, newest base). Returns its id; `newly_stable` tells whether it has just
  // become worth a plan.
  int add(std::unique_ptr<Recording> recording, bool& newly_stable);
  void noteStep(int id);  // id, or -1 for a step of no known variant

  // What is known of the batch of the next step: a hash of its shapes. Holds until noteStep().
  void expectBatch(uint64_t shapes) { batch_ = shapes; }
  // The variant to expect next, -1 where nothing can be said.
  int predict() const;
  // A planned variant, other than `not_this`, that starts with the same ops as `recording` does up
  // to `done`, and goes on with an op for which `fits` holds. -1 if there is none.
  template <class Fits>
  int findContinuation(const Recording& recording, size_t done, int not_this, Fits&& fits) const {
    for (const auto& [id, variant] : variants_) {
      if (id == not_this || variant.state != VariantState::kPlanned) continue;
      const Recording& other = *variant.recording;
      if (other.ops.size() <= done || other.prefix_hash[done] != recording.prefix_hash[done])
        continue;
      if (fits(*variant.plan)) return id;
    }
    return -1;
  }

  // The plan for a step that began under `from` and goes on from op `at` as a step of variant `to`
  // would; null where none can be made. Made once.
  std::shared_ptr<CompiledPlan> joinedPlan(int to, const std::shared_ptr<const CompiledPlan>& from,
                                           size_t at);
  void setPlan(int id, std::shared_ptr<CompiledPlan> plan);
  // The plan in force with some of its actions elsewhere: what is known of the memory of its steps
  // stays known.
  void movePlan(int id, std::shared_ptr<CompiledPlan> plan);
  void setUnplannable(int id);
  // Lets go of the recordings of steps that were seen once, as that in which an optimizer makes its
  // state. Should one come again after all, it is recorded as it would be anyway, and has then been
  // seen twice.
  void letGoOfSeenOnce(const std::vector<int>& except);
  // The value of this key (Recorder::keyOf) is not to be evicted any more. Whether the variant is
  // worth another plan for it.
  bool keepValue(int id, ValueId value, uint64_t key);
  // A step was recorded: see Note [Outgrown plans].
  void checkBases();
  Variant* find(int id);
  int64_t ownBytes() const;  // that recordings, plans and their schedules take
  size_t size() const { return variants_.size(); }
  const std::map<int, Variant>& all() const { return variants_; }
  std::vector<int> ids() const {
    std::vector<int> all;
    for (const auto& [id, variant] : variants_) all.push_back(id);
    return all;
  }

 private:
  void shareRecordFlags(CompiledPlan& plan);
  void dropLeastUsed(int keep);
  int likeliestWithoutHistory() const;
  bool fitsBatch(int id) const;

  std::map<int, Variant> variants_;
  std::vector<int> history_;
  std::optional<uint64_t> batch_;
  int next_id_ = 0;
  int64_t clock_ = 0;
};

}  // namespace poet
