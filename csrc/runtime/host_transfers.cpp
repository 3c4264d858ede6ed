// See Note [Pinned memory of the host].
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

#include "graph/error.h"
#include "runtime/transfers.h"
#include "trace/accelerator.h"
#include "trace/dispatch_key.h"

namespace poet {
namespace {

// The copies are poet's own ops: nobody hears or differentiates them.
struct UnheardGuard {
  c10::impl::ExcludeDispatchKeyGuard not_heard{kListeningKey};
  at::AutoDispatchBelowADInplaceOrView below_autograd;
};

class HostTransfers final : public Transfers {
 public:
  explicit HostTransfers(c10::Device device)
      : device_(device),
        out_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)),
        in_(c10::impl::VirtualGuardImpl(device.type()).getNewStream(device)) {}

  Ticket write(void* data, int64_t bytes) override {
    auto transfer = std::make_shared<Transfer>();
    try {
      const UnheardGuard unheard;
      auto slot = std::make_shared<Slot>();
      slot->bytes = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(true));
      waitForTheStep(out_);
      copy(slot->bytes, onDevice(data, bytes), out_);
      slot->written = std::make_shared<c10::Event>(device_.type());
      slot->written->record(out_);
      transfer->done = slot->written;
      transfer->slot = next_++;
      slots_[transfer->slot] = std::move(slot);
      ++counters_.writes;
      counters_.written_bytes += bytes;
    } catch (const std::exception& error) {
      transfer->error = error.what();
    }
    return transfer;
  }

  Ticket read(int64_t number, void* data) override {
    auto transfer = std::make_shared<Transfer>();
    transfer->slot = number;
    try {
      const UnheardGuard unheard;
      const Slot& slot = *slots_.at(number);
      waitForTheStep(in_);
      slot.written->block(in_);
      copy(onDevice(data, slot.bytes.numel()), slot.bytes, in_);
      transfer->done = std::make_shared<c10::Event>(device_.type());
      transfer->done->record(in_);
      ++counters_.reads;
      counters_.read_bytes += slot.bytes.numel();
    } catch (const std::exception& error) {
      transfer->error = error.what();
    }
    return transfer;
  }

  int64_t wait(const Ticket& ticket) override {
    const auto& transfer = *static_cast<const Transfer*>(ticket.get());
    if (!transfer.error.empty()) {
      throw StoreError(detail::message("poet cannot move a value between ", device_.str(),
                                       " and pinned memory of the host: ", transfer.error));
    }
    transfer.done->block(stepStream());
    return transfer.slot;
  }

  // A copy that a stream has been given cannot be taken back: what comes next waits for it.
  void cancel(const Ticket& ticket) override {
    const auto& transfer = *static_cast<const Transfer*>(ticket.get());
    if (transfer.done) transfer.done->block(stepStream());
  }

  void release(int64_t slot) override { slots_.erase(slot); }
  void reserve(int64_t /*bytes*/) override {}  // pinned when it is needed
  StoreCounters counters() override { return counters_; }

 private:
  struct Slot {
    at::Tensor bytes;
    std::shared_ptr<c10::Event> written;
  };
  struct Transfer {
    int64_t slot = -1;
    std::shared_ptr<c10::Event> done;
    std::string error;  // that kept it from beginning
  };

  c10::Stream stepStream() const { return Accelerator(device_).currentStream(); }

  void waitForTheStep(const c10::Stream& stream) const {
    c10::Event now(device_.type());
    now.record(stepStream());
    now.block(stream);
  }

  at::Tensor onDevice(void* data, int64_t bytes) const {
    const auto options = at::TensorOptions().dtype(at::kByte).device(device_);
    return at::for_blob(data, {bytes}).options(options).target_device(device_).make_tensor();
  }

  static void copy(const at::Tensor& to, const at::Tensor& from, const c10::Stream& on) {
    const c10::StreamGuard guard(on);
    to.copy_(from, /*non_blocking=*/true);
  }

  c10::Device device_;
  c10::Stream out_, in_;
  std::unordered_map<int64_t, std::shared_ptr<Slot>> slots_;
  int64_t next_ = 0;
  StoreCounters counters_;
};

}  // namespace

std::unique_ptr<Transfers> transfersToHost(c10::Device device) {
  return std::make_unique<HostTransfers>(device);
}

StoreSpeed measureTransfersToHost(c10::Device device) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int kTimes = 4;  // the first pins its memory
  const UnheardGuard unheard;
  const Accelerator accelerator(device);
  const at::Tensor data = at::empty({kBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  const auto seconds_of = [&](auto&& transfer) {
    accelerator.synchronize();
    const auto start = std::chrono::steady_clock::now();
    transfer();
    accelerator.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  HostTransfers transfers(device);
  double out = 1e9, in = 1e9;
  for (int i = 0; i < kTimes; ++i) {
    int64_t slot = -1;
    out = std::min(out, seconds_of([&] {
                     slot = transfers.wait(transfers.write(data.mutable_data_ptr(), kBytes));
                   }));
    in = std::min(
        in, seconds_of([&] { transfers.wait(transfers.read(slot, data.mutable_data_ptr())); }));
    transfers.release(slot);
  }
  StoreSpeed speed;
  speed.write_rate = static_cast<double>(kBytes) / out;
  speed.read_rate = static_cast<double>(kBytes) / in;
  speed.write_latency_seconds = speed.read_latency_seconds = 20e-6;  // of a launch and an event
  return speed;
}

}  // namespace poet
