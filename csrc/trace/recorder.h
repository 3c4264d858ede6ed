// Recorder: one eager training step, op by op -> Recording.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "trace/accelerator.h"
#include "trace/allocator_tap.h"
#include "trace/living_storages.h"
#include "trace/native_writes.h"
#include "trace/op_clock.h"
#include "trace/op_traits.h"
#include "trace/recording.h"
#include "trace/unshown_memory.h"

namespace poet {

// A storage that existed before the step, as the caller found it (Python: by the garbage
// collector's list). Storages that no op touches still occupy memory, and may die within the step
// (old gradients at zero_grad).
struct KnownStorage {
  WeakStorage storage;
  int64_t bytes = 0;
  // kInput for arguments of the step, kGradient for gradients, kParameter for what is known as one.
  ValueKind kind = ValueKind::kBuffer;
};

// Stands by while a step is recorded (it may keep the step inside a budget, say), and leaves no
// trace in the recording. All calls with the session's lock held.
class Companion {
 public:
  virtual ~Companion() = default;
  virtual void died(ValueId value) = 0;  // its storage is gone
  // The op's inputs have numbers by now. What this throws the op throws.
  virtual void beforeKernel(OpId op, const c10::IValue* args, size_t count,
                            c10::DispatchKeySet below) = 0;
  virtual void afterKernel(OpId op, const c10::IValue* results, size_t count) = 0;
  virtual void afterRaise(OpId op) = 0;
  // Asked for room while the kernel runs, without the lock.
  virtual RoomMaker* roomMaker() = 0;
  // Seconds that this took since the last call.
  virtual double takeSeconds() = 0;
};

// One recorder a step. Not thread-safe: the session serializes.
//
// Invariants: a value is one storage, numbered in the order in which the step first shows them, so
// that equal steps give equal numbers. A storage's address is forgotten the moment its storage is
// gone, because it will be used again.
class Recorder {
 public:
  // `all_are_known`: what is not among `known`, and has memory that is not the allocator's, has
  // come since the step began. `device`: whose memory counts, see Note [Steps on an accelerator];
  // the bytes of what is known to lie elsewhere are 0.
  explicit Recorder(std::vector<KnownStorage> known, bool all_are_known = false,
                    c10::Device device = c10::Device(c10::DeviceType::CPU));

  // Goes on where a step left its plan after `done` ops: the ops before are those of `prefix`, and
  // bound[v] the storage that value v has in this step (expired where it died), shifts[v] by how
  // much further on it has it than `prefix` (Note [Batches that are slices]); `inputs` are the
  // step's arguments in their order, of which some may not have been shown yet.
  Recorder(const Recording& prefix, size_t done, const std::vector<WeakStorage>& bound,
           const std::vector<int64_t>& shifts, const std::vector<WeakStorage>& inputs,
           c10::Device device = c10::Device(c10::DeviceType::CPU));
  // Of a step that departed from its plan: what is there from before the step, and the plan's later
  // ops would have shown. The step may show it yet; what it does not show lies beside it, as in a
  // step that is recorded from its first op on.
  void expectFromBefore(const std::vector<KnownStorage>& known);

  // An op of the program has come: what passed since the last one was its own time.
  void noteArrival();
  // Runs the op and records it. An op that throws is recorded as one that does: the step may catch
  // the error and go on. `lock` is let go while the kernel runs, which may call back.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
           std::unique_lock<std::mutex>* lock = nullptr);

  // Something beside the step's operators (NumPy, another thread) reads the tensor's memory: it
  // stays where it is. See Note [Read beside the step].
  void noteRead(const at::Tensor& t, bool may_write);
  // Whatever reads these values, or has read them, is not made again: for a step that has departed.
  void noteMayBeWritten(const std::vector<ValueId>& values);
  // The step runs ops on several streams of its accelerator: nothing of it may leave memory.
  void noteSeveralStreams() { several_streams_ = true; }
  // Whether the op reads a parameter that others share, and nothing shows yet that nobody writes
  // it.
  bool readsWhatIsTrusted(const Op& op) const;
  // Whether the tensor's memory was there when the step began, or an op has shown it.
  bool knows(const at::Tensor& t) const;

  // Whether what comes is part of an optimizer's step.
  void setInOptimizer(bool in) { in_optimizer_ = in; }

