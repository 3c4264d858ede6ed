#include "store/io_hooks.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "store/aligned_buffer.h"
#include "store/chunks.h"

namespace poet {
namespace store {
namespace {

enum class Kind { kWrite, kRead, kGrow };

Kind kindOf(StoreFault fault) {
  switch (fault) {
    case StoreFault::kGrowNoSpace:
      return Kind::kGrow;
    case StoreFault::kReadErrorOnce:
    case StoreFault::kReadError:
    case StoreFault::kShortRead:
    case StoreFault::kReadNothing:
      return Kind::kRead;
    default:
      return Kind::kWrite;
  }
}

bool isLasting(StoreFault fault) {
  return fault == StoreFault::kWriteNoSpace || fault == StoreFault::kWriteError ||
         fault == StoreFault::kReadError || fault == StoreFault::kReadNothing;
}

// The armed fault. Stores of several threads may pass through it.
class Injector {
 public:
  bool isArmed() const { return armed_.load(std::memory_order_relaxed); }

  void arm(StoreFault fault, int64_t nth) {
    const std::lock_guard lock(mutex_);
    fault_ = fault;
    transfers_left_ = nth;
    active_ = false;
    struck_ = 0;
    armed_.store(fault != StoreFault::kNone, std::memory_order_relaxed);
  }

  int64_t struck() {
    const std::lock_guard lock(mutex_);
    return struck_;
  }

  // A transfer or a growth begins.
  void begin(Kind kind) {
    const std::lock_guard lock(mutex_);
    if (kind != kindOf(fault_) || (active_ && isLasting(fault_))) return;
    active_ = --transfers_left_ == 0;
  }

  // The fault that strikes this system call, if any.
  StoreFault strike(Kind kind) {
    const std::lock_guard lock(mutex_);
    if (!active_ || kind != kindOf(fault_)) return StoreFault::kNone;
    ++struck_;
    if (!isLasting(fault_) && fault_ != StoreFault::kRuin) active_ = false;
    return fault_;
  }

 private:
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  StoreFault fault_ = StoreFault::kNone;
  int64_t transfers_left_ = 0;
  bool active_ = false;
  int64_t struck_ = 0;
};

Injector& injector() {
  static Injector instance;
  return instance;
}

// Flips a bit of every `stride` bytes of [offset, offset + bytes) on the file. A direct transfer
// needs whole blocks, and so a buffer of one.
void flipBits(int fd, int64_t offset, int64_t bytes, int64_t stride) {
  AlignedBuffer block(kBlockBytes);
  for (int64_t at = offset; at < offset + bytes; at += stride) {
    if (::pread(fd, block.data(), kBlockBytes, at) != kBlockBytes) return;
    block.data()[at / kBlockBytes % kBlockBytes] ^= std::byte{0x10};
    if (::pwrite(fd, block.data(), kBlockBytes, at) != kBlockBytes) return;
  }
}

// What a direct transfer can do of half of the bytes. The answer is the half itself, which may end
// within a block: nobody may count on the bytes of a block that was not transferred as a whole.
size_t halfInBlocks(size_t bytes) {
  return bytes / 2 / static_cast<size_t>(kBlockBytes) * static_cast<size_t>(kBlockBytes);
}

ssize_t fail(int error) {
  errno = error;
  return -1;
}

ssize_t faultyWrite(StoreFault fault, int fd, const std::byte* data, size_t bytes, int64_t offset) {
  if (fault == StoreFault::kWriteNoSpace) return fail(ENOSPC);
  if (fault == StoreFault::kWriteError || fault == StoreFault::kWriteErrorOnce) return fail(EIO);
  if (fault == StoreFault::kShortWrite) {
    const ssize_t written = ::pwrite(fd, data, halfInBlocks(bytes), offset);
    return written < 0 ? written : static_cast<ssize_t>(bytes / 2);
  }
  const ssize_t written = ::pwrite(fd, data, bytes, offset);
  if (written <= 0) return written;
  flipBits(fd, offset, written, fault == StoreFault::kRuin ? kBlockBytes : written);
  return written;
}

ssize_t faultyRead(StoreFault fault, int fd, std::byte* data, size_t bytes, int64_t offset) {
  if (fault == StoreFault::kShortRead) {
    const ssize_t got = ::pread(fd, data, halfInBlocks(bytes), offset);
    return got < 0 ? got : static_cast<ssize_t>(bytes / 2);
  }
  return fault == StoreFault::kReadNothing ? 0 : fail(EIO);
}

}  // namespace

void beginTransfer(Transfer transfer) {
  if (!injector().isArmed()) return;
  injector().begin(transfer == Transfer::kRead ? Kind::kRead : Kind::kWrite);
}

StoreFault drawFault(Transfer transfer) {
  if (!injector().isArmed()) return StoreFault::kNone;
  return injector().strike(transfer == Transfer::kRead ? Kind::kRead : Kind::kWrite);
}

ssize_t writeAt(int fd, const std::byte* data, size_t bytes, int64_t offset, StoreFault fault) {
  if (fault != StoreFault::kNone) return faultyWrite(fault, fd, data, bytes, offset);
  return ::pwrite(fd, data, bytes, offset);
}

ssize_t readAt(int fd, std::byte* data, size_t bytes, int64_t offset, StoreFault fault) {
  if (fault != StoreFault::kNone) return faultyRead(fault, fd, data, bytes, offset);
  return ::pread(fd, data, bytes, offset);
}

int allocateAt(int fd, int64_t offset, int64_t bytes) {
  if (injector().isArmed()) {
    injector().begin(Kind::kGrow);
    if (injector().strike(Kind::kGrow) != StoreFault::kNone) {
      errno = ENOSPC;
      return -1;
    }
  }
  return ::fallocate(fd, 0, offset, bytes);
}

}  // namespace store

void injectStoreFault(StoreFault fault, int64_t nth) { store::injector().arm(fault, nth); }

int64_t storeFaultsStruck() { return store::injector().struck(); }

}  // namespace poet
