#include <utility>

#include "runtime/transfers.h"
#include "store/transfer_queue.h"

namespace poet {
namespace {

class FileTransfers final : public Transfers {
 public:
  explicit FileTransfers(std::shared_ptr<PageStore> store) : queue_(std::move(store)) {}

  Ticket write(void* data, int64_t bytes) override { return queue_.write(data, bytes); }
  Ticket read(int64_t slot, void* data) override { return queue_.read(slot, data); }
  int64_t wait(const Ticket& ticket) override {
    return queue_.wait(std::static_pointer_cast<TransferQueue::Transfer>(ticket));
  }
  void cancel(const Ticket& ticket) override {
    queue_.cancel(std::static_pointer_cast<TransferQueue::Transfer>(ticket));
  }
  void release(int64_t slot) override { queue_.release(slot); }
  void reserve(int64_t bytes) override { queue_.reserve(bytes); }
  StoreCounters counters() override { return queue_.counters(); }
  int64_t bufferBytes() const override { return queue_.bufferBytes(); }

 private:
  TransferQueue queue_;
};

}  // namespace

std::unique_ptr<Transfers> transfersToFile(std::shared_ptr<PageStore> store) {
  return std::make_unique<FileTransfers>(std::move(store));
}

}  // namespace poet
