// Session: the live side of one wrapped training step, call after call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "device/profile.h"
#include "graph/export.h"
#include "runtime/away_between.h"
#include "runtime/budget.h"
#include "runtime/executor.h"
#include "runtime/heap_watch.h"
#include "runtime/online_policy.h"
#include "runtime/variants.h"
#include "trace/accelerator.h"
#include "trace/dispatch_key.h"
#include "trace/listener.h"
#include "trace/op_clock.h"
#include "trace/recorder.h"
#include "trace/storages_in_use.h"

namespace poet {

struct SessionCounters {
  int64_t steps = 0;
  int64_t traced_steps = 0;    // recorded from their first op to their last
  int64_t followed_steps = 0;  // inside a plan from their first op to their last
  int64_t departures = 0;      // steps that left their plan and went on without one
  int64_t failed_steps = 0;    // ended by an exception
  // Of the followed: they began under another plan, and no joined one keeps the budget.
  int64_t steps_over_budget = 0;
  int64_t most_over_bytes = 0;
  // The most that the last followed step had in the arena at once; 0 where there is none.
  int64_t arena_peak_bytes = 0;
};

// A plan beside whose step more is resident than was known; see Note [Outgrown plans].
struct GrownPlan {
  int variant = -1;
  int64_t bytes = 0;          // by which its peak is greater now
  bool keeps_budget = false;  // false: worth another plan
  // By which it will have grown again when the next one is asked for, if it goes on as since this
  // plan came into force.
  int64_t bytes_to_come = 0;
};

struct StepReport {
  enum class Mode : uint8_t { kTraced, kFollowed, kDeparted, kFailed };
  Mode mode = Mode::kTraced;
  int variant = -1;
  bool newly_stable = false;  // the variant was seen twice by now: worth a plan
  std::vector<GrownPlan> grown;
  int64_t num_ops = 0;
  int64_t over_bytes = 0;    // by which the step had to exceed the budget
  std::string over_text;     // and for what
  std::string budget_error;  // a BudgetError ended the step: its text
};

// beginStep() and endStep() are called on the thread that runs the step, in pairs; plans may be set
// from any thread.
class POET_API Session final : public Listener,
                               public RoomMaker,
                               public RoomLimit,
                               public std::enable_shared_from_this<Session> {
 public:
  // verify: see runtime/verify.h.
  static std::shared_ptr<Session> create(bool verify);
  ~Session() override;

  // Whose memory the budget counts: see Note [Steps on an accelerator]. Before the first step; the
  // CPU without a call.
  void setDevice(c10::Device device);

  // The batch that the next step is given: by its shapes the right plan is known beforehand. May be
  // left out.
  void expectBatch(const std::vector<at::Tensor>& batch);
  // Whether the next step is going to be traced, so that the caller gathers what exists before it.
  bool nextStepIsTraced();
  // Whether it is needed once more before a step that follows a plan. See Note [Outgrown plans].
  bool wantsKnown();
  // Plans to be made again after calls that failed: no report of theirs had them.
  std::vector<GrownPlan> takeGrown();
  // `all_are_known`: `known` is all that the program has.
  void beginStep(std::vector<KnownStorage> known, bool all_are_known = false);
  // A step that is to have neither a plan nor a recording, only the budget. `inputs` are its
  // batch's. False, and nothing has begun, where it is not known what is resident.
  bool beginUnrecorded(const std::vector<KnownStorage>& inputs);
  // Whether it would begin with a count of what is resident, or there is no budget to keep. Not
  // after a step that began in a plan.
  bool mayGoUnrecorded();
  // `failed`: the step ended in an exception. Everything that is away comes back first. Throws what
  // a replay throws. `error`: of the exception; a BudgetError that the step caught before it is
  // neither reported nor undone. Empty where it is not known.
  StepReport endStep(bool failed, const std::string& error = {});

  // The error that is about to end the step, if it is that of a raw read, names a value: that stays
  // in memory in the calls to come. Whether it does.
  bool keepNamed(const std::string& error);

  void enterOptimizer();
  void leaveOptimizer();
  // A tensor's memory is about to be read behind PyTorch's back: brings it back and keeps it for
  // the rest of the step; for good, if the memory is handed out for good (a NumPy array shares it).
  // `may_write`: whoever gets it may write it while the step runs. `may_keep`: and may keep a
  // pointer to it for later. A parameter is neither written nor kept.
  void touch(const at::Tensor& t, bool for_good = false, bool may_write = false,
             bool may_keep = false);
  // Whether touch() has anything to do outside steps: a plan pages, or something is away.
  bool wantsTouches() const { return pages_ || has_away_; }

  // Keeps the steps to come inside this budget where they follow no plan; 0 bytes: no longer.
  void setBudget(OnlineOptions options, Strictness strictness);
  // Whether the process takes part in collectives: then gradients stay where they are.
  void setCollectives(bool on);
  // Whether values may be away in a step that follows no plan.
  bool isPoliced() const { return is_policed_; }

  // Where paged values go; for PageStore::open, at the first plan that pages. Without a call: the
  // system's directory. The other form takes a store that is open.
  void setStore(std::string directory);
  void setStore(std::shared_ptr<PageStore> store);
  // Moves out now what the next step's plan has away between steps, rather than at that step's
  // start. On the thread that runs the steps, while none runs; no effect otherwise.
  void moveOut();
  // Moves out, for the time until something touches it or the next step begins, whatever the step's
  // variants know from before it and that may be released: parameters, buffers, optimizer state,
  // old gradients, and the gradients of those of `leaves` that the step uses. Returns the bytes
  // that this released; 0 where there is no store. On the thread that runs the steps. Throws Error
  // while a step runs, and StoreError where the store has no room: nothing has changed then.
  int64_t pause(const std::vector<at::Tensor>& leaves);
  // Brings back what is away between the steps. Throws what reading the store throws.
  void bringBack();

  // Null for an unknown one, and for one that the session has let go of.
  std::shared_ptr<const Graph> graphOf(int variant);
  // See VariantSet::letGoOfSeenOnce. Nothing while a step runs.
  void letGoOfSeenOnce(const std::vector<int>& except);
  // Throws ScheduleError if the schedule does not fit the variant's graph; ArgumentError and
  // StoreError if it pages and there is no store, or no room for what it can have stored at most.
  void setPlan(int variant, std::shared_ptr<const Schedule> schedule, const DeviceProfile& profile);
  // In place of the plan in force, which differs in where some of its actions are. As setPlan();
  // without a plan in force nothing happens.
  void movePlan(int variant, std::shared_ptr<const Schedule> schedule,
                const DeviceProfile& profile);
  void setUnplannable(int variant);
  // What each op of the variant took at least in its first steps that followed a plan, in seconds,
  // replays and transfers left out, and what the program took before it; empty before there were
  // enough of these (kTimedSteps).
  struct OpSeconds {
    std::vector<float> ops, host;
  };
  OpSeconds opSeconds(int variant);

  // The page-ins of the last step that followed a plan, and what it waited for each.
  std::vector<AwaitedSwap> awaitedSwaps();

  SessionCounters counters();
  ExecutorCounters executorCounters();
  OnlineCounters onlineCounters();
  PagingCounters pagingCounters();
  // What went wrong in paging since the last call; empty: nothing.
  std::string newTrouble();
  // What poet itself takes of memory for this session, between two steps: recordings, plans, what
  // is known of values, buffers of transfers. Bytes.
  int64_t ownBytes();
  std::string lastDeparture();
  int64_t numVariants();
  std::vector<int> variants();  // those that are kept, ascending

  void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
            torch::jit::Stack* stack) override;
  void onForeignOp(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;
  int64_t bytesToBringBack(const c10::OperatorHandle& op, const torch::jit::Stack& stack) override;
  void expectBytes(int64_t bytes) override { makeRoom(bytes); }
  void makeRoom(int64_t bytes) override;  // while a kernel runs
  void admit(int64_t bytes, int64_t live) override;
  bool usesDeviceThreads() override { return accelerator_.has_value(); }
  bool wantsCustomNodes() override { return mode_ != Mode::kFollow || has_custom_nodes_; }
  void noteCustomNode() override { has_custom_nodes_ = true; }
  void onLend(const at::Tensor& t) override;
  void onLendingEnds(size_t tensors) override;

 private:
  static constexpr int kTimedSteps = 5;
  enum class Mode : uint8_t { kIdle, kTrace, kFollow, kDeparted, kLost };

  explicit Session(bool verify);
  void follow(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
              std::unique_lock<std::mutex>& lock);
  void runPlanned(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                  torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock);
  bool switchVariant(const c10::OperatorHandle& op, const c10::IValue* args);
  static void enrollIfAlive(const WeakStorage& one);
  void depart(std::string why);
  bool mayDiffer(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const;
  void departBefore(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                    torch::jit::Stack* stack, std::unique_lock<std::mutex>& lock, std::string why);
  void loseTrack(std::string why);
  void recordFromHere(const std::vector<WeakStorage>& bound);
  void finishFollowed();
  void settle(StepReport& report);
  void closeStep();
  void startListening();
  void stopListening();
  void checkIdle() const;
  void leaveOutWhatLiesElsewhere(std::vector<KnownStorage>& known) const;
  void noteStream();
  void leaveOutWhatHasNoMemory(std::vector<KnownStorage>& known) const;

  // session_memory.cpp
  int64_t spareBytes(const Variant& variant) const;
  static int64_t bytesThere(const std::vector<KnownStorage>& known);
  void countKnown();
  int64_t missingBytes(const Recording& recording) const;
  int64_t stayedBytes(const Recording& recording) const;
  int64_t knownBase(const Recording& recording, int64_t stayed) const;
  void checkFirstOp();
  void checkEnd(Variant& variant);
  void noteOutlived(std::vector<WeakStorage> storages);
  int64_t outlivedBytes() const;
  bool checkBase();
  void noteExcessSoFar();
  int64_t moreBeside();
  GrownPlan growBase(int variant, int64_t bytes, bool keeps_budget);
  void limitHard();
  void noteMiss(bool failed, const std::string& error, StepReport& report);
  void tellOfSwitchExcess(StepReport& report);
  void tellOfGrowthExcess(StepReport& report);
  void tellOfStayExcess(StepReport& report);
  void tellOfEndExcess(StepReport& report);
  void noteExcess(StepReport& report, int64_t bytes, std::string text);

  // session_online.cpp
  OverBudget overBudget() const;
  void beginPolicy(const std::vector<KnownStorage>& known);
  void departOnline();
  std::vector<WeakStorage> fromBefore() const;
  bool putAway(const StorageHold& storage);
  void noteRunning(const c10::OperatorHandle& op, const torch::jit::Stack& stack);
  void record(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
              std::unique_lock<std::mutex>& lock);
  void bringBackToBudget();
  void endPolicy(bool failed, const std::string& error, StepReport& report);

  // session_paging.cpp
  StorageHold whereItWas(const OutsideValue& outside) const;
  std::vector<StorageHold> comesBackFor(const Variant& variant) const;
  std::vector<Presumed> locate(const Variant& variant, const CompiledPlan& plan) const;
  void beginFollowing(const Variant& variant);
  void noteStorages();
  std::shared_ptr<CompiledPlan> compile(int variant, std::shared_ptr<const Schedule> schedule,
                                        const DeviceProfile& profile);
  void openStore();
  void prepareStore(const CompiledPlan& plan);
  bool hasRoomFor(const CompiledPlan& plan);
  bool hasStoreOrOpens();
  void watchFirst();
  void watchWhatIsAway();
  void claim(const Variant& variant);
  void bringBackFor(const at::Tensor& t, bool is_overwritten = false);
  void bringBackFor(const c10::OperatorHandle& op, const torch::jit::Stack& stack);

  // session_pause.cpp
  std::vector<StorageHold> pausable(const std::vector<at::Tensor>& leaves);

  // On an accelerator ops run on two threads, and one of them may not wait for the other: held from
  // before an op to after it, and before mutex_.
  std::mutex one_op_;
  std::mutex mutex_;
  c10::Device device_ = c10::Device(c10::DeviceType::CPU);
  std::optional<Accelerator> accelerator_;  // the device, where it is one
  std::optional<c10::Stream> stream_;       // of the running step's first op
  std::atomic<Mode> mode_ =
      Mode::kIdle;  // atomic: what a kernel calls back asks it without the lock
  VariantSet variants_;
  int current_ = -1;  // variant that is being followed
  std::unique_ptr<Recorder> recorder_;
  Executor executor_;
  AwayBetween between_{executor_.pager()};
  OnlinePolicy policy_{executor_.pager(), executor_.handedOut()};
  Strictness strictness_ = Strictness::kNever;
  std::atomic<bool> is_policed_ = false;
  bool is_hard_ = false;
  std::optional<AllocatorTap::LimitGuard> limit_;  // of the running step
  std::string miss_, miss_at_end_;                 // of the limit, in the running step; empty: none
  int64_t missed_bytes_ = 0;
  bool is_ending_ = false;  // what is away comes back: nothing is refused
  // While it is in, what is resident between the steps is known: the tap's bytes and these.
  std::optional<AllocatorTap::Guard> counting_;
  int64_t base_bytes_ = 0;
  bool unrecorded_ = false;  // the running step
  // What the policy may move out before an op shows it, see fromBefore(), and what stays there.
  std::vector<WeakStorage> left_behind_;
  std::vector<const c10::StorageImpl*> running_;         // arguments of the op that begins to run
  std::unordered_set<const c10::StorageImpl*> touched_;  // by raw readers, in the running step
  bool may_put_away_ = true;                             // nobody has read such memory unannounced
  std::optional<Watch> watch_;                           // while no step runs and something is away
  std::vector<WeakStorage> inputs_;  // of the running step, in the order in which they were given
  std::string store_directory_;
  int64_t told_failures_ = 0;
  std::atomic<bool> has_away_ = false;
  std::atomic<bool> pages_ = false;  // some plan does, or may
  std::optional<AllocatorTap::Guard> tap_;
  // The most that a step in the latest plan has had in the arena, if one was there; other steps may
  // have had more.
  std::optional<int64_t> most_in_step_;
  std::optional<ListeningGuard> listening_;
  std::optional<ListenerGuard> listener_;
  std::optional<StoragesInUse::Claim> claim_;  // of the running step
  SessionCounters counters_;
  std::string last_departure_;
  std::vector<KnownStorage> unchecked_;  // from the step's start to its first op, see countKnown()
  int64_t bytes_at_begin_ = 0;           // of these
  std::optional<int64_t> known_bytes_;   // at the running step's first op, where they were counted
  struct Counted {
    WeakStorage storage;
    int64_t bytes;
  };
  std::vector<Counted> counted_;  // each of them
  int64_t late_bytes_ = 0;        // beside the running step, found when it had begun under its plan
  int64_t made_elsewhere_then_ = 0;  // StepArena's, at the last recorded step under the policy
  HeapWatch heap_watch_;
  // What steps have made and the program has kept, maybe where nobody can look: in a graph.
  std::vector<WeakStorage> outlived_;
  int64_t outlived_bytes_ = 0;         // at the last count
  std::vector<GrownPlan> grown_;       // for the report of the running step
  std::unordered_set<uint64_t> kept_;  // values that native code has read, by Recorder::keyOf
  int64_t end_excess_ = 0;             // of what came back when the step ended
  std::vector<GrownPlan> to_replan_;   // for the report of the next step that ends well
  std::vector<WeakStorage> lent_;      // see Note [Lending]
  bool has_custom_nodes_ = false;      // some step had one; its thread only
  std::thread::id thread_;             // that the latest step runs on
  int optimizer_depth_ = 0;            // optimizers' steps that the running step is inside
  bool raised_ = false;                // the plan's next op threw, and the plan did not expect it
  bool record_next_ = false;           // the last step did what no recording shows
  bool switched_ = false;              // the running step began under another plan
  Variant* timed_ = nullptr;           // whose ops the running step times
  OpClock::time_point left_at_;        // its last one
  std::optional<StepArena::ScriptGuard> script_;  // of the variant with whose plan it began
  bool verify_;
};

}  // namespace poet
