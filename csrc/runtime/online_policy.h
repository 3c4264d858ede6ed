// OnlinePolicy: keeps a step that follows no plan inside the budget, while it is recorded.
//
// Source: Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021 (arXiv 2006.09616); its
// score h_DTR is in methods/dtr_score.h. Chosen beyond it: paging where the step has a store, and
// rules for in-place writes, which the paper's prototype copies on write. What the paper's other
// scores would let go, and what Coop would (Note [Windows]), it lets go where it stands for these
// methods (OnlineOptions::policy): everything else is the same.
// Bound: none. Weakness: it knows nothing of what is to come, and at tight budgets it thrashes; so
// the replays of one step are limited (kMostReplaysPerOp). Beyond that values leave to the store
// only, and without one the step goes over its budget.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device/profile.h"
#include "graph/error.h"
#include "methods/dtr_score.h"
#include "methods/live_policy.h"
#include "runtime/away_between.h"
#include "runtime/op_records.h"
#include "runtime/pager.h"
#include "runtime/residency.h"
#include "runtime/step_undo.h"
#include "trace/allocator_tap.h"
#include "trace/recorder.h"

namespace poet {

class Executor;

// What an unplanned step does where nothing more can leave memory.
enum class OverBudget : uint8_t {
  kGoOn,             // above the budget
  kRaiseImpossible,  // BudgetError if no plan could keep this op inside the budget
  kRaise             // BudgetError, while the step can still be undone
};

struct OnlineOptions {
  int64_t budget_bytes = 0;  // 0: no policy
  bool recompute = true;
  bool paging = false;              // to the session's store
  bool away_between_steps = false;  // what does not fit when a step ends may stay there
  DeviceProfile profile;            // how fast that is
  methods::LivePolicy policy = {};  // of which method
};

// What the policy asks the session for, with the session's lock held.
struct OnlineHelp {
  // Whether there is a store, which is opened if need be.
  std::function<bool()> open_store;
  // Storages from before the step that the step may go on to show, the one touched last last.
  std::function<std::vector<WeakStorage>()> from_before;
  // Moves out what no op of the step has shown yet, for whoever touches it first. False where it
  // may not leave, or the store failed.
  std::function<bool(const StorageHold&)> put_away;
};

struct OnlineCounters {
  int64_t steps = 0;  // that had to make room
  int64_t evictions = 0;
  int64_t recomputes = 0;
  int64_t replayed_ops = 0;
  int64_t page_outs = 0;
  int64_t page_ins = 0;
  int64_t steps_over_budget = 0;
  int64_t most_over_bytes = 0;  // by which a step went over
  double replay_seconds = 0;
  int64_t rooms = 0;       // evictions that made the room they were to make, one value or many
  double free_shares = 0;  // of the budget behind each of those, summed

  // The measure of fragmentation of Coop's authors: the mean share that is free then.
  double freeShare() const { return rooms > 0 ? free_shares / static_cast<double>(rooms) : 0; }
};

// Note [The online policy]
// Room is made inside the allocator, when a kernel asks for memory: its size is known then, and
// what the kernel works on is locked. What was evicted comes back before an op touches it.
//
// A value's recipe is the op that made it and the in-place ops on it so far; it *needs* what those
// read, in the version that they read. At every moment, each absent value that the program can
// reach can come back: from a copy in the store, or by its recipe from values that are there, or
// absent themselves and able to come back. Three rules keep it so:
// - A value is evicted only if it could come back without itself.
// - Before an op writes into x, the absent values come back whose recipes need this version of x
//   (directly, or by way of other absent values). While they do, what was made on the way to them
//   leaves again under the first rule, x being what it was: as soon as they are all there, nothing
//   absent wants it.
// - What absent values need is *wanted*. Memory of a wanted value outlives its storage: a BlockHold
//   keeps it, and no reference count tells of it. So the op stream is that of a step without
//   pressure, and so is the recording.
//
// What lies in memory from before the step (an optimizer's state) and has not been shown by an op
// yet is no value of the step, and no recipe needs it. It leaves with those of the values whose
// score is as good, untouched for as long as the step has run, that which is touched last first;
// and comes back as what is away between steps does: see OnlineHelp::put_away.
//
// Note [Banishing]
// `dtr_banish` lets a dead value go for good as soon as nothing absent needs it, and no recipe may
// read it again. So what was made from it and is there leaves to the store only, and comes back by
// its copy; what is absent needed it, or does without: the invariant above holds.
//
// Not thread-safe: the session serializes.
class POET_API OnlinePolicy final : public Companion, public RoomMaker {
 public:
  // Of one step: replays for each op so far; beyond that it thrashes, and values leave to the store
  // only.
  static constexpr int64_t kMostReplaysPerOp = 30;
  // Values below that are left alone.
  static constexpr int64_t kLeastBytes = 512;
  // Replays within replays, each for an input of the one around it; what is deeper comes back in
  // stages: see Note [Deep replays].
  static constexpr int kDeepest = 200;

