// The unnamed file and its transfers. Internal to the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "store/io_engine.h"

namespace poet::store {

// A file without a name, which only its owner can read, and which goes when it is closed. All
// offsets, lengths and addresses are multiples of kBlockBytes.
//
// Note [Past the page cache]
// Direct transfers (O_DIRECT) where the file system has them. Otherwise each write is followed by
// sync_file_range, which waits until the bytes lie on the disk, since only clean pages can be
// dropped, and each transfer by POSIX_FADV_DONTNEED. Some file systems accept O_DIRECT when the
// file is opened and refuse it at the first transfer; that switches over too.
class PageFile {
 public:
  // Throws ArgumentError, naming what to do, as PageStore::open does. `direct` false is for tests.
  explicit PageFile(const std::string& directory, bool direct = true);
  PageFile(const PageFile&) = delete;
  PageFile& operator=(const PageFile&) = delete;
  ~PageFile();

  // Allocates disk space up to `bytes`. Throws StoreError, and nothing has changed.
  void growTo(int64_t bytes);
  // Throws StoreError.
  void write(std::byte* data, int64_t bytes, int64_t offset);
  // Nothing, or why the bytes could not be read.
  std::optional<std::string> read(std::byte* data, int64_t bytes, int64_t offset);

  // In two steps: a request for an engine, and what is to do once it has been answered. Most often
  // that is nothing; after a short or failed attempt these go on, and block.
  IoRequest request(Transfer kind, std::byte* data, int64_t bytes, int64_t offset) const;
  void finishWrite(const IoRequest& request);
  std::optional<std::string> finishRead(const IoRequest& request);

  int64_t bytes() const { return bytes_; }
  bool isDirect() const { return direct_; }
  int64_t retries() const { return retries_; }
  const std::string& directory() const { return directory_; }
  double cachedShare() const;

 private:
  // A system call's answer: whether the loop goes on. Counts failures in a row.
  class Attempts;

  void allocate(int64_t bytes);
  void fillWithZeros(int64_t from, int64_t to);
  void useCache();
  // Attempts until the request is done, the first of which was its answer: 0 or the errno that
  // ended it; -1 where the file takes or gives no more bytes.
  int finish(IoRequest request);
  std::string freeSpace() const;

  std::string directory_;
  int fd_ = -1;
  bool direct_ = false;
  int64_t bytes_ = 0;
  int64_t retries_ = 0;
};

}  // namespace poet::store
