// Executor: makes one running step follow a CompiledPlan.
#pragma once

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "methods/swap_feedback.h"
#include "runtime/away_between.h"
#include "runtime/compiled_plan.h"
#include "runtime/op_records.h"
#include "runtime/pager.h"
#include "runtime/residency.h"
#include "runtime/root_holds.h"
#include "runtime/verify.h"

namespace poet {

struct ExecutorCounters {
  int64_t planned_recomputes = 0;    // recipes replayed because the plan says so
  int64_t unplanned_recomputes = 0;  // ... because something was needed that the plan had away
  int64_t replayed_ops = 0;
  int64_t evictions = 0;
  int64_t skipped_frees = 0;  // something else holds the memory, or it could not come back
  int64_t switches = 0;       // of plans within a step
  double replay_seconds = 0;
  std::string
      first_unplanned;  // what needed the first unplanned recompute or page-in; empty: nothing
};

// A value from before the step and the storage that it is believed to have.
struct Presumed {
  ValueId value;
  StorageHold storage;
};

// By how much a step has gone above its plan's budget because memory stayed that the plan releases.
struct StayExcess {
  int64_t bytes = 0;
  int64_t stayed_bytes = 0;
  std::string where;       // the op
  std::string first;       // one of the values that stayed
  bool unlocated = false;  // all of them: no op has shown them, and they are elsewhere
};

// One step at a time. The caller calls matches(), then before(), runs the kernel, then after(); see
// Session. Not thread-safe: the session serializes.
class Executor {
 public:
  void begin(std::shared_ptr<const CompiledPlan> plan);
  // Values from before the step, where they are believed to be; before the first op. What is in
  // `between` and is away between the plan's steps stays away; the rest of `values` and what is in
  // `back` comes back but for what the store has lost, which stays in there; then the plan's other
  // such values are moved out. What turns out to be another value goes to `between`: whoever runs
  // an op asks there for what it shows.
  void presume(const std::vector<Presumed>& values, const std::vector<StorageHold>& back,
               AwayBetween& between);
  // Lets go of everything. What is away must have been restored, or handed over.
  void end();
  // Hands what is still away to `between`.
  void handOver(AwayBetween& between);

  // Whether the op is the plan's next one: identity, geometry and storages. If not, `why` says in
  // what it differs, and nothing has changed.
  bool matches(const c10::OperatorHandle& op, const c10::IValue* args, std::string& why);
  // Whether the op, at this point, would be `plan`'s next one.
  bool wouldMatch(const CompiledPlan& plan, const c10::OperatorHandle& op, const c10::IValue* args);
  // The plan's actions before the op; afterwards its inputs are resident.
  void before(const c10::IValue* args, c10::DispatchKeySet below);
  // Asks for what the following ops will look at; see Note [Ahead of the kernel].
  void prefetch() const;
  // Bytes that the op may take by its plan, in all, and what is left of the budget beside it.
  int64_t roomForOp() const;
  // Registers what the op made. False if it made something else than the recording says.
  bool bindResults(const c10::IValue* results, std::string& why);
  // What bindResults() registered of the op before it found something else is let go.
  void unbindResults();
  // The op is done: after bindResults().
  void advance();
  // In place of after(), when the op threw. False if the recording knows nothing of that.
  bool afterRaise();
  // The actions at the end of the step; only when done() == numOps().
  void finish();

  // Whether nothing would have to come back to go on with `plan`.
  bool isReadyFor(const CompiledPlan& plan) const;
  // Whether what `plan` wants to be here by now, and what the program can still reach, is here or
  // can come back by `plan`. Another plan may have let go of what this one keeps for later, or of
  // what this one would not recompute.
  bool canSwitchTo(const CompiledPlan& plan) const;
  // Goes on with a plan whose first done() ops are the same, and for which canSwitchTo(). Values
  // are made to be where that plan wants them. `values`: those from before the step that no op has
  // shown yet.
  void switchTo(std::shared_ptr<const CompiledPlan> plan, const std::vector<Presumed>& values);