  OnlinePolicy(Pager& pager, HandedOut& handed_out) : pager_(pager), handed_out_(handed_out) {}
  OnlinePolicy(const OnlinePolicy&) = delete;
  OnlinePolicy& operator=(const OnlinePolicy&) = delete;

  // For the steps to come.
  void setOptions(OnlineOptions options, OnlineHelp help);
  bool isOn() const { return options_.budget_bytes > 0; }
  const OnlineOptions& options() const { return options_; }
  void setVerify(bool on) { verify_ = on; }
  // What had been put away from before the step is back.
  void notePageIn() { ++counters_.page_ins; }
  // Whether the process takes part in collectives (torch.distributed is initialized).
  void setCollectives(bool on) { collectives_ = on; }

  // A step begins (or departs), of which `recorder` hears; `resident_bytes` are there, the blocks
  // of those that the tap shall follow are enrolled. `in_kernels` is asked for room then, and asks
  // makeRoom() with the lock held.
  void begin(const Recorder& recorder, int64_t resident_bytes, OverBudget over_budget,
             RoomMaker* in_kernels);
  // Without a store these never leave; for BudgetError alone. Each storage once.
  void noteFixed(std::vector<KnownStorage> known) { fixed_ = std::move(known); }
  // The first `done` ops of the recorder were the executor's.
  void takeOver(Executor& executor, size_t done);
  // Brings back everything that is away and that the program can still reach; with `to_budget` as
  // much of it as the budget holds, and what stays away has a copy. Throws what a replay or the
  // store throws, after having tried them all.
  void restoreAll(bool to_budget);
  // Hands over what could not be restored and has a copy.
  void handOver(AwayBetween& between);
  // What the step has made and the program still has, in the order in which it was made: an
  // optimizer's new state, say. Without what may not leave.
  std::vector<WeakStorage> leftBehind() const;
  // Lets go of everything; what is away must have been restored, or handed over.
  void end();
  bool isActive() const { return recorder_ != nullptr; }
  // The storage of a value that is away; null where there is none.
  StorageHold awayStorage(ValueId v) const {
    const bool known = static_cast<size_t>(v.index) < entries_.size();
    return known && at(v).bound && !at(v).resident ? at(v).ref.lock() : StorageHold();
  }

  // The memory is about to be read or written behind PyTorch's back.
  void touchStorage(c10::StorageImpl* storage);
  void touch(const c10::IValue* args, size_t count);

  // Bytes that are resident now, as the budget counts them.
  int64_t residentBytes() const;
  bool hasRoomFor(int64_t bytes) const { return residentBytes() + bytes <= options_.budget_bytes; }
  // Those of them that the tap does not count. Stays as it is while the tap is in.
  int64_t baseBytes() const { return base_bytes_; }
  // Where it is known better than by what the step has shown.
  void correctBase(int64_t bytes) { base_bytes_ = bytes; }
  // Of them, saved states of generators, which are no blocks of the allocator.
  int64_t savedStateBytes() const { return generator_bytes_; }
  // Of the last step: what it went over its budget by, and at which op; 0: it did not.
  // At the step's end: counts what was taken without being asked for.
  void noteMost();
  int64_t overBytes() const { return over_bytes_; }
  const std::string& overText() const { return over_text_; }
  // The text of the BudgetError that this step has thrown; empty: none. undo() then puts buffers
  // and generators back.
  const std::string& budgetError() const { return budget_error_; }
  void undo() { undo_.undo(); }

  const OnlineCounters& counters() const { return counters_; }
  // That it takes of memory itself; the pager is another's, too.
  int64_t ownBytes() const;

  // Companion
  void died(ValueId value) override;
  void beforeKernel(OpId op, const c10::IValue* args, size_t count,
                    c10::DispatchKeySet below) override;
  void afterKernel(OpId op, const c10::IValue* results, size_t count) override;
  void afterRaise(OpId op) override;
  RoomMaker* roomMaker() override { return in_kernels_; }
  double takeSeconds() override { return std::exchange(seconds_, 0.0); }

