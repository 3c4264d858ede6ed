#include "runtime/residency.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>

#include "graph/error.h"
#include "graph/heap_bytes.h"
#include "trace/allocator_tap.h"
#include "trace/torch_compat.h"

namespace poet {
namespace {

constexpr std::string_view kReleased =
    "poet: this tensor's memory has been released for the moment, ";
constexpr std::string_view kNames = " (poet's value ";

// PyTorch shows it to whoever reads the memory of an evicted tensor without going through an
// operator.
std::string accessMessage(ValueId value) {
  return detail::message(
      kReleased,
      "to be recomputed or read back "
      "when a PyTorch operator next needs it, but something read it directly, or on a thread that "
      "poet does not hear. Call poet.keep(tensor) on it first, on the thread that runs the step: "
      "it brings the memory back and keeps it for as long as the tensor lives. tensor.detach(), "
      "or any operator that reads the tensor, brings it back for the moment; a view of it may not. "
      "Where this error ends the step, the memory stays in later calls",
      value.valid() ? detail::message(kNames, value.index, ").") : std::string("."));
}

}  // namespace

bool isRawReadError(const std::string& text) { return text.find(kReleased) != std::string::npos; }

ValueId valueNamedIn(const std::string& text) {
  const size_t at = text.find(kNames);
  if (at == std::string::npos) return kNoValue;
  int32_t index = -1;
  std::from_chars(text.data() + at + kNames.size(), text.data() + text.size(), index);
  return index < 0 ? kNoValue : ValueId(index);
}

void releaseData(c10::StorageImpl& storage, ValueId value) {
  storage.set_data_ptr_noswap(
      c10::DataPtr(nullptr, storage.device()));  // nbytes, strides and everybody's references stay
  storage.release_data_and_set_meta_custom_data_ptr_error_msg_(accessMessage(value));
}

void putBack(c10::StorageImpl& storage, c10::StorageImpl& fresh) {
  POET_INTERNAL_ASSERT(storage.nbytes() == fresh.nbytes(), "a value came back with ",
                       fresh.nbytes(), " bytes instead of ", storage.nbytes());
  clearAccessMessage(storage);
  storage.set_data_ptr_noswap(fresh.set_data_ptr(c10::DataPtr(nullptr, fresh.device())));
}

void Residency::begin(const Graph& graph) {
  clear();
  entries_.resize(graph.values().size());
}

int64_t Residency::ownBytes() const {
  const size_t buckets = value_of_.bucket_count();
  return heapBytes(entries_) + heapBytes(away_) +
         heapBlock(buckets * (sizeof(std::pair<c10::StorageImpl*, ValueId>) + sizeof(void*)));
}

void Residency::clear() {
  entries_.clear();
  away_.clear();
  value_of_.clear();
}

bool Residency::bind(ValueId v, const at::Tensor& t) {
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  const auto [found, is_new] = value_of_.emplace(storage, v);
  if (!is_new && found->second != v) return false;
  Entry& entry = (*this)[v];
  if (entry.presumed) {
    entry.presumed = false;  // a right guess: it may be away
    return true;
  }
  entry.address = storage;
  entry.ref = t.storage().getWeakStorageImpl();
  entry.bound = true;
  entry.resident = true;
  entry.pinned |= handed_out_.has(storage);
  entry.foreign = !AllocatorTap::isFromAllocator(*storage);
  return true;
}

bool Residency::presume(ValueId v, const StorageHold& storage, bool away) {
  Entry& entry = (*this)[v];
  if (entry.bound || !value_of_.emplace(storage.get(), v).second) return false;
  entry.address = storage.get();
  entry.ref = WeakStorage(storage);
  entry.bound = entry.presumed = true;
  entry.resident = !away;
  entry.away = away;
  entry.pinned |= handed_out_.has(storage.get());
  if (away) away_.push_back(v);
  return true;
}

void Residency::unbind(ValueId v) {
  if ((*this)[v].address != nullptr) value_of_.erase((*this)[v].address);
  (*this)[v] = Entry();
}

ValueId Residency::valueOf(c10::StorageImpl* storage) const {
  const auto found = value_of_.find(storage);
  return found == value_of_.end() ? kNoValue : found->second;
}

bool Residency::evict(ValueId v) {
  Entry& entry = (*this)[v];
  const StorageHold storage = entry.ref.lock();
  if (!storage) {
    entry.resident = false;
    return true;
  }
  if (entry.pinned || !AllocatorTap::mayReleaseNow(*storage)) return false;
  releaseData(*storage, v);
  entry.resident = false;
  entry.away = true;
  away_.push_back(v);
  return true;
}

void Residency::install(ValueId v, c10::StorageImpl& fresh, bool hold) {
  Entry& entry = (*this)[v];
  StorageHold storage = entry.ref.lock();
  if (storage) {
    putBack(*storage, fresh);
  } else {
    if (entry.address != nullptr) value_of_.erase(entry.address);
    storage = StorageHold::reclaim_copy(&fresh);
    entry.ref = WeakStorage(storage);
    entry.address = &fresh;
    value_of_[&fresh] = v;
    hold = true;  // nothing else would
  }
  entry.bound = entry.resident = true;
  entry.away = false;
  if (hold) entry.hold = std::move(storage);
}

void Residency::forgetIfDead(ValueId v) {
  Entry& entry = (*this)[v];
  if (entry.hold || !entry.ref.expired()) return;
  if (entry.address != nullptr) value_of_.erase(entry.address);
  entry.ref = noStorage();
  entry.address = nullptr;
  entry.away = false;
}

std::vector<WeakStorage> Residency::weakReferences() const {
  std::vector<WeakStorage> refs;
  refs.reserve(entries_.size());
  for (const Entry& entry : entries_) refs.push_back(entry.ref);
  return refs;
}

const std::vector<ValueId>& Residency::away() {
  std::erase_if(away_, [this](ValueId v) { return !(*this)[v].away; });
  return away_;
}

}  // namespace poet
