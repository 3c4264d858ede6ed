// What the store carries a second, beside the same disk without it:
//
//   store_rates DIRECTORY direct|buffered ring|threads|blocking|best VALUE_BYTES TOTAL_BYTES ROUNDS
//
// Values of one length go to the file and back through a TransferQueue, all asked for at once, as
// a plan that hides transfers has it. In turn with that, as many bytes go to another file and back
// raw: the same system calls on whole MiB, without copies, sums or parity. So do copies in memory:
// as the store packs a value (sums and parity) and unpacks it (sums), and plain ones. The first
// round, in which the files grow, does not count. Prints a JSON object: medians over the rounds, of
// bytes a second and of the ratio to the raw rate in the same round; the shares of cores that the
// process took. benchmarks/store/rates.py runs it beside fio.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "store/aligned_buffer.h"
#include "store/chunks.h"
#include "store/file_store.h"
#include "store/io_engine.h"
#include "store/transfer_queue.h"

namespace {

using poet::TransferQueue;
using poet::store::AlignedBuffer;
using poet::store::FileStore;
using poet::store::IoEngine;
using poet::store::IoPath;
using poet::store::IoRequest;
using poet::store::Transfer;
using Value = std::vector<std::byte>;

constexpr int64_t kRawBytes = 1 << 20;  // of a raw request
constexpr int kRawDepth = 4;

double median(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

template <class Work>
double secondsOf(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double processorSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void fillRandomly(std::byte* data, int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int64_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t word = random();
    std::memcpy(data + at, &word, 8);
  }
}

// The descriptor of this process's file without a name in the directory.
int descriptorIn(const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;
    const std::string target = std::filesystem::read_symlink(entry.path(), error);
    if (target.starts_with(directory)) return std::stoi(entry.path().filename());
  }
  std::fprintf(stderr, "no open file in %s\n", directory.c_str());
  std::exit(1);
}

// Requests of one kind over the beginning of the store's file, kRawDepth at once.
class RawFile {
 public:
  RawFile(const std::string& directory, bool direct, IoPath path, int64_t bytes)
      : fd_(descriptorIn(directory)),
        direct_(direct),
        bytes_(bytes / kRawBytes * kRawBytes),
        buffer_(kRawDepth * kRawBytes),
        engine_(poet::store::openEngine(path, direct, kRawDepth)) {
    fillRandomly(buffer_.data(), buffer_.bytes(), 1);
  }

  double seconds(Transfer kind) {
    return secondsOf([&] {
      IoRequest requests[kRawDepth];
      std::vector<IoRequest*> free;
      for (IoRequest& request : requests) free.push_back(&request);
      for (int64_t at = 0; at < bytes_; at += kRawBytes) {
        if (free.empty()) free.push_back(checked(engine_->take(true)));
        IoRequest* const request = free.back();
        free.pop_back();
        request->kind = kind;
        request->fd = fd_;
        request->direct = direct_;
        request->data = buffer_.data() + (request - requests) * kRawBytes;
        request->bytes = kRawBytes;
        request->offset = at;
        engine_->submit(request);
      }
      while (free.size() < kRawDepth) free.push_back(checked(engine_->take(true)));
    });
  }

 private:
  static IoRequest* checked(IoRequest* request) {
    if (request->answer == request->bytes) return request;
    std::fprintf(stderr, "a raw transfer failed: %ld\n", static_cast<long>(request->answer));
    std::exit(1);
  }

  const int fd_;
  const bool direct_;
  const int64_t bytes_;
  const AlignedBuffer buffer_;
  const std::unique_ptr<IoEngine> engine_;
};

class Values {
 public:
  Values(const std::string& directory, bool direct, IoPath path, int64_t bytes, int64_t count)
      : bytes_(bytes), store_(openStore(directory, direct, path)), queue_(store_) {
    for (int64_t i = 0; i < count; ++i) {
      values_.emplace_back(static_cast<size_t>(bytes));
      fillRandomly(values_.back().data(), bytes, static_cast<uint64_t>(i));
    }
    queue_.reserve(bytes * count);
  }

  double seconds(Transfer kind) {
    return secondsOf([&] {
      tickets_.clear();
      for (size_t i = 0; i < values_.size(); ++i) {
        tickets_.push_back(kind == Transfer::kWrite ? queue_.write(values_[i].data(), bytes_)
                                                    : queue_.read(slots_[i], values_[i].data()));
      }
      std::vector<int64_t> slots;
      for (const auto& ticket : tickets_) slots.push_back(queue_.wait(ticket));
      slots_ = std::move(slots);
    });
  }

  void release() {
    for (const int64_t slot : slots_) queue_.release(slot);
  }
  int64_t bufferBytes() const { return store_->bufferBytes(); }

 private:
  static std::shared_ptr<FileStore> openStore(const std::string& directory, bool direct,
                                              IoPath path) {
    poet::store::PipelineOptions options;
    options.direct = direct;
    options.path = path;
    return std::make_shared<FileStore>(directory, options);
  }

  const int64_t bytes_;
  const std::shared_ptr<FileStore> store_;
  TransferQueue queue_;
  std::vector<Value> values_;
  std::vector<TransferQueue::Ticket> tickets_;
  std::vector<int64_t> slots_;
};

struct Rates {
  std::vector<double> rate, raw, ratio;

