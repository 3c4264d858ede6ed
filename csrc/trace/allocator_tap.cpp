#include "trace/allocator_tap.h"

#include <ATen/MapAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "trace/kept_storages.h"
#include "trace/storages_in_use.h"

namespace poet {
namespace {

constexpr uint8_t kPriority = 100;
constexpr size_t kSpaceToRam = 4;  // address space of the arena: holes must not fill it

thread_local RoomMaker* t_room = nullptr;

// A RoomLimit that is in force.
struct Limit {
  RoomLimit* asked = nullptr;
  int64_t since = 0;            // number of the last block before it
  int64_t taken_elsewhere = 0;  // since then, by other threads, and not given back
};
thread_local std::optional<Limit> t_limit;
thread_local bool t_hidden = false;
thread_local ArenaSide t_side;
thread_local BlockScript* t_script = nullptr;  // of the step that runs here

constexpr size_t kLongestLog = 1 << 16;
thread_local bool t_logs = false;
struct ThreadLog {
  std::vector<AllocatorTap::BlockEvent> events;
  ~ThreadLog() { t_logs = false; }  // blocks may go after it, as the thread ends
};
thread_local ThreadLog t_log;

void log(const void* block, int64_t bytes) {
  if (!t_logs || t_hidden) return;
  t_log.events.push_back({block, bytes});
  if (t_log.events.size() > kLongestLog) AllocatorTap::logBlocks(false);
}

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
      // A forked process (a DataLoader's worker) must find no lock that is held by a thread which
      // it does not have.
      ::pthread_atfork([] { get().lockAll(); }, [] { get().unlockAll(); },
                       [] { get().unlockAll(); });
      return made;
    }();
    return *allocator;
  }

  c10::DataPtr allocate(size_t bytes) override {
    if (t_room != nullptr && bytes > 0) {
      RoomMaker* const maker = t_room;
      const AllocatorTap::RoomGuard not_for_what_the_maker_takes(nullptr);
      maker->makeRoom(static_cast<int64_t>(bytes));
    }
    if (t_limit && bytes > 0) {
      RoomLimit* const limit = t_limit->asked;
      limit->admit(static_cast<int64_t>(bytes), liveWithin(*t_limit));
    }
    c10::DataPtr data = allocateAnywhere(bytes);
    if (counting_ > 0) adopt(data, bytes, !t_hidden, /*is_new=*/true);
    return data;
  }

  void adopt(c10::DataPtr& data, size_t bytes, bool shown, bool is_new) {
    if (data.get() == nullptr) return;
    if (data.get_deleter() != &release && !data.compare_exchange_deleter(&releaseSmall, &release)) {
      if (!data.compare_exchange_deleter(inner_->raw_deleter(), &release) &&
          !data.compare_exchange_deleter(&releaseOlder, &release))
        return;
      countSmall(data.get(), 1);
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    Block block{static_cast<int64_t>(bytes)};
    if (is_new) {
      block.number = ++last_number_;
      block.limit = t_limit ? &*t_limit : nullptr;
    }
    if (!blocks_.emplace(data.get(), block).second) return;
    countElsewhere(block, block.bytes);
    live_ += static_cast<int64_t>(bytes);
    most_live_ = std::max(most_live_, live_);
    if (is_new) log(data.get(), static_cast<int64_t>(bytes));
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
      countElsewhere(found->second, -found->second.bytes);
      live_ -= found->second.bytes;
      blocks_.erase(found);
    }
    giveBack(block);
  }

  // raw_allocate() asserts that context and data are the same pointer: they are.
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  static void release(void* block) {
    StepAllocator& tap = get();
    log(block, -1);
    {
      const std::lock_guard<std::mutex> lock(tap.mutex_);
      tap.tellLogs(block);
      const auto found = tap.blocks_.find(block);
      if (found != tap.blocks_.end()) {
        if (!t_hidden) tap.shown_ -= found->second.bytes;
        if (found->second.holds > 0) {
          found->second.orphaned = true;
          return;
        }
        tap.countElsewhere(found->second, -found->second.bytes);
        tap.live_ -= found->second.bytes;
        tap.blocks_.erase(found);
      }
    }
    tap.giveBack(block);
  }

  // A block that neither the arena has nor anybody asks for by name: most of those outside steps.
  static void releaseSmall(void* block) {
    StepAllocator& tap = get();
    tap.countSmall(block, -1);
    releaseOlder(block);
  }

  // A block from before the tap, which a FreedLog waits for.
  static void releaseOlder(void* block) {
    StepAllocator& tap = get();
    if (tap.logging_ > 0) {
      const std::lock_guard<std::mutex> lock(tap.mutex_);
      tap.tellLogs(block);
    }
    tap.inner_->raw_deleter()(block);
  }

  const void* watch(c10::DataPtr& data) const {
    const auto deleter = data.get_deleter();
    const bool tells = deleter == &release || deleter == &releaseSmall ||
                       deleter == &releaseOlder ||
                       data.compare_exchange_deleter(inner_->raw_deleter(), &releaseOlder);
    return tells ? data.get() : nullptr;
  }
  void begin(std::vector<const void*>& freed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    logs_.push_back(&freed);
    logging_ = static_cast<int>(logs_.size());
  }
  void end(const std::vector<const void*>& freed) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(logs_, &freed);
    logging_ = static_cast<int>(logs_.size());
  }

  // It stays PyTorch's allocator while anybody counts, or wants large blocks from the arena.
  void enter(std::atomic<int>& purpose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++purpose;
    if (&purpose == &counting_ && counting_ == 1) shown_ = live_;
    if (counting_ + placing_ == 1) c10::SetCPUAllocator(this, kPriority);
  }
  void leave(std::atomic<int>& purpose) {
    const std::lock_guard<std::mutex> lock(mutex_);
    --purpose;
    if (counting_ + placing_ == 0) c10::SetCPUAllocator(inner_, kPriority);
  }

  void begin(Limit& limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    limit.since = last_number_;
    limits_.push_back(&limit);
  }
  void end(const Limit& limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(limits_, &limit);
  }

  c10::Allocator* inner_ = c10::GetDefaultCPUAllocator();
  PageArena* arena_ = makeArena();
  std::mutex mutex_;
  struct Block {
    int64_t bytes = 0;
    int32_t holds = 0;
    bool orphaned = false;         // its owner has given it back
    int64_t number = 0;            // in the order in which they were taken; 0: from before the tap
    const Limit* limit = nullptr;  // of the thread that took it
  };
  std::unordered_map<void*, Block> blocks_;
  int64_t live_ = 0;
  int64_t most_live_ = 0;
  int64_t shown_ = 0;  // live, as if nothing hidden had happened
  int64_t high_ = 0;   // of shown_
  int64_t last_number_ = 0;
  std::vector<Limit*> limits_;                   // in force, on any thread
  std::vector<std::vector<const void*>*> logs_;  // FreedLogs
  std::atomic<int> logging_ = 0;                 // how many they are
  std::atomic<int> counting_ = 0;                // users
  std::atomic<int> placing_ = 0;
  std::atomic<int64_t> small_bytes_ = 0;  // in malloc's heap; with what malloc adds
  std::atomic<int64_t> made_elsewhere_ = 0;

 private:
  int64_t liveWithin(const Limit& limit) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return live_ - limit.taken_elsewhere;
  }

  // A thread's limit is where the thread has it, at one place as long as it lives; one that begins
  // there later has a greater `since` than the blocks of the one before.
  void countElsewhere(const Block& block, int64_t bytes) {
    for (Limit* const limit : limits_) {
      if (block.number > limit->since && block.limit != limit) limit->taken_elsewhere += bytes;
    }
  }

  c10::DataPtr allocateAnywhere(size_t bytes) {
    if (placing_ > 0 && bytes >= StepArena::kLeastBytes) {
      if (void* const block = arena_->allocate(bytes, t_script, t_side)) {
        c10::profiledCPUMemoryReporter().New(block, bytes);
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
      }
    }
    c10::DataPtr data = inner_->allocate(bytes);
    if (data.get() != nullptr &&
        data.compare_exchange_deleter(inner_->raw_deleter(), &releaseSmall))
      countSmall(data.get(), 1);
    return data;
  }

  void giveBack(void* block) {
    if (arena_->owns(block)) {
      c10::profiledCPUMemoryReporter().Delete(block);
      arena_->release(block);
    } else {
      countSmall(block, -1);
      inner_->raw_deleter()(block);
    }
  }

  void tellLogs(void* block) {
    for (std::vector<const void*>* const freed : logs_) freed->push_back(block);
  }

  // malloc knows a block's size: nobody has to remember it.
  void countSmall(void* block, int64_t times) {
    const auto bytes = static_cast<int64_t>(::malloc_usable_size(block));
    small_bytes_.fetch_add(times * bytes, std::memory_order_relaxed);
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

// Memory of another process, say, has a deleter of its own.
bool isFromDeviceAllocator(const c10::StorageImpl& storage) {
  const c10::Allocator* allocator = c10::GetAllocator(storage.device_type());
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  return allocator != nullptr && data.get_deleter() == allocator->raw_deleter();
}

}  // namespace

