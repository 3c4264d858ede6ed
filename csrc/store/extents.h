// Free places in the file, best fit first. Internal to the store.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace poet::store {

struct Extent {
  int64_t offset = 0;
  int64_t bytes = 0;

  int64_t end() const { return offset + bytes; }
  bool operator==(const Extent&) const = default;
};

// Which bytes of a file that only grows are free. Neighbouring free extents are always merged.
class ExtentTable {
 public:
  // Takes `bytes` > 0 out of the smallest free extent that holds them; of equals the lowest.
  std::optional<int64_t> take(int64_t bytes);
  // `extent` is free from now on; it must have been taken, or lie behind the end.
  void giveBack(Extent extent);
  int64_t largestFree() const;
  int64_t freeBytes() const;
  // The free extent at `end`, the end of the file; empty where the last bytes are in use.
  Extent tail(int64_t end) const;

 private:
  std::map<int64_t, int64_t> free_;  // offset -> bytes
};

}  // namespace poet::store