  void add(double bytes, double seconds, double raw_seconds) {
    rate.push_back(bytes / seconds);
    raw.push_back(bytes / raw_seconds);
    ratio.push_back(raw_seconds / seconds);
  }
  void print(const char* name) const {
    std::printf("\"%s\": %.6g, \"%s_raw\": %.6g, \"%s_ratio\": %.6g, ", name, median(rate), name,
                median(raw), name, median(ratio));
  }
};

// A buffer of the store's, one chunk after the other, as a transfer has them; the values' bytes are
// in memory, not in the caches.
class Copies {
 public:
  explicit Copies(int64_t value_bytes)
      : layout_(value_bytes),
        count_(std::max<int64_t>(1, kBytes / value_bytes)),
        buffer_(layout_.dataBytes()),
        parity_(layout_.parityBytes()),
        values_(static_cast<size_t>(count_), Value(static_cast<size_t>(value_bytes))) {
    for (size_t i = 0; i < values_.size(); ++i)
      fillRandomly(values_[i].data(), value_bytes, static_cast<uint64_t>(i));
  }

  double bytes() const { return static_cast<double>(count_ * layout_.valueBytes()); }
  double packSeconds() {
    return secondsOfEach([this](Value& value, int64_t chunk) {
      sums_ ^=
          poet::store::packChunk(layout_, chunk, 1, value.data(), inBuffer(chunk), parity_.data());
    });
  }
  double unpackSeconds() {
    return secondsOfEach([this](Value& value, int64_t chunk) {
      sums_ ^= poet::store::unpackChunk(layout_, chunk, 1, inBuffer(chunk), value.data());
    });
  }
  double plainSeconds() {
    return secondsOfEach([this](Value& value, int64_t chunk) {
      std::memcpy(inBuffer(chunk), value.data() + layout_.chunkOffset(chunk),
                  static_cast<size_t>(layout_.valueBytesOfChunk(chunk)));
    });
  }
  uint64_t sums() const { return sums_; }  // so that nobody leaves them out

 private:
  static constexpr int64_t kBytes = int64_t{256} << 20;

  std::byte* inBuffer(int64_t chunk) const { return buffer_.data() + layout_.chunkOffset(chunk); }
  template <class Each>
  double secondsOfEach(const Each& each) {
    return secondsOf([&] {
      for (Value& value : values_) {
        for (int64_t chunk = 0; chunk < layout_.chunkCount(); ++chunk) each(value, chunk);
      }
    });
  }

  const poet::store::ChunkLayout layout_;
  const int64_t count_;
  const AlignedBuffer buffer_, parity_;
  std::vector<Value> values_;
  uint64_t sums_ = 0;
};

void measureCopies(int64_t value_bytes, int rounds) {
  Copies copies(value_bytes);
  Rates pack, unpack;
  for (int round = 0; round <= rounds; ++round) {
    const double plain = copies.plainSeconds();
    const double packing = copies.packSeconds();
    const double unpacking = copies.unpackSeconds();
    if (round == 0) continue;
    pack.add(copies.bytes(), packing, plain);
    unpack.add(copies.bytes(), unpacking, plain);
  }
  if (copies.sums() == 0) std::fprintf(stderr, "sums that cancel out\n");
  pack.print("pack");
  unpack.print("unpack");
}

void measure(Values& values, RawFile& raw, double bytes, int rounds) {
  Rates writes, reads;
  double wall = 0, processor = 0, write_seconds = 0, read_seconds = 0;
  const auto carry = [&] {
    const double before = processorSeconds();
    write_seconds = values.seconds(Transfer::kWrite);
    read_seconds = values.seconds(Transfer::kRead);
    processor += processorSeconds() - before;
    wall += write_seconds + read_seconds;
    values.release();
  };
  for (int round = 0; round <= rounds; ++round) {
    if (round % 2 == 0) carry();
    const double raw_write_seconds = raw.seconds(Transfer::kWrite);
    const double raw_read_seconds = raw.seconds(Transfer::kRead);
    if (round % 2 != 0) carry();
    if (round == 0) continue;
    writes.add(bytes, write_seconds, raw_write_seconds);
    reads.add(bytes, read_seconds, raw_read_seconds);
  }
  writes.print("write");
  reads.print("read");
  std::printf("\"cores\": %.4g, \"buffer_bytes\": %ld}\n", processor / wall,
              static_cast<long>(values.bufferBytes()));
}

IoPath pathOf(const std::string& name) {
  if (name == "ring") return IoPath::kRing;
  if (name == "threads") return IoPath::kThreads;
  return name == "blocking" ? IoPath::kBlocking : IoPath::kBest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr,
                 "store_rates DIRECTORY direct|buffered ring|threads|blocking|best VALUE_BYTES "
                 "TOTAL_BYTES ROUNDS\n");
    return 2;
  }
  const bool direct = std::string(argv[2]) == "direct";
  const IoPath path = pathOf(argv[3]);
  const int64_t bytes = std::atoll(argv[4]);
  const int64_t count = std::max<int64_t>(1, std::atoll(argv[5]) / bytes);
  Values values(argv[1], direct, path, bytes, count);
  RawFile raw(argv[1], direct, IoPath::kBest, bytes * count);
  std::printf("{");
  measureCopies(bytes, std::atoi(argv[6]));
  measure(values, raw, static_cast<double>(bytes * count), std::atoi(argv[6]));
}
