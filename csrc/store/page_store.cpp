#include "store/page_store.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include "store/file_store.h"

namespace poet {
namespace {

constexpr int64_t kRateBytes = 16 << 20;    // of a value that shows the rate
constexpr int64_t kLatencyBytes = 4 << 10;  // of a value that shows the latency
constexpr size_t kFewestSamples = 3;
constexpr double kShareOfLatency = 0.2;  // of the time for measuring

std::vector<std::string> defaultDirectories() {
  std::vector<std::string> directories;
  const char* const from_environment = std::getenv("TMPDIR");
  if (from_environment != nullptr && *from_environment != '\0') {
    directories.emplace_back(from_environment);
  }
  directories.insert(directories.end(), {"/var/tmp", "/tmp"});
  return directories;
}

// The first of the system's directories that lies on a disk.
std::unique_ptr<PageStore> openDefault() {
  std::string reasons;
  for (const std::string& directory : defaultDirectories()) {
    try {
      return std::make_unique<store::FileStore>(directory);
    } catch (const ArgumentError& error) {
      reasons += detail::message("\n  ", error.what());
    }
  }
  throw ArgumentError(detail::message(
      "page_dir: none of the system's directories for temporary files can take paged values. Pass "
      "page_dir= a directory on a disk that you can write to.",
      reasons));
}

struct Samples {
  std::vector<double> write_seconds;
  std::vector<double> read_seconds;
};

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Values of `bytes` to the file and back for about `seconds`. The counters hold the times.
Samples sample(PageStore& store, std::vector<std::byte>& value, int64_t bytes, double seconds) {
  Samples samples;
  for (double used = 0; used < seconds || samples.read_seconds.size() < kFewestSamples;) {
    const StoreCounters before = store.counters();
    const int64_t slot = store.write(value.data(), bytes);
    store.read(slot, value.data());
    store.release(slot);
    const StoreCounters& after = store.counters();
    samples.write_seconds.push_back(after.write_seconds - before.write_seconds);
    samples.read_seconds.push_back(after.read_seconds - before.read_seconds);
    used += samples.write_seconds.back() + samples.read_seconds.back();
  }
  return samples;
}

// The latency is in the long value's time too.
double rate(std::vector<double>& seconds, double latency) {
  const double total = median(seconds);
  return static_cast<double>(kRateBytes) / std::max(total - latency, total / 2);
}

}  // namespace

std::unique_ptr<PageStore> PageStore::open(const std::string& directory) {
  if (directory.empty()) return openDefault();
  return std::make_unique<store::FileStore>(directory);
}

void PageStore::beginWrite(const void* data, int64_t bytes, PageTransfer& transfer) {
  try {
    transfer.slot = write(data, bytes);
  } catch (...) {
    transfer.error = std::current_exception();
  }
  transfer.is_over = true;
}

void PageStore::beginRead(int64_t slot, void* data, PageTransfer& transfer) {
  try {
    read(slot, data);
    transfer.slot = slot;
  } catch (...) {
    transfer.error = std::current_exception();
  }
  transfer.is_over = true;
}

StoreSpeed measureStore(const std::string& directory, double seconds) {
  POET_CHECK(seconds > 0, "measureStore: expected seconds > 0, got ", seconds);
  const std::unique_ptr<PageStore> store = PageStore::open(directory);
  store->reserve(kRateBytes);
  std::vector<std::byte> value(static_cast<size_t>(kRateBytes), std::byte{0x5A});
  Samples longer = sample(*store, value, kRateBytes, seconds * (1 - kShareOfLatency));
  Samples shorter = sample(*store, value, kLatencyBytes, seconds * kShareOfLatency);
  StoreSpeed speed;
  speed.read_latency_seconds = median(shorter.read_seconds);
  speed.write_latency_seconds = median(shorter.write_seconds);
  speed.read_rate = rate(longer.read_seconds, speed.read_latency_seconds);
  speed.write_rate = rate(longer.write_seconds, speed.write_latency_seconds);
  return speed;
}

}  // namespace poet
