// Executor: makes one running step follow a CompiledPlan.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/compiled_plan.h"
#include "runtime/op_record.h"
#include "runtime/residency.h"
#include "runtime/verify.h"

namespace poet {

struct ExecutorCounters {
  int64_t planned_recomputes = 0;    // recipes replayed because the plan says so
  int64_t unplanned_recomputes = 0;  // ... because something was needed that the plan had away
  int64_t replayed_ops = 0;
  int64_t evictions = 0;
  int64_t switches = 0;  // of plans within a step
  double replay_seconds = 0;
  std::string first_unplanned;  // what needed the first unplanned recompute; empty: nothing did
};

// One step at a time. The caller calls matches(), then before(), runs the kernel, then after(); see
// Session. Not thread-safe: the session serializes.
class Executor {
 public:
  void begin(std::shared_ptr<const CompiledPlan> plan);
  // Lets go of everything. What is away must have been restored.
  void end();

  // Whether the op is the plan's next one: identity, geometry and storages. If not, `why` says in
  // what it differs, and nothing has changed.
  bool matches(const c10::OperatorHandle& op, const c10::IValue* args, std::string& why);
  // Whether the op, at this point, would be `plan`'s next one.
  bool wouldMatch(const CompiledPlan& plan, const c10::OperatorHandle& op, const c10::IValue* args);
  // The plan's actions before the op; afterwards its inputs are resident.
  void before(const c10::IValue* args, c10::DispatchKeySet below);
  // Registers what the op made. False if it made something else than the recording says.
  bool after(const c10::IValue* results, std::string& why);
  // The actions at the end of the step; only when done() == numOps().
  void finish();

  // Goes on with a plan whose first done() ops are the same. Values are made to be where that plan
  // wants them.
  void switchTo(std::shared_ptr<const CompiledPlan> plan);

  // Brings back everything that is away and that the program can still reach. Throws what a replay
  // throws, after having tried them all.
  void restoreAll();
  // Brings back what the tensors of an op that the plan does not know (or a raw reader) touch, and
  // pins it.
  void touch(const c10::IValue* args, size_t count);
  void touchStorage(c10::StorageImpl* storage);

  size_t done() const { return k_; }
  const CompiledPlan& plan() const { return *plan_; }
  std::vector<WeakStorage> boundStorages() const { return residency_.weakReferences(); }
  const ExecutorCounters& counters() const { return counters_; }
  void setVerify(bool on) { verify_.setEnabled(on); }

 private:
  using HotOp = CompiledPlan::HotOp;
  using HotSlot = CompiledPlan::HotSlot;
  struct NewBinding {
    ValueId value;
    const at::Tensor* tensor;
  };

  bool matchesSlots(const CompiledPlan& plan, const c10::IValue* args);
  void perform(const Action& action);
  void free(ValueId v);
  void retain(ValueId v);
  void recompute(int recipe);
  void bringBack(ValueId v);
  void bringBackUnplanned(ValueId v);
  void dropTemporaries();
  void replayOp(OpId op, std::vector<std::pair<ValueId, StorageHold>>& made);
  at::Tensor tensorFor(const Slot& slot, bool reads_no_data,
                       const std::vector<std::pair<ValueId, StorageHold>>& made) const;
  void replay(const Recipe& recipe);
  void install(ValueId v, c10::StorageImpl& fresh);
  void expectedState(size_t k, std::vector<bool>& resident, std::vector<bool>& retained) const;
  void holdRoots(ValueId v);
  void releaseRoots(ValueId v);
  void buryDead(size_t op);
  std::string describe(size_t op) const;

  std::shared_ptr<const CompiledPlan> plan_;
  size_t k_ = 0;
  Residency residency_;
  std::vector<OpRecord> records_;
  std::vector<std::pair<int, StorageHold>> root_holds_;  // per value: how many away values need it
  std::vector<NewBinding> new_bindings_;
  std::vector<ValueId> temporaries_;  // dead values that came back for somebody else's sake only
  ExecutorCounters counters_;
  Verifier verify_;
};

}  // namespace poet
