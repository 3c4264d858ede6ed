#include "runtime/step_undo.h"

#include <ATen/Context.h>

#include <algorithm>
#include <cstring>

namespace poet {

void StepUndo::begin() {
  clear();
  noteGenerator(*at::check_generator<at::CPUGeneratorImpl>(at::detail::getDefaultCPUGenerator()));
}

void StepUndo::noteGenerator(at::CPUGeneratorImpl& generator) {
  const bool known = std::any_of(generators_.begin(), generators_.end(), [&](const auto& one) {
    return one.first.unsafeGetGeneratorImpl() == &generator;
  });
  if (known) return;
  generators_.emplace_back(
      at::Generator(c10::intrusive_ptr<c10::GeneratorImpl>::reclaim_copy(&generator)),
      GeneratorState::of(generator));
}

bool StepUndo::noteWrite(const StorageHold& storage) {
  const bool known = std::any_of(storages_.begin(), storages_.end(), [&](const Saved& one) {
    return one.address == storage.get();  // the weak reference keeps the address from reuse
  });
  if (known) return true;
  const auto bytes = static_cast<int64_t>(storage->nbytes());
  if (saved_bytes_ + bytes > kMostBytes) return false;
  const auto* data = static_cast<const char*>(storage->_mutable_data_ptr_no_checks().get());
  if (data == nullptr && bytes > 0) return false;
  storages_.push_back({WeakStorage(storage), storage.get(), std::vector<char>(data, data + bytes)});
  saved_bytes_ += bytes;
  return true;
}

void StepUndo::undo() {
  for (const Saved& one : storages_) {
    const StorageHold storage = one.storage.lock();
    if (!storage || storage->nbytes() != one.bytes.size()) continue;
    void* const data = storage->_mutable_data_ptr_no_checks().get();
    if (data != nullptr) std::memcpy(data, one.bytes.data(), one.bytes.size());
  }
  for (const auto& [generator, state] : generators_)
    state.putInto(*at::check_generator<at::CPUGeneratorImpl>(generator));
  clear();
}

void StepUndo::clear() {
  storages_.clear();
  generators_.clear();
  saved_bytes_ = 0;
}

}  // namespace poet
