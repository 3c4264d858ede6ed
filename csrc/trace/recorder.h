// Recorder: one eager training step, op by op -> Recording.
#pragma once

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "trace/allocator_tap.h"
#include "trace/op_traits.h"
#include "trace/recording.h"

namespace poet {

// A storage that existed before the step, as the caller found it (Python: by the garbage
// collector's list). Storages that no op touches still occupy memory, and may die within the step
// (old gradients at zero_grad).
struct KnownStorage {
  WeakStorage storage;
  int64_t bytes = 0;
  ValueKind kind = ValueKind::kBuffer;  // kInput for arguments of the step, kGradient for gradients
};

// One recorder a step. Not thread-safe: the session serializes.
//
// Invariants: a value is one storage, numbered in the order in which the step first shows them, so
// that equal steps give equal numbers. A storage's address is forgotten the moment its storage is
// gone, because it will be used again.
class Recorder {
 public:
  explicit Recorder(std::vector<KnownStorage> known);

  // Goes on where a step left its plan after `done` ops: the ops before are those of `prefix`, and
  // bound[v] the storage that value v has in this step (expired where it died).
  Recorder(const Recording& prefix, size_t done, const std::vector<WeakStorage>& bound);

  // Runs the op and records it. An op that throws is recorded as one that does: the step may catch
  // the error and go on. `lock` is let go while the kernel runs, which may call back.
  void run(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
           std::unique_lock<std::mutex>* lock = nullptr);

  void enterOptimizer() { ++optimizer_depth_; }
  void leaveOptimizer() { --optimizer_depth_; }

  // After the step. Throws FormatError if what was heard is no possible step. The recorder is
  // spent.
  std::unique_ptr<Recording> finish();

  size_t numOps() const { return ops_.size(); }

 private:
  struct Living {
    ValueId value;
    c10::StorageImpl* address;
    WeakStorage storage;
  };

  void noteDeaths();
  void noteKnownDeaths();
  Slot slotFor(const at::Tensor& t, int arg, int element, OpId producer);
  ValueId valueOf(const at::Tensor& t, OpId producer);
  void recordInputs(const OpTraits& traits, const c10::IValue* args, size_t count);
  void keepWhatUnmanagedTensorsHold(bool makes_unmanaged, size_t known_values);
  void recordPart(const at::Tensor& part, OpId producer);
  void recordOutputs(const c10::IValue* results, size_t count);
  void runMeasured(const c10::OperatorHandle& op, const OpTraits& traits, c10::DispatchKeySet below,
                   torch::jit::Stack* stack);
  void noteParameter(const at::Tensor& t, ValueId value);
  Phase currentPhase();
  void begin(const c10::OperatorHandle& op, const OpTraits& traits, const torch::jit::Stack& stack);
  void noteRaised();
  void extendHash();
  void countFlops();
  void labelValues();
  void labelGradients();
  ValueKind kindOf(size_t value) const;
  int64_t addUntouched();
  void fillDeaths(Recording& recording) const;
  void fillFirstShown(Recording& recording) const;
  void fillOutside(Recording& recording) const;

  std::vector<RecordedOp> ops_;
  std::vector<Op> graph_ops_;
  std::vector<Value> values_;
  std::vector<uint64_t> prefix_hash_ = {0};
  std::unordered_map<c10::StorageImpl*, ValueId> number_;
  std::vector<Living> alive_;
  std::unordered_set<int32_t> inputs_, parameters_, gradients_, written_early_, optimizer_only_;
  std::vector<WeakTensor> parameter_tensors_;
  struct Known {
    KnownStorage storage;
    c10::StorageImpl* address;
    OpId death;
    int32_t position = 0;  // in the caller's list
    bool touched = false;
  };
  std::vector<Known> known_;
  std::unordered_map<c10::StorageImpl*, size_t> known_at_;
  // By value; see Note [Values from before the step].
  std::unordered_map<int32_t, int32_t> input_position_;
  std::unordered_map<int32_t, WeakTensor> parameter_of_gradient_;
  std::unordered_map<c10::StorageImpl*, WeakTensor> old_gradients_;  // not shown yet
  int64_t inherited_base_bytes_ = 0;
  int optimizer_depth_ = 0;
  bool seen_backward_ = false;
};

}  // namespace poet