  // Brings back everything that is away and that the program can still reach, but for what the plan
  // has away between steps, if asked to keep that. Throws what a replay or the store throws, after
  // having tried them all.
  void restoreAll(bool keep_away_between_steps = false);
  // By how much that has taken the step above its plan's budget, beside which `more` bytes lie that
  // the plan does not know of; 0 where nothing had to come back.
  int64_t restoredExcess(int64_t more) const;
  // Brings back what the tensors of an op that the plan does not know (or a raw reader) touch, and
  // pins it.
  void touch(const c10::IValue* args, size_t count);
  void touchStorage(c10::StorageImpl* storage);
  // Something may write the storage that no operator tells of (the NumPy array that is asked for
  // now): what has been made from it comes back, for the rest of the step, while it still can. See
  // Note [Written elsewhere].
  void expectWrite(c10::StorageImpl* storage);
  // The values for which that was said.
  const std::vector<ValueId>& writtenElsewhere() const { return written_elsewhere_; }
  // Whether the plan has away, or goes on to release, the storage's value or what is made from it.
  bool countsOn(c10::StorageImpl* storage) const;
  // An op runs on another thread. What it makes the plan knows nothing of.
  void noteForeignOp() { verify_.suspend(); }
  // Its memory is handed out for good: never evicted again.
  void noteHandedOut(const StorageHold& storage) { residency_.handedOut().add(storage); }
  bool isHandedOut(c10::StorageImpl* storage) { return residency_.handedOut().has(storage); }
  HandedOut& handedOut() { return residency_.handedOut(); }

  // For whoever takes the step over where it departs (OnlinePolicy::takeOver): no transfer goes on
  // afterwards.
  void settleTransfers();
  // By value: nothing but this executor holds the storage.
  std::vector<bool> heldOnly() const;
  const Residency& residency() const { return residency_; }
  // The storage of a value that is away; null where there is none.
  StorageHold awayStorage(ValueId v) const {
    const bool known = static_cast<size_t>(v.index) < residency_.size();
    return known && residency_[v].away ? residency_[v].ref.lock() : StorageHold();
  }
  // Of the first `done` ops.
  OpRecords takeRecords(size_t done);
  OpRecords exchangeRecords(OpRecords records);
  void bringBackNow(ValueId v) { bringBackUnplanned(v); }
  // Bytes that are resident beside the values that ops have shown so far.
  int64_t unshownBytes() const;
  // Hands what no op has shown yet and is away to what presume() was given, and forgets the rest.
  void handOverUnshown();
  // Lets go of everything but the copies in the store.
  void leave();

  size_t done() const { return k_; }
  const CompiledPlan& plan() const { return *plan_; }
  const std::shared_ptr<const CompiledPlan>& sharedPlan() const { return plan_; }
  std::vector<WeakStorage> boundStorages() const { return residency_.weakReferences(); }
  // By value: how much further on in its storage this step has it than the recorded one.
  std::vector<int64_t> shifts() const;
  // Notes where this step had the plan's movedEarly() values.
  void noteStorages(std::vector<OutsideValue>& outside) const;
  // That lie beside the step, and that the plan knows nothing of.
  void noteBeside(int64_t bytes) { beside_bytes_ = bytes; }
  // Storages of values that the step has made and that live although its plan has them dead by now;
  // `failed`: of all that live.
  std::vector<WeakStorage> outlived(bool failed) const;
  // Of this step, and of the last one between two: what it did with the plan's page-ins.
  const std::vector<AwaitedSwap>& awaitedSwaps() const { return awaited_swaps_; }
  // Of this step so far.
  const StayExcess& stayExcess() const { return stay_excess_; }
  std::string describe(size_t op) const;
  Pager& pager() { return pager_; }
  const ExecutorCounters& counters() const { return counters_; }
  // That it takes of memory itself between two steps.
  int64_t ownBytes() const;
  void setVerify(bool on) { verify_.setEnabled(on); }

