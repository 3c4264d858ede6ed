#include "trace/unshown_memory.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace poet {
void UnshownMemory::noteOp(OpId last) { note(last, /*in_op=*/true); }

void UnshownMemory::noteGap(OpId last) { note(last, /*in_op=*/false); }

void UnshownMemory::note(OpId last, bool in_op) {
  AllocatorTap::readLog(events_);
  if (in_op) left_by_op_.clear();
  for (const AllocatorTap::BlockEvent& event : events_) {
    giveBack(event.block, last);  // if it was taken again, another thread gave it back
    if (in_op) left_by_op_.erase(event.block);
    if (event.bytes < kLeastBytes) continue;
    if (in_op) {
      left_by_op_[event.block] = event.bytes;
    } else {
      living_[event.block] = {event.bytes, last, kNoOp};
    }
  }
}

int64_t UnshownMemory::keepWhatOpLeft(OpId op) {
  int64_t bytes = 0;
  for (const auto& [address, size] : left_by_op_) {
    bytes += size;
    living_[address] = {size, op, kNoOp, /*is_result=*/true};
  }
  left_by_op_.clear();
  return bytes;
}

void UnshownMemory::giveBack(const void* block, OpId last) {
  const auto found = living_.find(block);
  if (found == living_.end()) return;
  found->second.death = last;
  if (found->second.before < last || found->second.is_result) gone_.push_back(found->second);
  living_.erase(found);
}

std::optional<OpId> UnshownMemory::show(c10::StorageImpl& storage) {
  const void* block = storage._mutable_data_ptr_no_checks().get();
  if (!left_by_op_.empty()) left_by_op_.erase(block);
  const auto found = living_.find(block);
  if (found == living_.end()) return std::nullopt;
  const OpId before = found->second.before;
  living_.erase(found);
  return before;
}

std::vector<UnshownMemory::Block> UnshownMemory::take(OpId end) {
  for (auto& [address, block] : living_) {
    block.death = end;
    if (block.before.index + 1 < end.index || block.is_result) gone_.push_back(block);
  }
  living_.clear();
  std::sort(gone_.begin(), gone_.end(), [](const Block& a, const Block& b) {
    return std::tie(a.before, a.death, a.bytes, a.is_result) <
           std::tie(b.before, b.death, b.bytes, b.is_result);
  });
  return std::exchange(gone_, {});
}

}  // namespace poet
