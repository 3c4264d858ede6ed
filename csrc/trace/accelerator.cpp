#include "trace/accelerator.h"

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstring>
#include <mutex>
#include <utility>

namespace poet {
namespace {

// StatType::AGGREGATE: of small and large blocks together.
constexpr size_t kOfAll = 0;

}  // namespace

void Accelerator::synchronize() const {
  c10::impl::VirtualGuardImpl(device_.type()).synchronizeDevice(device_.index());
}

c10::Stream Accelerator::currentStream() const {
  return c10::impl::VirtualGuardImpl(device_.type()).getStream(device_);
}

at::Generator Accelerator::defaultGenerator() const {
  return at::globalContext().defaultGenerator(device_);
}

Accelerator::Memory Accelerator::memory() const {
  const auto stats = c10::getDeviceAllocator(device_.type())->getDeviceStats(device_.index());
  return {stats.requested_bytes[kOfAll].current, stats.requested_bytes[kOfAll].peak,
          stats.allocated_bytes[kOfAll].current};
}

void Accelerator::resetMost() const {
  c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

AnyGeneratorState AnyGeneratorState::of(at::Generator generator) {
  AnyGeneratorState made;
  {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    made.state_ = generator.get_state();
  }
  made.generator_ = std::move(generator);
  return made;
}

void AnyGeneratorState::restore() const {
  at::Generator generator = generator_;
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state_);
}

bool operator==(const AnyGeneratorState& a, const AnyGeneratorState& b) {
  return a.generator_ == b.generator_ && a.state_.nbytes() == b.state_.nbytes() &&
         std::memcmp(a.state_.const_data_ptr(), b.state_.const_data_ptr(), a.state_.nbytes()) == 0;
}

}  // namespace poet
