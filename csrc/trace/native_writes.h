// What native code writes into the step's memory while no operator tells of it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <vector>

#include "graph/ids.h"
#include "trace/recording.h"

namespace poet {

// Note [Written by native code]
// An extension fills torch::empty_like through data_ptr; at::tensor(list) is an `empty` and a loop;
// a compiled kernel adds its activation into what a convolution returned. No operator tells of it,
// and an operator that runs again gives the value without it. So
// - what `empty` and kin made is its operators' own only if these have filled all of it, from its
//   start to its end, without reading it, before the first of them reads any of it. What it held
//   before tells nothing: in the same block native code may have left the same bytes a step ago;
// - all else that operators made is compared, when the next operator reads it, with what they had
//   left there.
// Both in steps that are recorded: native code that writes nothing in these, and does so later,
// goes unseen. What native code wrote stays in memory, and what made it never runs again.
//
// The work is in proportion to what the operators themselves write and read, by chunks of a value.
// A value that is written in columns, say, would cost more: beyond kMostPasses over it nobody looks
// any more, and it counts as native code's.
//
// Not thread-safe: the session serializes.
class NativeWrites {
 public:
  static constexpr int64_t kChunkBytes = 64 * 1024;
  static constexpr int64_t kMostPasses = 64;

  // `op` has made the value; `unwritten`: as `empty` does.
  void noteMade(ValueId v, const at::Tensor& t, OpId op, bool unwritten);
  // As noteMade(v, t, op, true), of a step that has departed.
  void noteUnwritten(ValueId v, OpId op);
  // An op is about to read the value, whose data is there. Whether native code has written it since
  // lastWriter(): what that left there is something else.
  bool isNativeWhenRead(ValueId v, const c10::StorageImpl& storage);
  // An op is about to write what `t` shows of the value, without reading it. Likewise.
  bool isNativeWhenFilled(ValueId v, const at::Tensor& t);
  // `op` has written what `t` shows of the value. `filled`: without having read any of it.
  void noteWritten(ValueId v, const at::Tensor& t, OpId op, bool filled);
  // Whether native code may still be about to write it: no operator has read it yet.
  bool isUnread(ValueId v) const { return has(v) && at(v).is_unread; }
  // Whether no operator has filled it yet.
  bool isUnfilled(ValueId v) const { return isUnread(v) && at(v).is_unfilled; }
  // Whether native code has written it since lastWriter(), as far as is watched.
  bool wasWritten(ValueId v, const c10::StorageImpl& storage) const;
  // The last op that made or wrote it.
  OpId lastWriter(ValueId v) const { return at(v).op; }

  static uint64_t hashOf(const c10::StorageImpl& storage);
  static bool hasData(const c10::StorageImpl& storage);  // it is not away

 private:
  struct State {
    OpId op;
    std::vector<uint64_t> chunks;  // hashes of those that are watched; 0: not watched
    int64_t filled_until = 0;      // bytes of what is_unfilled
    int64_t looked_at = 0;         // bytes, in all
    bool is_unread = false;
    bool is_unfilled = false;
    bool gave_up = false;
  };
  struct Range {
    int64_t begin, end;  // bytes
  };
  static Range rangeOf(const at::Tensor& t);
  bool has(ValueId v) const { return static_cast<size_t>(v.index) < states_.size(); }
  State& at(ValueId v) { return states_[static_cast<size_t>(v.index)]; }
  const State& at(ValueId v) const { return states_[static_cast<size_t>(v.index)]; }
  State& begin(ValueId v, OpId op);
  void watch(State& state, const c10::StorageImpl& storage, Range range);
  static bool differs(const State& state, const c10::StorageImpl& storage, size_t chunk);

  std::vector<State> states_;  // by value
};

}  // namespace poet
