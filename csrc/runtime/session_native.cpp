// What native code reads past the operators: what it is lent, and what it has read unannounced.
#include <algorithm>

#include "runtime/session.h"
#include "trace/kept_storages.h"

namespace poet {

void Session::onLend(const at::Tensor& t) {
  const AllocatorTap::RoomGuard while_the_lock_is_held(nullptr);
  const std::lock_guard<std::mutex> lock(mutex_);
  lent_.push_back(t.storage().getWeakStorageImpl());
  if (recorder_) bringBackFor(t);
}

void Session::onLendingEnds(size_t tensors) {
  const std::lock_guard<std::mutex> lock(mutex_);
  lent_.resize(lent_.size() - std::min(tensors, lent_.size()), noStorage());  // of this step
}

bool Session::keepNamed(const std::string& error) {
  const ValueId v = valueNamedIn(error);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_recorded = recorder_ != nullptr && policy_.isActive();
  if (!v.valid()) {  // it is no value of the step yet
    const bool put_away = is_recorded && !between_.empty() && isRawReadError(error);
    if (put_away) may_put_away_ = false;
    return put_away;
  }
  if (!is_recorded && mode_ != Mode::kFollow) return false;
  const StorageHold storage = is_recorded ? policy_.awayStorage(v) : executor_.awayStorage(v);
  if (!storage) return false;
  uint64_t key = 0;
  bool is_from_before = false;  // the step: the next may have it in the same storage
  if (is_recorded) {
    key = recorder_->keyOf(v);
    is_from_before = !recorder_->value(v).producer.valid();
  } else {
    const Recording& recording = executor_.plan().recording();
    const OpId shown = recording.first_shown[static_cast<size_t>(v.index)];
    key = Recorder::keyOf(recording.prefix_hash[static_cast<size_t>(shown.index)], v);
    is_from_before = !recording.graph->value(v).producer.valid();
  }
  if (is_from_before) KeptStorages::add(storage);
  kept_.insert(key);
  for (const int id : variants_.ids()) {
    if (variants_.keepValue(id, v, key)) to_replan_.push_back({id, 0, false});
  }
  return true;
}

}  // namespace poet
