// What the store's tests share: a directory on a disk, and a way into the file from outside.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "store/io_engine.h"
#include "store/io_hooks.h"
#include "store/page_store.h"
#include "store/pipeline.h"

namespace poet::store {

using Bytes = std::vector<std::byte>;

inline Bytes randomValue(int64_t bytes, uint64_t seed) {
  std::mt19937_64 random(seed);
  Bytes value(static_cast<size_t>(bytes));
  for (size_t at = 0; at < value.size(); at += 8) {
    const uint64_t word = random();
    std::memcpy(value.data() + at, &word, std::min<size_t>(8, value.size() - at));
  }
  return value;
}

inline Bytes readBack(PageStore& store, int64_t slot) {
  Bytes value(static_cast<size_t>(store.bytesOf(slot)), std::byte{0xEE});
  store.read(slot, value.data());
  return value;
}

inline int64_t writeValue(PageStore& store, const Bytes& value) {
  return store.write(value.data(), static_cast<int64_t>(value.size()));
}

// A directory of the test's own, where the default of PageStore lies; no fault outlives a test.
class StoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = PageStore::open("")->directory() + "/poet-store-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr) << std::strerror(errno);
    directory_ = name;
  }
  void TearDown() override {
    injectStoreFault(StoreFault::kNone);
    std::filesystem::remove_all(directory_);
  }

  // The descriptor through which the store holds its file.
  int storeDescriptor() const {
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(entry.path(), error);
      if (target.starts_with(directory_)) return std::stoi(entry.path().filename());
    }
    ADD_FAILURE() << "no open file in " << directory_;
    return -1;
  }

  // Another descriptor of the same file, through the page cache: what a stranger would have.
  int openFromOutside() const {
    return ::open(("/proc/self/fd/" + std::to_string(storeDescriptor())).c_str(),
                  O_RDWR | O_CLOEXEC);
  }

  void flipBitFromOutside(int64_t bit) const {
    const int fd = openFromOutside();
    ASSERT_GE(fd, 0);
    unsigned char byte = 0;
    ASSERT_EQ(::pread(fd, &byte, 1, bit / 8), 1);
    byte ^= static_cast<unsigned char>(1 << bit % 8);
    ASSERT_EQ(::pwrite(fd, &byte, 1, bit / 8), 1);
    ASSERT_EQ(::fsync(fd), 0);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
  }

  std::string directory_;
};

// ------------------------------------------------------------------------------------------------
// ways in which requests are carried out

// An engine that gives requests back in any order, each after a delay.
class UnrulyEngine final : public IoEngine {
 public:
  UnrulyEngine(uint64_t seed, std::chrono::microseconds delay) : random_(seed), delay_(delay) {}

  IoRequest* take(bool waits) override {
    if (!waits || over_.empty()) return nullptr;  // so that as many as possible are under way
    std::this_thread::sleep_for(delay_);
    std::swap(over_[random_() % over_.size()], over_.back());
    IoRequest* const request = over_.back();
    over_.pop_back();
    return request;
  }
  IoPath path() const override { return IoPath::kBlocking; }

 protected:
  void begin(IoRequest* request) override {
    request->answer = carryOut(*request);
    over_.push_back(request);
  }

 private:
  std::minstd_rand random_;
  const std::chrono::microseconds delay_;
  std::vector<IoRequest*> over_;
};

struct Way {
  const char* name;
  PipelineOptions options;
};
// GoogleTest prints the bytes of what it does not know, and those between two members are nobody's.
inline void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

// Every way: the kernel's ring, threads, a file without O_DIRECT, and answers in any order.
inline std::vector<Way> everyWay() {
  const auto unruly = [](int) {
    return std::make_unique<UnrulyEngine>(7, std::chrono::microseconds(50));
  };
  return {{"Ring", {.path = IoPath::kRing}},
          {"Threads", {.path = IoPath::kThreads}},
          {"Blocking", {.path = IoPath::kBlocking}},
          {"Buffered", {.direct = false}},
          {"Unruly", {.engine = unruly}}};
}

// Skips in `way` only what this machine has not.
inline bool works(const Way& way) {
  return way.options.path != IoPath::kRing || openEngine(IoPath::kRing, true, 1) != nullptr;
}

// ------------------------------------------------------------------------------------------------
// faults

enum class Outcome { kGoesOn, kThrows };

struct FaultCase {
  StoreFault fault;
  Outcome outcome;
  const char* name;
};
inline void PrintTo(const FaultCase& one, std::ostream* out) { *out << one.name; }

inline constexpr FaultCase kFaultCases[] = {
    {StoreFault::kGrowNoSpace, Outcome::kThrows, "GrowNoSpace"},
    {StoreFault::kWriteNoSpace, Outcome::kThrows, "WriteNoSpace"},
    {StoreFault::kWriteErrorOnce, Outcome::kGoesOn, "WriteErrorOnce"},
    {StoreFault::kWriteError, Outcome::kThrows, "WriteError"},
    {StoreFault::kShortWrite, Outcome::kGoesOn, "ShortWrite"},
    {StoreFault::kReadErrorOnce, Outcome::kGoesOn, "ReadErrorOnce"},
    {StoreFault::kReadError, Outcome::kThrows, "ReadError"},
    {StoreFault::kShortRead, Outcome::kGoesOn, "ShortRead"},
    {StoreFault::kReadNothing, Outcome::kThrows, "ReadNothing"},
    {StoreFault::kFlipBit, Outcome::kGoesOn, "FlipBit"},
    {StoreFault::kRuin, Outcome::kThrows, "Ruin"}};

// A fault, and a way in which requests are carried out.
using FaultOnWay = std::tuple<FaultCase, Way>;

inline auto everyFaultOnEveryWay() {
  return ::testing::Combine(::testing::ValuesIn(kFaultCases), ::testing::ValuesIn(everyWay()));
}

inline std::string nameOf(const ::testing::TestParamInfo<FaultOnWay>& run) {
  return std::string(std::get<0>(run.param).name) + "On" + std::get<1>(run.param).name;
}

// The message of the StoreError that `call` throws.
template <class Call>
std::string storeErrorOf(Call&& call) {
  try {
    std::forward<Call>(call)();
  } catch (const StoreError& error) {
    return error.what();
  }
  ADD_FAILURE() << "no StoreError";
  return "";
}

}  // namespace poet::store