  // For the ops to come; it must outlive them, and this recorder it. What has been recorded so far:
  void accompany(Companion* companion) { companion_ = companion; }
  const RecordedOp& op(OpId id) const { return ops_[static_cast<size_t>(id.index)]; }
  const Op& node(OpId id) const { return graph_ops_[static_cast<size_t>(id.index)]; }
  const Value& value(ValueId id) const { return values_[static_cast<size_t>(id.index)]; }
  size_t numValues() const { return values_.size(); }
  // Small things from outside are held by the records of the ops that read them, and count as alive
  // to the end of the step.
  bool isHeldByRecords(ValueId id) const;
  // Values that stay in memory, by their keys: native code has read them in an earlier step. It
  // must outlive the recorder.
  void setKept(const std::unordered_set<uint64_t>* keys) { kept_ = keys; }
  // What a value is in every step that has shown the same ops before it.
  static uint64_t keyOf(uint64_t prefix_hash, ValueId value);
  uint64_t keyOf(ValueId value) const { return keys_[static_cast<size_t>(value.index)]; }
  // Of the ops to come: see Note [Lending]. They may be dead by then.
  void setLent(const std::vector<WeakStorage>& lent) { lent_ = lent; }
  // Whether native code may still be about to fill it, or has written it since an op last did: see
  // Note [Written by native code].
  bool isForNativeCode(ValueId id) const { return native_writes_.isUnfilled(id); }
  bool isFromNativeCode(ValueId id) const;

  // After the step. Throws FormatError if what was heard is no possible step. The recorder is
  // spent.
  std::unique_ptr<Recording> finish();

  size_t numOps() const { return ops_.size(); }
  // Of the values that the step has made, the storages of those that live. Before finish().
  std::vector<WeakStorage> madeAndAlive() const;

 private:
  static constexpr int64_t kHeldBytes = 4096;  // see isHeldByRecords()

  void noteDeaths(bool look_at_all = false);
  void noteKnownDeaths(const std::vector<int32_t>& dead);
  void noteLiving(ValueId id, c10::StorageImpl& storage, WeakStorage weak);
  void expect(const KnownStorage& known, c10::StorageImpl& storage, int32_t position);
  Slot slotFor(const at::Tensor& t, int arg, int element, OpId producer);
  const Look* lookOf(const at::Tensor& t, const Slot& slot);
  void addSlot(const Slot& slot, uint32_t& counter);
  ValueId valueOf(const at::Tensor& t, OpId producer);
  void recordInputs(const OpTraits& traits, const c10::IValue* args, size_t count);
  void keepWhatUnmanagedTensorsHold(bool makes_unmanaged, size_t known_values);
  void recordPart(const at::Tensor& part, OpId producer);
  struct Written {
    ValueId value;
    at::Tensor tensor;
    bool filled;
  };
  std::vector<Written> beforeAccess(const OpTraits& traits, const c10::IValue* args, size_t count);
  void noteContents(const OpTraits& traits, const std::vector<Written>& written,
                    const c10::IValue* results, size_t count);
  void noteNative(ValueId value);
  void noteSharing(ValueId value, c10::StorageImpl& storage, bool is_parameter);
  void checkTrust(ValueId value, const c10::StorageImpl& storage);
  void distrustWhatWasWritten();
  void keepInPlace(ValueId value, bool may_be_written);
  bool readsWhatMayBeWritten(const Op& op) const;
  void freezeReadersOfWhatMayBeWritten();
  void freezeReaders();
  void noteGrowth(const at::Tensor& t, ValueId value);
  void recordLent();
  void recordOutputs(const c10::IValue* results, size_t count);
  void runMeasured(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet below,
                   torch::jit::Stack* stack);
  void runOnDevice(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet below,
                   torch::jit::Stack* stack);
  bool counts(const c10::StorageImpl& storage) const {
    return Accelerator::isSame(storage.device(), device_);
  }
  bool mayReplayOn(c10::Device device) const;
  int64_t bytesOfNobody() const;
  void noteParameter(const at::Tensor& t, ValueId value);
  void noteOldGradient(const at::Tensor& parameter, const KnownTensor& weak);
  Phase currentPhase();
  void begin(const c10::OperatorHandle& op, const OpTraits& traits, const torch::jit::Stack& stack);
  void noteKernelEnd(OpId op);
  void noteRaised();
  void extendHash();
  void countFlops();
  void labelValues();
  void labelGradients();
  ValueKind kindOf(size_t value) const;
  void noteArrival(ValueId value, const c10::StorageImpl& storage, std::optional<OpId> after);
  OpId makerOf(OpId before) const;
  void addArrivals();
  int64_t addUntouched();
  int64_t addUnshown();
  void addGrowths();
  void fillDeaths(Recording& recording) const;
  void fillFirstShown(Recording& recording, size_t shown_values) const;
  void keepWhatCannotBeFound();
  void keepWhatSeveralStreamsUse();
  void fillOutside(Recording& recording) const;

