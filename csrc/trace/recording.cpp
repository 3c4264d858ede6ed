#include "trace/recording.h"

#include "graph/heap_bytes.h"

namespace poet {

int64_t Recording::ownBytes() const {
  return static_cast<int64_t>(sizeof(*this)) + heapBytes(ops) + (slots ? slots->ownBytes() : 0) +
         heapBytes(prefix_hash) + heapBytes(dead_after) + heapBytes(dead_begin) +
         heapBytes(first_shown) + heapBytes(first_offset) + heapBytes(sharing) +
         heapBytes(outside) + heapBytes(parameters) + heapBytes(untouched_bytes);
}

}  // namespace poet
