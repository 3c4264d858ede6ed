// The system calls through which every byte of a store goes, and faults for tests. (A ring carries
// out requests that no fault strikes by itself.)
//
// Nothing is armed outside tests: a call then costs one relaxed atomic load more than the plain
// one.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "graph/export.h"

namespace poet {

// "Once": the first matching system call of the transfer. "Lasting": that one and all later ones
// of the process, until the next injectStoreFault.
enum class StoreFault {
  kNone,
  kGrowNoSpace,     // once: the file cannot grow, ENOSPC (counts growths, not transfers)
  kWriteNoSpace,    // lasting: ENOSPC
  kWriteErrorOnce,  // EIO
  kWriteError,      // lasting: EIO
  kShortWrite,      // once: half of the bytes are written
  kReadErrorOnce,   // EIO
  kReadError,       // lasting: EIO
  kShortRead,       // once: half of the bytes are read
  kReadNothing,     // lasting: end of file
  kFlipBit,         // once, on the file after a write: one bit; parity mends it
  kRuin,            // on the file after each write of the transfer: a bit of every block
};

// Arms a fault for the `nth` transfer (PageStore::write for faults of writing, read for those of
// reading; zero-byte values transfer nothing) from now on, 1 being the next. It replaces the fault
// that was armed before; kNone disarms. For tests only; process-wide, thread-safe.
POET_API void injectStoreFault(StoreFault fault, int64_t nth = 1);
// How often the armed fault has struck since it was armed.
POET_API int64_t storeFaultsStruck();

namespace store {

enum class Transfer { kRead, kWrite };

void beginTransfer(Transfer transfer);
// The fault that strikes the transfer's next system call. Drawn where requests are submitted, so
// that it does not depend on which of them is carried out first.
StoreFault drawFault(Transfer transfer);
// As pwrite(2) and pread(2), struck by `fault`.
ssize_t writeAt(int fd, const std::byte* data, size_t bytes, int64_t offset, StoreFault fault);
ssize_t readAt(int fd, std::byte* data, size_t bytes, int64_t offset, StoreFault fault);
// 0 or -1 with errno, as fallocate(2).
int allocateAt(int fd, int64_t offset, int64_t bytes);

}  // namespace store
}  // namespace poet
