#include "trace/allocator_tap.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "trace/kept_storages.h"

namespace poet {
namespace {

constexpr uint8_t kPriority = 100;

thread_local RoomMaker* t_room = nullptr;
thread_local bool t_hidden = false;

class TapAllocator final : public c10::Allocator {
 public:
  static TapAllocator& get() {
    static TapAllocator* tap = make();  // blocks outlive static destruction
    return *tap;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (t_room != nullptr && bytes > 0) {
      RoomMaker* const maker = t_room;
      const AllocatorTap::RoomGuard not_for_what_the_maker_takes(nullptr);
      maker->makeRoom(static_cast<int64_t>(bytes));
    }
    c10::DataPtr data = inner_->allocate(bytes);
    adopt(data, bytes, !t_hidden);
    return data;
  }

  void adopt(c10::DataPtr& data, size_t bytes, bool shown) {
    if (data.get() == nullptr || !data.compare_exchange_deleter(inner_->raw_deleter(), &release))
      return;
    const std::lock_guard<std::mutex> lock(mutex_);
    blocks_[data.get()] = {static_cast<int64_t>(bytes)};
    live_ += static_cast<int64_t>(bytes);
    if (!shown) return;
    shown_ += static_cast<int64_t>(bytes);
    high_ = std::max(high_, shown_);
  }

  bool hold(void* block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = blocks_.find(block);
    if (found != blocks_.end()) ++found->second.holds;
    return found != blocks_.end();
  }

  void letGo(void* block) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      const auto found = blocks_.find(block);
      if (--found->second.holds > 0 || !found->second.orphaned) return;
      live_ -= found->second.bytes;
      blocks_.erase(found);
    }
    inner_->raw_deleter()(block);
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
      const auto found = tap.blocks_.find(block);
      if (found != tap.blocks_.end()) {
        if (!t_hidden) tap.shown_ -= found->second.bytes;
        if (found->second.holds > 0) {
          found->second.orphaned = true;
          return;
        }
        tap.live_ -= found->second.bytes;
        tap.blocks_.erase(found);
      }
    }
    tap.inner_->raw_deleter()(block);
  }

  void enter() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++users_ > 1) return;
    shown_ = live_;
    c10::SetCPUAllocator(this, kPriority);
  }
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--users_ == 0) c10::SetCPUAllocator(inner_, kPriority);
  }

  // A forked process (a DataLoader's worker) must not find the lock held by a thread that it lacks.
  static TapAllocator* make() {
    auto* tap = new TapAllocator;
    pthread_atfork([] { get().mutex_.lock(); }, [] { get().mutex_.unlock(); },
                   [] { get().mutex_.unlock(); });
    return tap;
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  std::mutex mutex_;
  struct Block {
    int64_t bytes = 0;
    int32_t holds = 0;
    bool orphaned = false;  // its owner has given it back
  };
  std::unordered_map<void*, Block> blocks_;
  int64_t live_ = 0;
  int64_t shown_ = 0;  // live, as if nothing hidden had happened
  int64_t high_ = 0;   // of shown_
  int users_ = 0;
};

}  // namespace

AllocatorTap::Guard::Guard() { TapAllocator::get().enter(); }
AllocatorTap::Guard::~Guard() { TapAllocator::get().leave(); }

AllocatorTap::RoomGuard::RoomGuard(RoomMaker* maker) : before_(std::exchange(t_room, maker)) {}
AllocatorTap::RoomGuard::~RoomGuard() { t_room = before_; }

AllocatorTap::HiddenGuard::HiddenGuard() : before_(std::exchange(t_hidden, true)) {}
AllocatorTap::HiddenGuard::~HiddenGuard() { t_hidden = before_; }

AllocatorTap::BlockHold AllocatorTap::BlockHold::of(void* block) {
  BlockHold made;
  if (block != nullptr && TapAllocator::get().hold(block)) made.block_ = block;
  return made;
}
AllocatorTap::BlockHold::BlockHold(BlockHold&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)) {}
AllocatorTap::BlockHold& AllocatorTap::BlockHold::operator=(BlockHold&& other) noexcept {
  std::swap(block_, other.block_);
  return *this;
}
AllocatorTap::BlockHold::~BlockHold() {
  if (block_ != nullptr) TapAllocator::get().letGo(block_);
}

void AllocatorTap::enroll(c10::StorageImpl& storage) {
  TapAllocator::get().adopt(storage._mutable_data_ptr_no_checks(), storage.nbytes(), true);
}

void AllocatorTap::forgetHidden() {
  TapAllocator& tap = TapAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  tap.shown_ = tap.live_;
}

int64_t AllocatorTap::liveBytes() {
  const std::lock_guard<std::mutex> lock(TapAllocator::get().mutex_);
  return TapAllocator::get().live_;
}

int64_t AllocatorTap::shownBytes() {
  const std::lock_guard<std::mutex> lock(TapAllocator::get().mutex_);
  return TapAllocator::get().shown_;
}

int64_t AllocatorTap::resetHighWater() {
  TapAllocator& tap = TapAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  return tap.high_ = tap.shown_;
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
