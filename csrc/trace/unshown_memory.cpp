#include "trace/unshown_memory.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace poet {
void UnshownMemory::noteOp(OpId last) { note(last, /*in_op=*/true); }

void UnshownMemory::noteGap(OpId last) { note(last, /*in_op=*/false); }

void UnshownMemory::note(OpId last, bool in_op) {
  AllocatorTap::readLog(events_);
  for (const AllocatorTap::BlockEvent& event : events_) {
    giveBack(event.block, last);  // if it was taken again, another thread gave it back
    if (!in_op && event.bytes >= kLeastBytes) living_[event.block] = {event.bytes, last, kNoOp};
  }
}

void UnshownMemory::giveBack(const void* block, OpId last) {
  const auto found = living_.find(block);
  if (found == living_.end()) return;
  found->second.death = last;
  if (found->second.before < last) gone_.push_back(found->second);
  living_.erase(found);
}

void UnshownMemory::show(c10::StorageImpl& storage) {
  if (!living_.empty()) living_.erase(storage._mutable_data_ptr_no_checks().get());
}

std::vector<UnshownMemory::Block> UnshownMemory::take(OpId end) {
  for (auto& [address, block] : living_) {
    block.death = end;
    if (block.before.index + 1 < end.index) gone_.push_back(block);
  }
  living_.clear();
  std::sort(gone_.begin(), gone_.end(), [](const Block& a, const Block& b) {
    return std::tie(a.before, a.death, a.bytes) < std::tie(b.before, b.death, b.bytes);
  });
  return std::exchange(gone_, {});
}

}  // namespace poet
