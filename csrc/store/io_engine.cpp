#include "store/io_engine.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <deque>

#include "store/thread_engine.h"
#include "store/uring_engine.h"

namespace poet::store {
namespace {

// What a file without O_DIRECT needs besides, so that its bytes leave RAM: 0, or errno.
int dropFromCache(const IoRequest& request, int64_t bytes) {
  if (request.kind == Transfer::kWrite &&
      ::sync_file_range(
          request.fd, request.offset, bytes,
          SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER) != 0) {
    // ENOSYS, EINVAL, ESPIPE: not on this file system.
    if (errno == EIO || errno == ENOSPC || errno == EDQUOT) return errno;
    if (::fdatasync(request.fd) != 0) return errno;
  }
  // The whole file, and not the range: large pages may reach over its ends. What another request
  // is just writing is dirty, and stays.
  ::posix_fadvise(request.fd, 0, 0, POSIX_FADV_DONTNEED);
  return 0;
}

// On the caller's thread, when it is submitted.
class BlockingEngine final : public IoEngine {
 public:
  IoRequest* take(bool /*waits*/) override {
    if (over_.empty()) return nullptr;
    IoRequest* const request = over_.front();
    over_.pop_front();
    return request;
  }
  IoPath path() const override { return IoPath::kBlocking; }

 protected:
  void begin(IoRequest* request) override {
    request->answer = carryOut(*request);
    over_.push_back(request);
  }

 private:
  std::deque<IoRequest*> over_;
};

}  // namespace

int64_t carryOut(const IoRequest& request) {
  const auto bytes = static_cast<size_t>(request.bytes);
  const ssize_t done = request.kind == Transfer::kWrite
                           ? writeAt(request.fd, request.data, bytes, request.offset, request.fault)
                           : readAt(request.fd, request.data, bytes, request.offset, request.fault);
  if (done < 0) return -errno;
  if (request.direct) return done;
  const int error = dropFromCache(request, done);
  return error == 0 ? done : -error;
}

void IoEngine::submit(IoRequest* request) {
  request->fault = drawFault(request->kind);
  begin(request);
}

std::unique_ptr<IoEngine> openEngine(IoPath path, bool direct, int depth) {
  std::unique_ptr<IoEngine> engine;
  if (path == IoPath::kRing || (path == IoPath::kBest && direct)) engine = openUringEngine(depth);
  if (path == IoPath::kThreads || (path == IoPath::kBest && engine == nullptr))
    engine = openThreadEngine(depth);
  if (path == IoPath::kBlocking || (path == IoPath::kBest && engine == nullptr))
    engine = std::make_unique<BlockingEngine>();
  return engine;
}

}  // namespace poet::store