AllocatorTap::Guard::Guard() {
  StepAllocator& allocator = StepAllocator::get();
  allocator.enter(allocator.counting_);
}
AllocatorTap::Guard::~Guard() {
  StepAllocator& allocator = StepAllocator::get();
  allocator.leave(allocator.counting_);
}

AllocatorTap::RoomGuard::RoomGuard(RoomMaker* maker) : before_(std::exchange(t_room, maker)) {}
AllocatorTap::RoomGuard::~RoomGuard() { t_room = before_; }

AllocatorTap::LimitGuard::LimitGuard(RoomLimit& limit) {
  StepAllocator::get().begin(t_limit.emplace(Limit{.asked = &limit}));
}
AllocatorTap::LimitGuard::~LimitGuard() {
  StepAllocator::get().end(*t_limit);
  t_limit.reset();
}

AllocatorTap::HiddenGuard::HiddenGuard() : before_(std::exchange(t_hidden, true)) {}
AllocatorTap::HiddenGuard::~HiddenGuard() { t_hidden = before_; }

AllocatorTap::BlockHold AllocatorTap::BlockHold::of(void* block) {
  BlockHold made;
  if (block != nullptr && StepAllocator::get().hold(block)) made.block_ = block;
  return made;
}
AllocatorTap::BlockHold::BlockHold(BlockHold&& other) noexcept
    : block_(std::exchange(other.block_, nullptr)) {}
