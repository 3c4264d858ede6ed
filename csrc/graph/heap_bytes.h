// What containers take of the heap: capacities, and the header that malloc puts before a block.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace poet {

inline constexpr int64_t kBlockHeaderBytes = 16;  // glibc's header, and on average its rounding

inline int64_t heapBlock(size_t bytes) {
  return bytes == 0 ? 0 : static_cast<int64_t>(bytes) + kBlockHeaderBytes;
}

inline int64_t heapBytes(const std::string& text) {
  const bool is_inside = text.capacity() < sizeof(std::string) / 2;  // no block of its own
  return is_inside ? 0 : heapBlock(text.capacity() + 1);
}

// Of the vector's own block. What its elements have besides is theirs to say: see the next one.
template <class T>
int64_t heapBytes(const std::vector<T>& all) {
  return heapBlock(all.capacity() * sizeof(T));
}
inline int64_t heapBytes(const std::vector<bool>& all) { return heapBlock(all.capacity() / 8); }

// With what `of(element)` says.
template <class T, class Of>
int64_t heapBytes(const std::vector<T>& all, const Of& of) {
  int64_t bytes = heapBlock(all.capacity() * sizeof(T));
  for (const T& one : all) bytes += of(one);
  return bytes;
}

template <class T>
int64_t heapBytes(const std::vector<std::vector<T>>& all) {
  return heapBytes(all, [](const std::vector<T>& one) { return heapBytes(one); });
}

}  // namespace poet
