#include "trace/allocator_tap.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "trace/kept_storages.h"

namespace poet {
namespace {

constexpr uint8_t kPriority = 100;

class TapAllocator final : public c10::Allocator {
 public:
  static TapAllocator& get() {
    static TapAllocator* tap = new TapAllocator;  // blocks outlive static destruction
    return *tap;
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = inner_->allocate(bytes);
    if (data.get() != nullptr && data.compare_exchange_deleter(inner_->raw_deleter(), &release)) {
      const std::lock_guard<std::mutex> lock(mutex_);
      sizes_[data.get()] = static_cast<int64_t>(bytes);
      live_ += static_cast<int64_t>(bytes);
      high_ = std::max(high_, live_);
    }
    return data;
  }

  // raw_allocate() asserts that context and data are the same pointer: they are.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static void release(void* block) {
    TapAllocator& tap = get();
    {
      const std::lock_guard<std::mutex> lock(tap.mutex_);
      const auto found = tap.sizes_.find(block);
      if (found != tap.sizes_.end()) {
        tap.live_ -= found->second;
        tap.sizes_.erase(found);
      }
    }
    tap.inner_->raw_deleter()(block);
  }

  void enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++users_ == 1) c10::SetCPUAllocator(this, kPriority);
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ == 0) c10::SetCPUAllocator(inner_, kPriority);
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t live_ = 0;
  int64_t high_ = 0;
  int users_ = 0;
};

}  // namespace

AllocatorTap::Guard::Guard() { TapAllocator::get().enter(); }
AllocatorTap::Guard::~Guard() { TapAllocator::get().leave(); }

int64_t AllocatorTap::liveBytes() {
  const std::lock_guard<std::mutex> lock(TapAllocator::get().mutex_);
  return TapAllocator::get().live_;
}

int64_t AllocatorTap::resetHighWater() {
  TapAllocator& tap = TapAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  return tap.high_ = tap.live_;
}

int64_t AllocatorTap::highWaterBytes() {
  const std::lock_guard<std::mutex> lock(TapAllocator::get().mutex_);
  return TapAllocator::get().high_;
}

bool AllocatorTap::mayRelease(const c10::StorageImpl& storage) {
  const auto deleter =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter();
  const bool from_allocator =
      deleter == &TapAllocator::release || deleter == TapAllocator::get().inner_->raw_deleter();
  return from_allocator && storage.resizable() && !KeptStorages::has(storage);
}

}  // namespace poet
