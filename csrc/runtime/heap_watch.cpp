#include "runtime/heap_watch.h"

#include <malloc.h>
#include <time.h>

#include <algorithm>

namespace poet {
namespace {

// Of this thread: what others do on the processor meanwhile is not what asking costs.
std::chrono::nanoseconds processorTime() {
  struct timespec time {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace

int64_t HeapWatch::inUse() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const std::chrono::nanoseconds start = processorTime();
  const struct mallinfo2 heap = mallinfo2();
  next_time_ = Clock::now() + part_of_time_ * (processorTime() - start);
  return static_cast<int64_t>(heap.uordblks + heap.hblkhd);
#else
  return 0;
#endif
}

bool HeapWatch::hasGrownBy(int64_t bytes) {
  if (Clock::now() < next_time_) return false;
  const int64_t now = inUse();
  if (counted_ < 0) counted_ = now;
  grown_ = now - counted_;
  return has_asked_ = grown_ >= bytes + other_growth_;
}

void HeapWatch::noteCount(bool more) {
  counted_ = more ? inUse() : std::max(counted_, inUse());
  if (has_asked_) other_growth_ = more ? other_growth_ / 2 : std::max(2 * other_growth_, grown_);
  has_asked_ = false;
}

}  // namespace poet
