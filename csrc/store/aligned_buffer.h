// Memory for direct transfers. Internal to the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

#include "store/chunks.h"

namespace poet::store {

// Uninitialised bytes that begin at a block's boundary.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t bytes)
      : data_(static_cast<std::byte*>(
            ::operator new (static_cast<size_t>(bytes), std::align_val_t{kBlockBytes}))),
        bytes_(bytes) {}
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  ~AlignedBuffer() { ::operator delete (data_, std::align_val_t{kBlockBytes}); }

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

}  // namespace poet::store
