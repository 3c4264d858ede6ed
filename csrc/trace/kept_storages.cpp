#include "trace/kept_storages.h"

#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>

namespace poet {
namespace {

class StorageSet {
 public:
  void add(const StorageHold& storage) {
    const std::lock_guard<std::mutex> lock(mutex_);
    storages_.emplace(storage.get(), WeakStorage(storage));
    if (storages_.size() > prune_at_) {
      for (auto it = storages_.begin(); it != storages_.end();)
        it = it->second.expired() ? storages_.erase(it) : std::next(it);
      prune_at_ = 2 * storages_.size() + 64;
    }
    any_ = true;
  }
  bool has(const c10::StorageImpl& storage) {
    if (!any_) return false;
    const std::lock_guard<std::mutex> lock(mutex_);
    return storages_.count(&storage) > 0;  // the weak reference keeps the address from reuse
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, WeakStorage> storages_;
  size_t prune_at_ = 64;
  std::atomic<bool> any_ = false;  // most programs keep nothing
};

// Storages outlive static destruction.
StorageSet& kept() {
  static auto* set = new StorageSet;
  return *set;
}
StorageSet& shared() {
  static auto* set = new StorageSet;
  return *set;
}

}  // namespace

void KeptStorages::add(const StorageHold& storage) { kept().add(storage); }
bool KeptStorages::has(const c10::StorageImpl& storage) { return kept().has(storage); }
void KeptStorages::addShared(const StorageHold& storage) { shared().add(storage); }
bool KeptStorages::isShared(const c10::StorageImpl& storage) { return shared().has(storage); }

}  // namespace poet
