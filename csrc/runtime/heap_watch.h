// HeapWatch: whether so much more of the C library's heap is in use that tensors may be among it.
#pragma once

#include <chrono>
#include <cstdint>

namespace poet {

// Note [The C library's heap]
// Tensors whose memory came neither from poet's allocator nor by a way that it watches (a C++
// program's torch::Storage; StepArena::bytesInUse() knows the others) lie in malloc's heap beside
// everything else that the program allocates. malloc knows what is in use; to ask takes longer the
// more free pieces there are, and puts them together, so that what is allocated next takes longer,
// too. So it is asked no oftener than makes a twentieth of a percent of the time. Where more was in
// use and no tensors were found, something else comes and goes, or grows: the next time it must be
// by twice as much more. A hint, which costs a count of the tensors that exist; where the C library
// cannot be asked there is none.
class HeapWatch {
 public:
  // To ask takes at most one part of so many of the time; 0: it is asked whenever it might be.
  explicit HeapWatch(int part_of_time = 2000) : part_of_time_(part_of_time) {}

  // Whether at least `bytes` more are in use than at the last count. At a step's start.
  bool hasGrownBy(int64_t bytes);
  // The tensors have been counted; `more`: there were more than were known.
  void noteCount(bool more);

 private:
  using Clock = std::chrono::steady_clock;

  int64_t inUse();

  int part_of_time_;
  int64_t counted_ = -1;      // in use at the last count; -1: there was none
  int64_t grown_ = 0;         // since then
  int64_t other_growth_ = 0;  // by which it has grown without tensors
  bool has_asked_ = false;    // for the count to come
  Clock::time_point next_time_;
};

}  // namespace poet
