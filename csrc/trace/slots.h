// Slots: how an op of a recorded step showed its tensors.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/typeid.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "graph/ids.h"

namespace poet {

// How a tensor looks at its storage, but for where in it it begins. One for all slots of a
// recording that look alike: a step that updates a thousand parameters shows each many times.
struct Look {
  c10::SmallVector<int64_t, 5> sizes;  // empty, as strides, of tensors that are not managed
  c10::SmallVector<int64_t, 5> strides;
  caffe2::TypeMeta dtype;
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  c10::DispatchKeySet keys;
  bool wrapped_number = false;  // a Python number: it promotes types differently

  friend bool operator==(const Look& a, const Look& b) {
    return a.sizes == b.sizes && a.strides == b.strides && a.dtype == b.dtype &&
           a.device == b.device && a.keys == b.keys && a.wrapped_number == b.wrapped_number;
  }
};

// One tensor argument or result of an op: where it stood on the stack and how it looked at its
// storage. 32 bytes, for a step has several an op, and the hot path reads them all.
struct Slot {
  static constexpr int kMostArgs = 0x1fff;

  uint64_t hash = 0;           // geometryHash, see Note [Batches that are slices]
  ValueId value;               // kNoValue: not managed (see Note [Which tensors poet manages])
  int32_t element = -1;        // position in a list, -1 outside lists
  int64_t offset : 48 = 0;     // in elements
  uint64_t arg : 13 = 0;       // position on the stack
  uint64_t made_here : 1 = 0;  // a result: the op is its value's producer
  uint64_t outside : 1 = 0;    // the step did not make the value
  uint64_t statistic : 1 = 0;  // an argument: running statistics in training
  const Look* look = nullptr;  // the SlotTable's; never null there
};
static_assert(sizeof(Slot) == 32);

// The slots of a recording, those of an op side by side, its arguments' first. Addresses stay. Not
// thread-safe while slots are added.
class SlotTable {
 public:
  // Adds a slot to the `count` ones from `first` on, which are the last that were added; returns
  // where they begin now. With `count` 0 `first` may be null.
  Slot* add(Slot* first, size_t count, const Slot& slot);
  // `key`: looks that differ mostly have different ones (geometryHash).
  const Look* shared(uint64_t key, Look look);
  // No slot is added any more: what only served that goes.
  void close();
  int64_t ownBytes() const;  // that it takes of memory itself

 private:
  static constexpr size_t kBlock = 256;
  struct Block {
    std::unique_ptr<Slot[]> slots;
    size_t size = 0;
    size_t used = 0;
  };
  std::vector<Block> blocks_;
  std::deque<Look> looks_;
  std::unordered_map<uint64_t, const Look*> look_of_;
};

}  // namespace poet
