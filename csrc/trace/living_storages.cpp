#include "trace/living_storages.h"

#include <algorithm>
#include <utility>

#include "trace/allocator_tap.h"

namespace poet {

void LivingStorages::add(int32_t number, WeakStorage storage) {
  const auto at = static_cast<size_t>(number);
  if (ones_.size() <= at) ones_.resize(at + 1);
  ones_[at].storage = std::move(storage);
  ones_[at].told = Told::kNo;
  if (!waitForLog(number)) looked_at_.push_back(number);
}

// Whether the log will tell of it. Where somebody else waits for that block, his storage has lost
// it, and most likely is dead.
bool LivingStorages::waitForLog(int32_t number) {
  One& one = ones_[static_cast<size_t>(number)];
  const StorageHold storage = one.storage.lock();
  if (!storage) return false;
  const void* block = AllocatorTap::FreedLog::watch(*storage);
  if (block == nullptr) return false;
  const auto [found, is_new] = of_block_.emplace(block, number);
  if (!is_new) {
    One& other = ones_[static_cast<size_t>(found->second)];
    other.told = Told::kNo;
    looked_at_.push_back(found->second);
    found->second = number;
  }
  one.block = block;
  one.told = Told::kYes;
  return true;
}

void LivingStorages::drop(int32_t number) {
  const auto at = static_cast<size_t>(number);
  if (at >= ones_.size()) return;
  One& one = ones_[at];
  if (one.told == Told::kYes) of_block_.erase(one.block);
  one = One();  // the rounds to come take it off looked_at_
}

const WeakStorage& LivingStorages::at(int32_t number) const {
  static const WeakStorage none = noStorage();
  const auto at = static_cast<size_t>(number);
  return at < ones_.size() ? ones_[at].storage : none;
}

std::vector<int32_t> LivingStorages::numbers() const {
  std::vector<int32_t> all;
  for (size_t i = 0; i < ones_.size(); ++i) {
    if (ones_[i].told != Told::kUnasked) all.push_back(static_cast<int32_t>(i));
  }
  return all;
}

std::vector<int32_t> LivingStorages::takeDead(const std::vector<const void*>& freed, bool all) {
  std::vector<int32_t> dead;
  const auto take = [&](int32_t number) {
    drop(number);
    dead.push_back(number);
  };
  for (const void* block : freed) {
    const auto found = of_block_.find(block);
    if (found == of_block_.end()) continue;
    const int32_t number = found->second;
    One& one = ones_[static_cast<size_t>(number)];
    if (one.storage.expired()) {
      take(number);
    } else {
      one.told = Told::kNo;
      of_block_.erase(found);
      looked_at_.push_back(number);
    }
  }
  std::vector<int32_t> again;
  again.swap(looked_at_);
  for (const int32_t number : again) {
    const One& one = ones_[static_cast<size_t>(number)];
    if (one.told != Told::kNo) continue;
    if (one.storage.expired()) {
      take(number);
    } else if (!waitForLog(number)) {
      looked_at_.push_back(number);
    }
  }
  if (all || ++rounds_ >= kFullRound) {
    rounds_ = 0;
    for (size_t i = 0; i < ones_.size(); ++i) {
      if (ones_[i].told == Told::kYes && ones_[i].storage.expired()) take(static_cast<int32_t>(i));
    }
  }
  std::sort(dead.begin(), dead.end());
  return dead;
}

}  // namespace poet