AllocatorTap::BlockHold& AllocatorTap::BlockHold::operator=(BlockHold&& other) noexcept {
  std::swap(block_, other.block_);
  return *this;
}
AllocatorTap::BlockHold::~BlockHold() {
  if (block_ != nullptr) StepAllocator::get().letGo(block_);
}

AllocatorTap::FreedLog::FreedLog() { StepAllocator::get().begin(freed_); }
AllocatorTap::FreedLog::~FreedLog() { StepAllocator::get().end(freed_); }

const void* AllocatorTap::FreedLog::watch(c10::StorageImpl& storage) {
  c10::DataPtr& data = storage._mutable_data_ptr_no_checks();
  return data.get() == nullptr ? nullptr : StepAllocator::get().watch(data);
}

void AllocatorTap::FreedLog::take(std::vector<const void*>& blocks) {
  blocks.clear();
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  blocks.swap(freed_);
}

void AllocatorTap::logBlocks(bool on) {
  t_log.events.clear();
  t_logs = on;
}

void AllocatorTap::readLog(std::vector<BlockEvent>& events) {
  events.clear();
  std::swap(events, t_log.events);
}

void AllocatorTap::enroll(c10::StorageImpl& storage) {
  StepAllocator& tap = StepAllocator::get();
  tap.adopt(storage._mutable_data_ptr_no_checks(), storage.nbytes(), /*shown=*/true,
            /*is_new=*/false);
  // resize_() asks the storage's own allocator.
  if (storage.allocator() == tap.inner_) storage.set_allocator(&tap);
}

void AllocatorTap::forgetHidden() {
  StepAllocator& tap = StepAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  tap.shown_ = tap.live_;
}

int64_t AllocatorTap::liveBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().live_;
}

