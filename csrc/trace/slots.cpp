#include "trace/slots.h"

#include <algorithm>
#include <utility>

#include "graph/heap_bytes.h"

namespace poet {

Slot* SlotTable::add(Slot* first, size_t count, const Slot& slot) {
  if (blocks_.empty() || blocks_.back().used == blocks_.back().size) {
    Block block;
    block.size = std::max(kBlock, 2 * (count + 1));
    block.slots = std::make_unique<Slot[]>(block.size);
    if (count > 0) {
      std::copy_n(first, count, block.slots.get());
      blocks_.back().used -= count;
    }
    block.used = count;
    first = block.slots.get();
    blocks_.push_back(std::move(block));
  }
  Block& last = blocks_.back();
  if (count == 0) first = last.slots.get() + last.used;
  last.slots[last.used++] = slot;
  return first;
}

const Look* SlotTable::shared(uint64_t key, Look look) {
  const Look*& known = look_of_[key];
  if (known == nullptr || !(*known == look)) known = &looks_.emplace_back(std::move(look));
  return known;
}

void SlotTable::close() {
  look_of_ = {};
  std::erase_if(blocks_, [](const Block& block) { return block.used == 0; });  // an op moved on
  blocks_.shrink_to_fit();
}

int64_t SlotTable::ownBytes() const {
  const auto beyond = [](const c10::SmallVector<int64_t, 5>& numbers) {
    return numbers.capacity() <= 5 ? 0 : heapBlock(numbers.capacity_in_bytes());
  };
  int64_t bytes =
      heapBytes(blocks_, [](const Block& block) { return heapBlock(block.size * sizeof(Slot)); });
  for (const Look& look : looks_)
    bytes += static_cast<int64_t>(sizeof(Look)) + beyond(look.sizes) + beyond(look.strides);
  return bytes;
}

}  // namespace poet
