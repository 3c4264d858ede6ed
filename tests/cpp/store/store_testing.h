// What the store's tests share: a directory on a disk, and a way into the file from outside.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "store/io_hooks.h"
#include "store/page_store.h"

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
