#include "store/uring_engine.h"

#ifndef POET_HAVE_LIBURING

namespace poet::store {

std::unique_ptr<IoEngine> openUringEngine(int /*depth*/) { return nullptr; }

}  // namespace poet::store

#else

#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <deque>
#include <thread>

namespace poet::store {
namespace {

constexpr std::chrono::milliseconds kPause{1};

// What the kernel would not take from us is carried out on the caller's thread. So is what a fault
// strikes, and what needs more than one system call.
class UringEngine final : public IoEngine {
 public:
  ~UringEngine() override {
    if (works_) ::io_uring_queue_exit(&ring_);
  }

  // Whether there is such a ring, with the two operations that are wanted.
  bool open(int depth) {
    if (::io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0) != 0) return false;
    works_ = true;
    io_uring_probe* const probe = ::io_uring_get_probe_ring(&ring_);
    if (probe == nullptr) return false;
    const bool knows = ::io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                       ::io_uring_opcode_supported(probe, IORING_OP_WRITE) != 0;
    ::io_uring_free_probe(probe);
    return knows;
  }

  IoRequest* take(bool waits) override {
    if (!over_.empty()) {
      IoRequest* const request = over_.front();
      over_.pop_front();
      return request;
    }
    for (;;) {
      io_uring_cqe* entry = nullptr;
      const int error =
          waits ? ::io_uring_wait_cqe(&ring_, &entry) : ::io_uring_peek_cqe(&ring_, &entry);
      if (error == 0) {
        auto* const request = static_cast<IoRequest*>(::io_uring_cqe_get_data(entry));
        const int answer = entry->res;
        ::io_uring_cqe_seen(&ring_, entry);
        if (request == nullptr) continue;  // see begin()
        request->answer = answer;
        return request;
      }
      if (!waits) return nullptr;
      // Somebody has closed the ring's descriptor, say. What is under way still arrives.
      if (error != -EINTR) std::this_thread::sleep_for(kPause);
    }
  }
  IoPath path() const override { return IoPath::kRing; }

 protected:
  void begin(IoRequest* request) override {
    io_uring_sqe* const entry = request->fault == StoreFault::kNone && request->direct
                                    ? ::io_uring_get_sqe(&ring_)
                                    : nullptr;
    if (entry == nullptr) return carryOutHere(request);
    const auto bytes = static_cast<unsigned>(request->bytes);
    const auto offset = static_cast<uint64_t>(request->offset);
    if (request->kind == Transfer::kWrite) {
      ::io_uring_prep_write(entry, request->fd, request->data, bytes, offset);
      // On a thread of the kernel: handing a write to the disk takes as long as half of a part's
      // copy, which goes on meanwhile. docs/store.md has what that gave, and that reads lost by it.
      ::io_uring_sqe_set_flags(entry, IOSQE_ASYNC);
    } else {
      ::io_uring_prep_read(entry, request->fd, request->data, bytes, offset);
    }
    ::io_uring_sqe_set_data(entry, request);
    int submitted = 0;
    do {
      submitted = ::io_uring_submit(&ring_);
    } while (submitted == -EINTR);
    if (submitted > 0) return;
    // The entry stays in the ring and goes with the next one: as nothing.
    ::io_uring_prep_nop(entry);
    ::io_uring_sqe_set_data(entry, nullptr);
    carryOutHere(request);
  }

 private:
  void carryOutHere(IoRequest* request) {
    request->answer = carryOut(*request);
    over_.push_back(request);
  }

  io_uring ring_{};
  bool works_ = false;
  std::deque<IoRequest*> over_;
};

}  // namespace

std::unique_ptr<IoEngine> openUringEngine(int depth) {
  auto engine = std::make_unique<UringEngine>();
  if (!engine->open(depth)) return nullptr;
  return engine;
}

}  // namespace poet::store

#endif
