#include "trace/native_writes.h"

#include <ATen/Config.h>
#include <ATen/Parallel.h>
#include <c10/util/FunctionRef.h>

#include <algorithm>
#include <atomic>

#include "trace/content_hash.h"

namespace poet {
namespace {

bool isAway(const c10::StorageImpl& storage) {
  return const_cast<c10::StorageImpl&>(storage)._mutable_data_ptr_no_checks().get() == nullptr;
}

// Null where there is nothing to look at: it is away, or an accelerator's.
const char* dataOf(const c10::StorageImpl& storage) {
  auto& own = const_cast<c10::StorageImpl&>(storage);
  if (!own.device().is_cpu()) return nullptr;
  return static_cast<const char*>(own._mutable_data_ptr_no_checks().get());
}

// As kernels do it, on the threads that they use: where many cores compute, one that hashes what
// they made would take longer than they. An OpenMP team belongs to the thread that starts it, so
// nobody else's task can wait in it for what this thread holds.
void forEachChunk(int64_t first, int64_t last, c10::function_ref<void(int64_t)> what) {
  const auto run = [&](int64_t from, int64_t to) {
    for (int64_t c = from; c < to; ++c) what(c);
  };
#if AT_PARALLEL_OPENMP
  constexpr int64_t kLeastChunks = 16;  // a thread
  at::parallel_for(first, last, kLeastChunks, run);
#else
  run(first, last);
#endif
}

int64_t bytesOf(const c10::StorageImpl& storage) { return static_cast<int64_t>(storage.nbytes()); }

}  // namespace

uint64_t NativeWrites::hashOf(const c10::StorageImpl& storage) {
  const char* data = dataOf(storage);
  return contentHash(data, data == nullptr ? 0 : storage.nbytes());
}

bool NativeWrites::hasData(const c10::StorageImpl& storage) { return dataOf(storage) != nullptr; }

// All that it may reach, gaps between its rows too.
NativeWrites::Range NativeWrites::rangeOf(const at::Tensor& t) {
  const auto size = static_cast<int64_t>(t.element_size());
  const int64_t begin = t.storage_offset() * size;
  if (t.numel() == 0) return {begin, begin};
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); ++d) last += (t.size(d) - 1) * t.stride(d);
  return {begin, (last + 1) * size};
}

NativeWrites::State& NativeWrites::begin(ValueId v, OpId op) {
  if (!has(v)) states_.resize(static_cast<size_t>(v.index) + 1);
  at(v) = State();
  at(v).op = op;
  at(v).is_unread = true;
  return at(v);
}

void NativeWrites::noteMade(ValueId v, const at::Tensor& t, OpId op, bool unwritten) {
  const c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
  if (storage.nbytes() == 0 || isAway(storage)) return;
  State& state = begin(v, op);
  state.is_unfilled = unwritten;
  if (!unwritten) watch(state, storage, {0, bytesOf(storage)});
}

void NativeWrites::noteUnwritten(ValueId v, OpId op) { begin(v, op).is_unfilled = true; }

void NativeWrites::watch(State& state, const c10::StorageImpl& storage, Range range) {
  const char* data = dataOf(storage);
  const int64_t size = bytesOf(storage);
  range.end = std::min(range.end, size);
  if (state.gave_up || data == nullptr || range.begin >= range.end) return;
  state.looked_at += range.end - range.begin;
  if (state.looked_at > kMostPasses * (size + kChunkBytes)) state.gave_up = true;
  const auto chunks = static_cast<size_t>((size + kChunkBytes - 1) / kChunkBytes);
  if (state.chunks.size() < chunks) state.chunks.resize(chunks, 0);
  const int64_t last = (range.end + kChunkBytes - 1) / kChunkBytes;
  forEachChunk(range.begin / kChunkBytes, last, [&](int64_t c) {
    const int64_t begin = c * kChunkBytes;
    const auto bytes = static_cast<size_t>(std::min(kChunkBytes, size - begin));
    state.chunks[static_cast<size_t>(c)] = contentHash(data + begin, bytes) | 1;
  });
}

bool NativeWrites::differs(const State& state, const c10::StorageImpl& storage, size_t chunk) {
  const int64_t begin = static_cast<int64_t>(chunk) * kChunkBytes;
  const char* data = dataOf(storage);
  if (chunk >= state.chunks.size() || state.chunks[chunk] == 0 || data == nullptr ||
      begin >= bytesOf(storage))
    return false;
  const int64_t bytes = std::min(kChunkBytes, bytesOf(storage) - begin);
  return (contentHash(data + begin, static_cast<size_t>(bytes)) | 1) != state.chunks[chunk];
}

bool NativeWrites::wasWritten(ValueId v, const c10::StorageImpl& storage) const {
  if (!isUnread(v)) return false;
  const State& state = at(v);
  std::atomic<bool> native = state.is_unfilled || state.gave_up;
  forEachChunk(0, static_cast<int64_t>(state.chunks.size()), [&](int64_t c) {
    if (!native.load(std::memory_order_relaxed) && differs(state, storage, static_cast<size_t>(c)))
      native.store(true, std::memory_order_relaxed);
  });
  return native;
}

bool NativeWrites::isNativeWhenRead(ValueId v, const c10::StorageImpl& storage) {
  if (!isUnread(v)) return false;
  const bool native = wasWritten(v, storage);
  State& state = at(v);
  std::fill(state.chunks.begin(), state.chunks.end(), 0);
  state.is_unread = state.is_unfilled = false;
  return native;
}

// What is overwritten altogether may have been anybody's.
bool NativeWrites::isNativeWhenFilled(ValueId v, const at::Tensor& t) {
  if (!isUnread(v) || at(v).is_unfilled) return false;
  State& state = at(v);
  const c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
  const Range range = rangeOf(t);
  const bool is_whole = t.is_non_overlapping_and_dense();
  bool native = state.gave_up;
  for (int64_t c = range.begin / kChunkBytes; !native && c * kChunkBytes < range.end; ++c) {
    const int64_t end = std::min((c + 1) * kChunkBytes, bytesOf(storage));
    const bool covers = is_whole && range.begin <= c * kChunkBytes && end <= range.end;
    native = !covers && differs(state, storage, static_cast<size_t>(c));
  }
  return native;
}

void NativeWrites::noteWritten(ValueId v, const at::Tensor& t, OpId op, bool filled) {
  if (t.numel() == 0) return;
  State& state = has(v) ? at(v) : begin(v, op);
  const c10::StorageImpl& storage = *t.storage().unsafeGetStorageImpl();
  const Range range = rangeOf(t);
  if (state.is_unfilled) {
    if (!filled || !t.is_non_overlapping_and_dense() || range.begin > state.filled_until) return;
    state.filled_until = std::max(state.filled_until, range.end);
    if (state.filled_until < bytesOf(storage)) return;
    state.is_unfilled = false;
    watch(state, storage, {0, bytesOf(storage)});
  } else {
    watch(state, storage, range);
  }
  state.op = op;
  state.is_unread = true;
}

}  // namespace poet
