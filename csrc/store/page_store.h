// PageStore: the unnamed file that paged values go to. No torch header.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>

#include "graph/error.h"
#include "graph/export.h"

namespace poet {

// The store could not take or give back a value: disk full, an I/O error, damaged bytes. Python:
// poet.StoreError (a RuntimeError). The message names the directory and the cause.
class POET_API StoreError : public Error {
 public:
  using Error::Error;
};

struct StoreCounters {
  int64_t writes = 0;
  int64_t reads = 0;
  int64_t written_bytes = 0;    // of values, padding and parity left out
  int64_t read_bytes = 0;       // likewise
  int64_t repaired_chunks = 0;  // damaged on the file and rebuilt from parity
  int64_t retries = 0;          // transfers that failed and then succeeded
  double write_seconds = 0;     // in which one write or more was under way
  double read_seconds = 0;      // likewise
};

// A transfer that a store has begun. It must stay where it is until it is over.
struct PageTransfer {
  int64_t slot = -1;         // once it is over, without an error
  std::exception_ptr error;  // what ended it
  bool is_over = false;
  // Another thread may set it: nobody wants the transfer any more. It is over sooner then, with a
  // StoreError, unless all of it was done by that time.
  std::atomic<bool> is_cancelled = false;
};

// What was measured of a directory, in the way in which PageStore transfers.
struct StoreSpeed {
  double read_rate = 0;  // bytes a second
  double write_rate = 0;
  double read_latency_seconds = 0;
  double write_latency_seconds = 0;
};

// One file a store. Bytes leave RAM: transfers go past the page cache (O_DIRECT through a bounded,
// aligned buffer; where the file system refuses that, buffered with sync_file_range and
// POSIX_FADV_DONTNEED). Not thread-safe. write() and read() block; TransferQueue does them beside
// the caller.
//
// Note [Damage]
// Every chunk carries a checksum, which is checked on each read, and every slot one more chunk of
// parity: a slot with one damaged chunk is repaired (and counted). What cannot be repaired is a
// StoreError, and never silent.
class POET_API PageStore {
 public:
  // Creates the file (mode 0600, no name: O_TMPFILE, or unlinked at once). Empty: the system's
  // directory for temporary files ($TMPDIR, else /var/tmp, else /tmp). Throws ArgumentError where
  // the directory does not exist, cannot be written to, or lies in RAM (tmpfs, ramfs), saying what
  // to do.
  static std::unique_ptr<PageStore> open(const std::string& directory);
  virtual ~PageStore() = default;

  // Disk space for `bytes` more than are in use is allocated now: a full disk shows here and not
  // at a transfer. Padding and parity are allowed for, for values of 64 KiB and more. Throws
  // StoreError, and nothing has changed.
  virtual void reserve(int64_t bytes) = 0;
  // Copies the bytes to the file; returns the slot, >= 0. Zero bytes are fine. Throws StoreError,
  // and nothing has changed: the caller still has the bytes.
  virtual int64_t write(const void* data, int64_t bytes) = 0;
  // Copies the slot's bytes to `data` (as many as were written). The slot stays. Throws StoreError.
  virtual void read(int64_t slot, void* data) = 0;
  // Gives the slot's place in the file back for other values, after the reads of it under way.
  virtual void release(int64_t slot) = 0;

  // As write() and read(), but for that they only begin it, and throw nothing: `transfer` is told.
  // The memory must stay, unchanged, until it is over. Transfers may be over in another order than
  // they were begun in. A store that cannot have several under way carries it out at once.
  virtual void beginWrite(const void* data, int64_t bytes, PageTransfer& transfer);
  virtual void beginRead(int64_t slot, void* data, PageTransfer& transfer);
  // Whether one more could begin without waiting for those under way.
  virtual bool takesMore() const { return true; }
  // Sleeps until there is something to do for those under way, and does it. Nothing goes on by
  // itself: call it until they are over.
  virtual void advance() {}

  virtual int64_t bytesOf(int64_t slot) const = 0;
  virtual int64_t slotsInUse() const = 0;
  // Memory of the store's own: buffers, parity, checksums.
  virtual int64_t bufferBytes() const = 0;
  // Share of the file's pages that the page cache holds (mincore), 0 to 1.
  virtual double cachedShare() const = 0;
  virtual const StoreCounters& counters() const = 0;
  virtual const std::string& directory() const = 0;
};

// Writes and reads a scratch file in the directory for about `seconds`. Throws as PageStore::open
// and reserve do.
POET_API StoreSpeed measureStore(const std::string& directory, double seconds = 1.0);

}  // namespace poet
