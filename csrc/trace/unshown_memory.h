// Memory that a step takes where no operator shows it.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "graph/graph.h"
#include "trace/allocator_tap.h"

namespace poet {

// Note [Memory that no operator shows]
// torch.get_rng_state() and the like take memory between two operators, and the tensor may never be
// an operator's argument: torch.utils.checkpoint keeps such a state of each segment until it runs
// again. The allocator's log tells of these blocks. Each is a value that stays where it is, with
// the lifetime of the block: the recorder makes it an output of the op before it was taken, or, as
// that is not run again then, of the last before that which is not anyway, or is a view (of none
// where there was none). Blocks
// that operators take inside are their outputs or their workspace, and not in here; unless their
// results have no storage of their own (an mkldnn tensor, say): what is left then is what these are
// made of, a value of that op.
//
// What such a block holds an operator may show later on (a tensor over a NumPy array, one that
// native code made): it is a value like others then, but for that it begins in the same way.
//
// Of one thread at a time: blocks of other threads are not seen. Not thread-safe.
class UnshownMemory {
 public:
  static constexpr int64_t kLeastBytes = 64;  // of a block: less is left out

  // `listens`: false, and there are no blocks at all, where the CPU's memory is not what counts.
  explicit UnshownMemory(bool listens = true) { AllocatorTap::logBlocks(listens); }
  ~UnshownMemory() { AllocatorTap::logBlocks(false); }
  UnshownMemory(const UnshownMemory&) = delete;
  UnshownMemory& operator=(const UnshownMemory&) = delete;

  // What was taken and given back since the last call; `last` is the last op that has run (kNoOp:
  // none has). In an op, or before it.
  void noteOp(OpId last);
  void noteGap(OpId last);
  // An op shows the storage: it is a value of its own. The last op that had run when its memory was
  // taken (kNoOp: none had), where that was between two ops of this step.
  std::optional<OpId> show(c10::StorageImpl& storage);
  // After the outputs of `op`, the last that noteOp() heard of, were shown: all else that it left
  // behind is what results without storage are made of. Returns the bytes.
  int64_t keepWhatOpLeft(OpId op);

  struct Block {
    int64_t bytes;
    OpId before;             // the last op that had run when it was taken; kNoOp: none had
    OpId death;              // and when it was given back
    bool is_result = false;  // of `before` itself
  };
  // The blocks that lived while ops ran, in an order that the addresses have no part in. `end`: the
  // death of those that live. Afterwards there are none.
  std::vector<Block> take(OpId end);

 private:
  void note(OpId last, bool in_op);
  void giveBack(const void* block, OpId last);

  std::unordered_map<const void*, Block> living_;
  std::unordered_map<const void*, int64_t> left_by_op_;  // bytes; by the last op
  std::vector<Block> gone_;
  std::vector<AllocatorTap::BlockEvent> events_;
};

}  // namespace poet
