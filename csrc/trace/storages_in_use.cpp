#include "trace/storages_in_use.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "trace/tensor_args.h"

namespace poet {
namespace {

thread_local std::thread::id t_on_behalf_of;  // that of no thread: of this one

constexpr size_t kMostNoted = 64;  // an op with more tensors is taken to use everything

// Written by its own thread alone.
struct ThreadSlot {
  std::atomic<bool> busy = false;
  std::atomic<size_t> count = 0;
  std::array<std::atomic<const c10::StorageImpl*>, kMostNoted> noted = {};
};

struct ThreadSlots {
  std::mutex mutex;
  std::vector<ThreadSlot*> all;
  std::vector<const StoragesInUse::Claim*> claims;
  static ThreadSlots& get() {
    static ThreadSlots* slots = new ThreadSlots;  // threads may outlive static destruction
    return *slots;
  }
};

// Known to the others as long as its thread lives.
class OwnSlot {
 public:
  OwnSlot() {
    const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
    ThreadSlots::get().all.push_back(&slot_);
  }
  ~OwnSlot() {
    const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
    std::erase(ThreadSlots::get().all, &slot_);
  }
  OwnSlot(const OwnSlot&) = delete;
  OwnSlot& operator=(const OwnSlot&) = delete;
  ThreadSlot& slot() { return slot_; }

 private:
  ThreadSlot slot_;
};

ThreadSlot& ownSlot() {
  thread_local OwnSlot own;
  return own.slot();
}

}  // namespace

StoragesInUse::Guard::Guard(const c10::OperatorHandle& op, const torch::jit::Stack& stack)
    : outermost_(!ownSlot().busy.load(std::memory_order_relaxed)) {
  if (!outermost_) return;
  ThreadSlot& slot = ownSlot();
  const size_t arguments = op.schema().arguments().size();
  size_t count = 0;
  forEachTensor(
      stack.data() + (stack.size() - arguments), arguments, [&](const at::Tensor& t, int, int) {
        if (!isManaged(t)) return true;
        if (count < kMostNoted)
          slot.noted[count].store(t.storage().unsafeGetStorageImpl(), std::memory_order_relaxed);
        ++count;
        return true;
      });
  slot.count.store(count, std::memory_order_relaxed);
  slot.busy.store(true, std::memory_order_seq_cst);
}

StoragesInUse::Guard::~Guard() {
  if (outermost_) ownSlot().busy.store(false, std::memory_order_release);
}

StoragesInUse::Claim::Claim() : thread_(std::this_thread::get_id()) {
  const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
  ThreadSlots::get().claims.push_back(this);
}

StoragesInUse::Claim::~Claim() {
  const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
  std::erase(ThreadSlots::get().claims, this);
}

void StoragesInUse::Claim::add(const std::vector<const c10::StorageImpl*>& storages) {
  const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
  storages_.insert(storages.begin(), storages.end());
}

StoragesInUse::OnBehalfOf::OnBehalfOf(std::thread::id thread)
    : before_(std::exchange(t_on_behalf_of, thread)) {}
StoragesInUse::OnBehalfOf::~OnBehalfOf() { t_on_behalf_of = before_; }

bool StoragesInUse::elsewhere(const c10::StorageImpl& storage) {
  const ThreadSlot* const own = &ownSlot();
  const std::thread::id here =
      t_on_behalf_of == std::thread::id() ? std::this_thread::get_id() : t_on_behalf_of;
  const std::lock_guard<std::mutex> lock(ThreadSlots::get().mutex);
  for (const Claim* claim : ThreadSlots::get().claims) {
    if (claim->thread_ != here && claim->storages_.count(&storage) > 0) return true;
  }
  return std::any_of(
      ThreadSlots::get().all.begin(), ThreadSlots::get().all.end(), [&](const ThreadSlot* slot) {
        if (slot == own || !slot->busy.load(std::memory_order_seq_cst)) return false;
        const size_t count = slot->count.load(std::memory_order_relaxed);
        return count > kMostNoted ||
               std::any_of(slot->noted.begin(), slot->noted.begin() + static_cast<int64_t>(count),
                           [&](const auto& noted) {
                             return noted.load(std::memory_order_relaxed) == &storage;
                           });
      });
}

}  // namespace poet