  // RoomMaker; with the session's lock held.
  void makeRoom(int64_t bytes) override;

 private:
  struct Need {
    ValueId value;
    int32_t version;
  };
  struct LiveRecipe {
    std::vector<OpId> ops;
    std::vector<ValueId> outputs;
    std::vector<Need> needs;
    double seconds = 0;
    bool ok = true;  // may run again
  };
  struct Entry {
    WeakStorage ref = noStorage();
    StorageHold own;               // data of a dead value that came back for others
    StorageHold foreign;           // wanted memory that is not the allocator's
    AllocatorTap::BlockHold hold;  // wanted memory
    c10::StorageImpl* address = nullptr;
    int64_t bytes = 0;
    int32_t recipe = -1;
    int32_t version = 0;
    int32_t wanted = 0;     // absent values whose recipes need it
    int32_t locks = 0;      // may not leave
    int32_t turns = 0;      // inputs that come back before or after it: leaves last
    int32_t waits = 0;      // for other inputs: may leave to the store
    int32_t passing = 0;    // recipes under way that it leaves again for, before they have ended
    uint32_t mark = 0;      // the round that looked at it last
    bool found = false;     // by that round: it can come back
    bool bound = false;     // has been shown
    bool alive = false;     // its storage is there
    bool resident = false;  // its data is
    bool active = false;    // absent or soon again, and counted in `wanted` of what it needs
    bool pinned = false;
    bool being_written = false;
    bool returning = false;        // before a write
    bool banished = false;         // gone for good: see Note [Banishing]
    int64_t bytes_to_return = 0;   // in the round of `mark`
    std::vector<int32_t> readers;  // recipes that need it, in some version
    uint64_t content_hash = 0;     // POET_VERIFY
  };
  // What the scores ask.
  struct Recipes {
    const OnlinePolicy& policy;
    double secondsOf(int v) const {
      const int32_t recipe = policy.entries_[static_cast<size_t>(v)].recipe;
      return recipe < 0 ? 0 : policy.recipes_[static_cast<size_t>(recipe)].seconds;
    }
    template <class Visit>
    void forInputs(int v, const Visit& visit) const {
      const int32_t recipe = policy.entries_[static_cast<size_t>(v)].recipe;
      if (recipe < 0) return;
      for (const Need& need : policy.recipes_[static_cast<size_t>(recipe)].needs)
        visit(need.value.index);
    }
    template <class Visit>
    void forDependents(int v, const Visit& visit) const {
      for (const int32_t recipe : policy.entries_[static_cast<size_t>(v)].readers) {
        for (const ValueId made : policy.recipes_[static_cast<size_t>(recipe)].outputs)
          visit(made.index);
      }
    }
  };
  // Of what was made.
  struct Density {
    double seconds = 0;
    double bytes = 0;
  };
  using Made = std::vector<std::pair<ValueId, StorageHold>>;

  Entry& at(ValueId v) { return entries_[static_cast<size_t>(v.index)]; }
  const Entry& at(ValueId v) const { return entries_[static_cast<size_t>(v.index)]; }
  LiveRecipe* recipeOf(ValueId v);

  // online_policy.cpp: what has happened so far
  void grow();
  void bind(ValueId v, const at::Tensor& t);
  void noteDeaths();
  void noteRecipes(OpId op);
  void noteMade(OpId op, const std::vector<ValueId>& made);
  void noteWrites(OpId op, bool makes_nothing);
  void addNeeds(int32_t recipe, OpId op);
  std::vector<ValueId> readBy(OpId op, const LiveRecipe& recipe) const;
  bool mayRunAgain(OpId op) const;
  void dropUselessState(OpId op);
  void lock(ValueId v);
  void unlockAll();
  void update(ValueId v);
  void guardUndo(OpId op, const c10::IValue* args, size_t count);
  void syncWith(Executor& executor, const std::vector<bool>& dead);

