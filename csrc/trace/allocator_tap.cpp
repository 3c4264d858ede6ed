#include "trace/allocator_tap.h"

#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "trace/kept_storages.h"

namespace poet {
namespace {

constexpr uint8_t kPriority = 100;
constexpr size_t kSpaceToRam = 4;  // address space of the arena: holes must not fill it

PageArena* makeArena() {
  const char* wish = std::getenv("POET_ARENA");
  const bool wanted = wish == nullptr || std::string_view(wish) != "0";
  const auto ram =
      static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return new PageArena(wanted ? kSpaceToRam * ram : 0);
}

class StepAllocator final : public c10::Allocator {
 public:
  static StepAllocator& get() {
    static StepAllocator* const allocator = [] {  // blocks outlive static destruction
      auto* made = new StepAllocator;
      // A child of fork() must find no lock that is held by a thread which it does not have.
      ::pthread_atfork([] { get().lockAll(); }, [] { get().unlockAll(); },
                       [] { get().unlockAll(); });
      return made;
    }();
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    c10::DataPtr data = allocateAnywhere(bytes);
    if (counting_ == 0 || data.get() == nullptr) return data;
    if (data.get_deleter() == &release ||
        data.compare_exchange_deleter(inner_->raw_deleter(), &release)) {
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
    StepAllocator& tap = get();
    {
      const std::lock_guard<std::mutex> lock(tap.mutex_);
      const auto found = tap.sizes_.find(block);
      if (found != tap.sizes_.end()) {
        tap.live_ -= found->second;
        tap.sizes_.erase(found);
      }
    }
    if (tap.arena_->owns(block)) {
      c10::profiledCPUMemoryReporter().Delete(block);
      tap.arena_->release(block);
    } else {
      tap.inner_->raw_deleter()(block);
    }
  }

  // It stays PyTorch's allocator while anybody counts, or wants large blocks from the arena.
  void enter(std::atomic<int>& purpose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++purpose;
    if (counting_ + placing_ == 1) c10::SetCPUAllocator(this, kPriority);
  }
  void leave(std::atomic<int>& purpose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --purpose;
    if (counting_ + placing_ == 0) c10::SetCPUAllocator(inner_, kPriority);
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  PageArena* arena_ = makeArena();
  std::mutex mutex_;
  std::unordered_map<void*, int64_t> sizes_;
  int64_t live_ = 0;
  int64_t high_ = 0;
  std::atomic<int> counting_ = 0;  // users
  std::atomic<int> placing_ = 0;

 private:
  c10::DataPtr allocateAnywhere(size_t bytes) {
    if (placing_ > 0 && bytes >= StepArena::kLeastBytes) {
      if (void* const block = arena_->allocate(bytes)) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    return inner_->allocate(bytes);
  }

  void lockAll() {
    mutex_.lock();
    arena_->lock();
  }
  void unlockAll() {
    arena_->unlock();
    mutex_.unlock();
  }
};

}  // namespace

AllocatorTap::Guard::Guard() {
  StepAllocator& allocator = StepAllocator::get();
  allocator.enter(allocator.counting_);
}
AllocatorTap::Guard::~Guard() {
  StepAllocator& allocator = StepAllocator::get();
  allocator.leave(allocator.counting_);
}

int64_t AllocatorTap::liveBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().live_;
}

int64_t AllocatorTap::resetHighWater() {
  StepAllocator& tap = StepAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  return tap.high_ = tap.live_;
}

int64_t AllocatorTap::highWaterBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().high_;
}

bool AllocatorTap::mayRelease(const c10::StorageImpl& storage) {
  const auto deleter =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter();
  const bool from_allocator =
      deleter == &StepAllocator::release || deleter == StepAllocator::get().inner_->raw_deleter();
  return from_allocator && storage.resizable() && !KeptStorages::has(storage);
}

// ------------------------------------------------------------------------------------------------
// the arena

void StepArena::useForGood() {
  StepAllocator& allocator = StepAllocator::get();
  static const bool entered = (allocator.enter(allocator.placing_), true);
  static_cast<void>(entered);
}

void StepArena::restart(int64_t bytes) {
  StepAllocator::get().arena_->restart(bytes);
#ifdef __GLIBC__
  if (bytes == 0) ::malloc_trim(0);
#endif
}

PageArena::Counters StepArena::counters() { return StepAllocator::get().arena_->counters(); }

}  // namespace poet
