// Session::pause: everything that can be paged leaves memory while no step runs.
#include <c10/util/ScopeExit.h>

#include <set>

#include "graph/error.h"
#include "runtime/session.h"
#include "runtime/verify.h"
#include "trace/allocator_tap.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

// Smaller ones would take more of the disk than they give back of memory.
constexpr size_t kLeastBytes = 4096;

// Storages, each once, in the order in which they came.
class Storages {
 public:
  void add(StorageHold storage) {
    if (storage && seen_.insert(storage.get()).second) all_.push_back(std::move(storage));
  }
  void addOf(const at::Tensor& t) {
    if (t.defined() && isManaged(t))
      add(StorageHold::reclaim_copy(t.storage().unsafeGetStorageImpl()));
  }
  bool has(const at::Tensor& t) const {
    return isManaged(t) && seen_.count(t.storage().unsafeGetStorageImpl()) > 0;
  }
  std::vector<StorageHold> take() { return std::move(all_); }

 private:
  std::set<const c10::StorageImpl*> seen_;
  std::vector<StorageHold> all_;
};

}  // namespace

// The step's arguments stay: the caller is about to use them, or is done with them.
std::vector<StorageHold> Session::pausable(const std::vector<at::Tensor>& leaves) {
  Storages found;
  for (const auto& [id, variant] : variants_.all()) {
    for (const OutsideValue& outside : variant.outside) {
      if (outside.input_position >= 0 || outside.is_gradient) continue;
      if (variant.recording->graph->value(outside.value).evictable)
        found.add(outside.storage.lock());
    }
  }
  // An optimizer's state, which no call has found there yet.
  for (const WeakStorage& left : left_behind_) found.add(left.lock());
  for (const at::Tensor& leaf : leaves) {
    if (leaf.defined() && leaf.is_leaf() && found.has(leaf)) found.addOf(leaf.grad());
  }
  std::vector<StorageHold> all = found.take();
  std::erase_if(all, [this](const StorageHold& storage) {
    return storage->nbytes() < kLeastBytes || between_.has(storage.get()) ||
           executor_.isHandedOut(storage.get()) || !AllocatorTap::mayReleaseNow(*storage);
  });
  return all;
}

int64_t Session::pause(const std::vector<at::Tensor>& leaves) {
  const std::lock_guard<std::mutex> lock(mutex_);
  POET_CHECK_AS(Error, mode_ == Mode::kIdle,
                "pause: expected no step to be running; one is, on another thread or around this "
                "call. Call it between two steps.");
  if (!pages_) return 0;
  between_.dropDead();
  watchFirst();
  const auto watched = c10::make_scope_exit([this] { watchWhatIsAway(); });
  const std::vector<StorageHold> storages = pausable(leaves);
  int64_t bytes = 0;
  for (const StorageHold& storage : storages) bytes += static_cast<int64_t>(storage->nbytes());
  if (bytes == 0) return 0;
  Pager& pager = executor_.pager();
  openStore();
  pager.reserve(bytes);  // a full disk shows here
  int64_t released = 0;
  for (const StorageHold& storage : storages) {
    const PageCopy copy = pager.store(*storage, verify_ ? Verifier::contentHash(*storage) : 0);
    if (!copy.valid()) continue;  // the store failed: it stays
    releaseData(*storage);
    between_.add(storage, copy);
    released += copy.bytes;
  }
  StepArena::restart(0, /*trim_malloc=*/true);
  return released;
}

}  // namespace poet
