// POET_VERIFY: hashes every value when it is evicted and again when it is back, and compares each
// op's resident bytes with the simulator's. The first difference throws an Error naming op, value
// and version.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/compiled_plan.h"

namespace poet {

class Verifier {
 public:
  void setEnabled(bool on) { enabled_ = on; }
  bool enabled() const { return enabled_; }

  static uint64_t contentHash(const c10::StorageImpl& storage);
  // Of what `producer`, which made `value`, shows of it (null: of all): mse_loss, say, makes a
  // storage of its input's size and writes one number to it.
  static uint64_t contentHash(const c10::StorageImpl& storage, ValueId value,
                              const RecordedOp* producer);
  void checkContent(const CompiledPlan& plan, size_t op, ValueId value, uint64_t expected,
                    const c10::StorageImpl& storage) const;

  // Before the step's first op; just before an op's kernel; just after it.
  void beginStep() { started_ = suspended_ = switched_ = false; }
  // `missing` gives the bytes of values that the plan moves before any op shows them, and that this
  // step does not have (a first call has no old gradients): the simulator's bytes count them.
  void beforeKernel(const CompiledPlan& plan, size_t op, const std::function<int64_t()>& missing);
  // `heldLonger` gives the bytes of values that the program holds longer than when it was recorded.
  void afterKernel(const CompiledPlan& plan, size_t op, const std::function<int64_t()>& heldLonger);
  // The step goes on under another plan, whose copies in the store it may not have. Where one is
  // missed, its value is made again instead, at bytes that neither plan counts.
  void noteSwitch() { started_ = false, switched_ = true; }
  void noteUnplanned() { suspended_ |= switched_; }
  // Something that the recording has nothing of makes values (an op on another thread): bytes are
  // not compared for the rest of the step, contents are.
  void suspend() { suspended_ = true; }

 private:
  bool enabled_ = false;
  bool started_ = false;
  bool suspended_ = false;
  bool switched_ = false;
  int64_t offset_ = 0;  // tapped bytes that the simulator does not count
  int64_t generator_bytes_ = 0;
};

}  // namespace poet