void AllocatorTap::resetMostLive() {
  StepAllocator& tap = StepAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  tap.most_live_ = tap.live_;
}

int64_t AllocatorTap::mostLiveBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().most_live_;
}

int64_t AllocatorTap::shownBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().shown_;
}

int64_t AllocatorTap::resetHighWater() {
  StepAllocator& tap = StepAllocator::get();
  const std::lock_guard<std::mutex> lock(tap.mutex_);
  return tap.high_ = tap.shown_;
}

int64_t AllocatorTap::highWaterBytes() {
  const std::lock_guard<std::mutex> lock(StepAllocator::get().mutex_);
  return StepAllocator::get().high_;
}

bool AllocatorTap::isFromAllocator(const c10::StorageImpl& storage) {
  if (!storage.device().is_cpu()) return isFromDeviceAllocator(storage);
  const auto deleter =
      const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get_deleter();
  return deleter == &StepAllocator::release || deleter == &StepAllocator::releaseSmall ||
         deleter == &StepAllocator::releaseOlder ||
         deleter == StepAllocator::get().inner_->raw_deleter();
}

bool AllocatorTap::mayRelease(const c10::StorageImpl& storage) {
  return isFromAllocator(storage) && storage.resizable() && !KeptStorages::has(storage);
}

void AllocatorTap::noteLoaded(c10::StorageImpl& storage) {
  if (storage.resizable() || storage.allocator() != nullptr || !storage.device().is_cpu() ||
      !isFromAllocator(storage))
    return;
  storage.set_allocator(c10::GetCPUAllocator());
  storage.set_resizable(true);
}

bool AllocatorTap::isShared(const c10::StorageImpl& storage) {
  const auto& data = const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks();
  if (KeptStorages::isShared(storage)) return true;
  if (data.get() == nullptr) return false;  // what is away is PyTorch's
  if (isFromAllocator(storage)) return !storage.resizable();
  return at::MapAllocator::fromDataPtr(data) == nullptr &&
         at::RefcountedMapAllocator::fromDataPtr(data) == nullptr;
}

bool AllocatorTap::mayReleaseNow(const c10::StorageImpl& storage) {
  return mayRelease(storage) && !StoragesInUse::elsewhere(storage);
}

// ------------------------------------------------------------------------------------------------
// the arena

void StepArena::useForGood() {
  StepAllocator& allocator = StepAllocator::get();
  static const bool entered = (allocator.enter(allocator.placing_), true);
  static_cast<void>(entered);
}

void StepArena::restart(int64_t bytes, bool trim_malloc) {
  StepAllocator::get().arena_->restart(bytes);
#ifdef __GLIBC__
  if (trim_malloc) ::malloc_trim(0);
#endif
}

PageArena::Counters StepArena::counters() { return StepAllocator::get().arena_->counters(); }

StepArena::ScriptGuard::ScriptGuard(std::shared_ptr<BlockScript> script)
    : script_(std::move(script)), before_(std::exchange(t_script, script_.get())) {
  StepAllocator::get().arena_->beginScript(script_);
}

StepArena::ScriptGuard::~ScriptGuard() {
  t_script = before_;
  StepAllocator::get().arena_->endScript(script_);
}

StepArena::SideGuard::SideGuard(ArenaSide side) : before_(std::exchange(t_side, side)) {}

StepArena::SideGuard::~SideGuard() { t_side = before_; }

int64_t StepArena::bytesOf(const BlockScript& script) {
  return StepAllocator::get().arena_->bytesOf(script);
}

int64_t StepArena::bytesInUse() {
  const StepAllocator& allocator = StepAllocator::get();
  return counters().in_use_bytes + allocator.small_bytes_ + allocator.made_elsewhere_;
}

void StepArena::noteMadeElsewhere(int64_t bytes) {
  StepAllocator::get().made_elsewhere_.fetch_add(bytes, std::memory_order_relaxed);
}

int64_t StepArena::bytesMadeElsewhere() {
  return StepAllocator::get().made_elsewhere_.load(std::memory_order_relaxed);
}

int64_t StepArena::gapBetween(const void* block, const void* next) {
  return StepAllocator::get().arena_->gapBetween(block, next);
}

}  // namespace poet