  std::vector<RecordedOp> ops_;
  std::shared_ptr<SlotTable> slots_ = std::make_shared<SlotTable>();  // theirs
  Slot* slots_of_op_ = nullptr;                                       // the running one's
  std::vector<Op> graph_ops_;
  std::vector<Value> values_;
  std::vector<int64_t> first_offset_;  // by value, of those that were shown
  std::vector<Sharing> sharing_;       // likewise
  std::vector<uint64_t> prefix_hash_ = {0};
  std::unordered_map<c10::StorageImpl*, ValueId> number_;
  std::vector<c10::StorageImpl*> address_;  // by value, while it lives
  AllocatorTap::FreedLog freed_log_;        // see Note [Who tells of deaths]
  std::vector<const void*> freed_;
  LivingStorages alive_;  // by value
  std::unordered_set<int32_t> inputs_, parameters_, gradients_, written_early_, optimizer_only_;
  std::vector<KnownTensor> parameter_tensors_;
  struct Known {
    KnownStorage storage;
    c10::StorageImpl* address;
    OpId death;
    int32_t position = 0;  // in the caller's list
    bool touched = false;
  };
  std::vector<Known> known_;
  LivingStorages known_alive_;  // by their places in known_; those that are not touched
  std::unordered_map<c10::StorageImpl*, size_t> known_at_;
  // By value; see Note [Values from before the step].
  std::unordered_map<int32_t, int32_t> input_position_;
  std::unordered_map<int32_t, KnownTensor> parameter_of_gradient_;
  std::unordered_map<c10::StorageImpl*, KnownTensor> old_gradients_;  // not shown yet
  std::unordered_map<c10::StorageImpl*, int32_t> inputs_to_come_;     // of a step that departed
  // See Note [Storages that grow].
  struct Growth {
    ValueId value;
    OpId op;
    int64_t bytes;
  };
  std::vector<Growth> growths_;
  // Values that came without an operator, each after that op.
  std::vector<std::pair<ValueId, OpId>> arrivals_;
  std::unordered_map<int32_t, int64_t> grown_bytes_;  // by value, in all
  // See Note [Read beside the step]. Before an op has shown it:
  struct ReadBeside {
    WeakStorage storage;
    bool may_write;
  };
  std::vector<ReadBeside> read_early_;
  std::unordered_set<int32_t> may_be_written_;
  // Parameters whose memory others share: what they held when an op showed them first.
  // Parameters that others share, and what they held when an operator saw them last.
  std::unordered_map<int64_t, uint64_t> trusted_;
  NativeWrites native_writes_;
  std::vector<WeakStorage> lent_;
  const std::unordered_set<uint64_t>* kept_ = nullptr;
  std::vector<uint64_t> keys_;  // by value
  Companion* companion_ = nullptr;
  c10::Device device_;
  std::optional<Accelerator> accelerator_;  // the device, where it is one
  int64_t left_bytes_ = 0;                  // by the op that ran last, its results included
  bool several_streams_ = false;
  UnshownMemory unshown_;
  int kernels_ = 0;                               // that run now: one may call ops of its own
  OpClock::time_point left_at_ = OpClock::now();  // last
  double host_seconds_ = 0;                       // from then to the op that comes now
  int64_t inherited_base_bytes_ = 0;
  size_t inherited_values_ = 0;
  bool all_are_known_ = false;
  bool in_optimizer_ = false;
  bool seen_backward_ = false;
};

}  // namespace poet