  // online_policy_memory.cpp: leaving; online_policy_return.cpp: coming back
  bool hasCopy(ValueId v) const { return pager_.hasCopy(v); }
  bool isCurrent(const Need& need) const;
  bool mayBeDropped(ValueId v);
  bool onlyForReturning(ValueId v);
  bool recoverable(ValueId v);
  bool mayBeMade(ValueId v) const;
  struct Returning {
    ValueId value;
    int64_t bytes;       // that it adds
    int64_t most_bytes;  // beside what is there, while it comes back
  };
  void comeBackInTurn(const std::vector<ValueId>& values);
  int64_t bytesToReturn(ValueId v, uint32_t round, int depth);
  std::vector<Returning> inOrderOfReturn(const std::vector<ValueId>& values, uint32_t round,
                                         int depth = 0);
  std::vector<std::vector<ValueId>> stagesTo(ValueId v) const;
  void comeBackInStages(ValueId v);
  bool evictOne();
  bool evictWindow(int64_t bytes, int64_t free_bytes);
  ArenaSide sideOf(const c10::OperatorHandle& op) const;
  void noteDensity(OpId op, const std::vector<ValueId>& made);
  bool evictInput(bool pages, bool replays);
  bool thrashes() const;
  bool putAwayOne(double most_score);
  bool mayLeave(ValueId v) const;
  bool isReleasable(ValueId v) const;
  bool isForNativeCode(ValueId v) const;
  bool mayRun(const LiveRecipe* recipe) const;  // null: may not
  double pageSeconds(int64_t bytes, bool has_copy) const;
  bool evict(ValueId v, bool to_store);
  bool copyToStore(ValueId v);
  void materialize(ValueId v);
  void bringTogether(const std::vector<ValueId>& values);
  bool load(ValueId v);
  void replay(int32_t recipe);
  void letGoOf(ValueId v, int32_t recipe);
  void replayOp(OpId op, Made& made);
  uint64_t contentHash(ValueId v, const c10::StorageImpl& storage) const;
  StorageHold storageOf(ValueId v) const;
  at::Tensor tensorFor(const Slot& slot, bool reads_no_data, const Made& made) const;
  void install(ValueId v, StorageHold fresh);
  void leave(ValueId v);
  bool isBanished(const Entry& entry) const {
    return options_.policy.letting_go == methods::LettingGo::kBanish && entry.bound &&
           !entry.alive && entry.wanted == 0;
  }
  void beforeWrite(ValueId x);
  void takeAbsent(std::vector<ValueId> values, std::vector<ValueId>& todo);
  void addDependents(ValueId x, std::vector<ValueId>& values) const;
  void exceed(int64_t bytes);
  int64_t certainNeed(int64_t bytes) const;
  bool paging();

  Pager& pager_;
  HandedOut& handed_out_;
  OnlineOptions options_;
  OnlineHelp help_;
  const Recorder* recorder_ = nullptr;
  RoomMaker* in_kernels_ = nullptr;

  std::vector<Entry> entries_;
  std::vector<LiveRecipe> recipes_;
  OpRecords records_;
  std::unordered_map<c10::StorageImpl*, ValueId> value_of_;
  std::vector<ValueId> locked_;               // by the running op
  std::optional<StepArena::SideGuard> side_;  // of what it makes
  int64_t boundary_bytes_ = 0;                // between the arena's two sides
  Density density_;                           // of all that ops have made
  std::unordered_map<const c10::FunctionSchema*, Density> density_of_;  // by operator
  const Recipes scored_{*this};
  std::optional<methods::DtrScores<Recipes>> scores_;
  std::vector<KnownStorage> fixed_;
  std::optional<std::vector<WeakStorage>>
      from_before_;  // what is left of them; asked for if need be

  OverBudget over_budget_ = OverBudget::kGoOn;
  OpId bringing_for_ = kNoOp;  // what it touches is coming back
  StepUndo undo_;
  std::string budget_error_, over_text_;
  OpId running_ = kNoOp;
  int64_t base_bytes_ = 0;  // resident beside what the tap counts
  int64_t kernel_start_bytes_ = 0;
  int64_t generator_bytes_ = 0;  // of saved states
  int64_t over_bytes_ = 0;
  int64_t replays_ = 0;
  int replaying_ = 0;
  int depth_ = 0;  // of replays within replays, in this stage
  uint32_t round_ = 0;
  int before_writes_ = 0;         // of beforeWrite(), while it brings values back
  bool still_unwritten_ = false;  // what is being_written is what it was, for isCurrent()
  double clock_ = 0;
  double seconds_ = 0;
  bool made_room_ = false;
  bool store_failed_ = false;
  bool verify_ = false;
  bool collectives_ = false;
  OnlineCounters counters_;
};

}  // namespace poet
