// An allocation that fails, as where the machine has no more memory.
#pragma once

#include <c10/util/Exception.h>

#include <cstdint>

#include "trace/allocator_tap.h"

namespace poet::testing {

// Under an AllocatorTap::LimitGuard: the nth allocation after arm(nth) fails, and no other.
class FailsOnce final : public RoomLimit {
 public:
  void arm(int64_t nth) { left_ = nth; }
  bool hasFailed() const { return failed_; }

  void admit(int64_t bytes, int64_t) override {
    if (left_ == 0 || --left_ > 0) return;
    failed_ = true;
    TORCH_CHECK_WITH(OutOfMemoryError, false, "there are no ", bytes, " bytes");
  }

 private:
  int64_t left_ = 0;
  bool failed_ = false;
};

}  // namespace poet::testing
