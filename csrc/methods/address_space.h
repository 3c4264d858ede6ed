// AddressSpace: a block of memory in which values have addresses, as a model for policies that look
// at them. No memory is allocated.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

namespace poet::methods {

class AddressSpace {
 public:
  enum class End { kLow, kHigh };

  // Blocks lie side by side, ascending, and fill the space.
  struct Block {
    int64_t start = 0;
    int64_t bytes = 0;
    int owner = kFree;
  };
  static constexpr int kFree = -1;

  explicit AddressSpace(int64_t bytes);

  enum class Fit { kFirst, kBest };  // the first that is large enough, or of those the smallest

  // In that end of a free block, searched for from that end; false where none is large enough. An
  // owner may have several blocks, and has none for no bytes.
  bool allocate(int owner, int64_t bytes, End end, Fit fit = Fit::kFirst);
  // All that the owner has.
  void free(int owner);

  // The owners whose blocks, with the free ones between and beside them, make at least so many
  // bytes that lie side by side, at the least sum of costs; the lowest addresses where several cost
  // the same. Empty where there are none, and where a free block does. `cost_of`: not negative;
  // below 0 for an owner that stays. It is asked for each block, and an owner is named as often as
  // it has blocks in the window.
  std::vector<int> cheapestWindow(int64_t bytes, const std::function<double(int)>& cost_of) const;

  const std::vector<Block>& blocks() const { return blocks_; }
  int64_t bytes() const { return bytes_; }
  int64_t freeBytes() const { return free_bytes_; }
  int64_t largestFree() const;

 private:
  int64_t bytes_ = 0;
  int64_t free_bytes_ = 0;
  std::vector<Block> blocks_;
};

}  // namespace poet::methods