 private:
  using HotOp = CompiledPlan::HotOp;
  struct NewBinding {
    ValueId value;
    const at::Tensor* tensor;
  };

  void confirm(const NewBinding& binding);
  void disown(ValueId v);
  void handOver(ValueId v);
  int64_t firstOffset(ValueId v, const at::Tensor& t) const;
  int64_t shiftOf(ValueId v) const;
  bool isSharedAsRecorded(const CompiledPlan& plan, ValueId v,
                          const c10::StorageImpl& storage) const;
  bool matchesSlots(const CompiledPlan& plan, const c10::IValue* args);
  void perform(const Action& action);
  void free(ValueId v);
  bool letGo(ValueId v);
  bool isUnlocated(ValueId v) const;
  void noteStayed();
  std::string describe(ValueId v) const;
  void retain(ValueId v);
  void pageOut(ValueId v);
  bool pageOutLate(ValueId v);
  void pageIn(ValueId v);
  bool copyToStore(ValueId v, const StorageHold& storage);
  bool settleCopy(ValueId v);
  void settleDead();
  void keepInMemory(ValueId v, StorageHold storage);
  bool load(ValueId v);
  bool canRecompute(const CompiledPlan& plan, ValueId v, std::vector<bool>& asked) const;
  bool canRecompute(ValueId v) const;
  bool mustComeBack(ValueId input) const;
  bool isWrittenElsewhere(ValueId v) const;
  bool isStale(int recipe) const;
  void moveOutAtStart();
  void holdForCopies();
  void performAfter();
  void dropStaleCopies();
  void noteUnplanned(ValueId v, const char* how);
  void recompute(int recipe);
  void bringBack(ValueId v);
  bool comesFromStore(ValueId v);
  const Recipe& recipeNow(ValueId v) const;
  void bringBackUnplanned(ValueId v);
  void dropTemporaries();
  void replayOp(OpId op, std::vector<std::pair<ValueId, StorageHold>>& made);
  at::Tensor tensorFor(const Slot& slot, bool reads_no_data,
                       const std::vector<std::pair<ValueId, StorageHold>>& made) const;
  void replay(const Recipe& recipe);
  void install(ValueId v, c10::StorageImpl& fresh);
  void renumberPresumed(const std::vector<Presumed>& values);
  // POET_VERIFY: of values that the recorded step had let go of by now, or that could not leave.
  int64_t bytesMissing() const;
  int64_t bytesHeldLonger() const;
  int64_t bytesThere() const;
  uint64_t contentHash(ValueId v, const c10::StorageImpl& storage) const;
  void buryDead();
  bool outlivesThePlan(ValueId v) const;

  std::shared_ptr<const CompiledPlan> plan_;
  size_t k_ = 0;
  Residency residency_;
  Pager pager_;
  AwayBetween* between_ = nullptr;
  OpRecords records_;
  RootHolds root_holds_{residency_, pager_};
  std::vector<NewBinding> new_bindings_;
  std::vector<ValueId> held_for_copies_;  // until the running op's page_outs are done
  std::vector<ValueId> temporaries_;  // dead values that came back for somebody else's sake only
  std::vector<ValueId> stayed_;       // in memory, where the plan has them away
  std::vector<ValueId> unlocated_;    // likewise, and nobody knows where: see isUnlocated()
  StayExcess stay_excess_;
  int64_t beside_bytes_ = 0;
  int64_t most_restored_ = 0;               // was there while restoreAll() brought something back
  std::vector<ValueId> written_elsewhere_;  // see Note [Written elsewhere]
  std::vector<bool> reads_written_;         // by recipe; empty where nothing is
  std::vector<AwaitedSwap> awaited_swaps_;
  ExecutorCounters counters_;
  Verifier verify_;
};

}  // namespace poet
