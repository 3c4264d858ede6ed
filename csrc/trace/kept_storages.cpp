#include "trace/kept_storages.h"

#include <atomic>
#include <iterator>
#include <mutex>
#include <unordered_map>

namespace poet {
namespace {

struct Kept {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, WeakStorage> storages;
  std::atomic<bool> any = false;  // most programs keep nothing
  static Kept& get() {
    static Kept* kept = new Kept;  // storages outlive static destruction
    return *kept;
  }
};

}  // namespace

void KeptStorages::add(const StorageHold& storage) {
  Kept& kept = Kept::get();
  const std::lock_guard<std::mutex> lock(kept.mutex);
  for (auto it = kept.storages.begin(); it != kept.storages.end();)
    it = it->second.expired() ? kept.storages.erase(it) : std::next(it);
  kept.storages.emplace(storage.get(), WeakStorage(storage));
  kept.any = true;
}

bool KeptStorages::has(const c10::StorageImpl& storage) {
  Kept& kept = Kept::get();
  if (!kept.any) return false;
  const std::lock_guard<std::mutex> lock(kept.mutex);
  return kept.storages.count(&storage) > 0;  // the weak reference keeps the address from reuse
}

}  // namespace poet
