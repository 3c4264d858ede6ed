// DeviceProfile and the cost model: seconds and joules of an op. Every number carries its source.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// What a step does that costs energy.
struct Usage {
  double busy_seconds = 0;      // ops, first runs and replays
  double makespan_seconds = 0;  // from the start of the step to its end
  double store_seconds = 0;     // transfers; with several channels they may overlap and add up
  int64_t wake_ups = 0;         // see DeviceProfile::wake_joules
};

// Powers in watts. Energy of a step = compute_watts * busy seconds
//   + (idle_watts + memory_watts) * makespan + store_watts * store seconds + wake_joules *
//   wake-ups.
// Source of the terms: POET (Patil et al., ICML 2022) section 4 for ops and transfers; idle power,
// memory power and wake-ups are poet's own.
struct POET_API DeviceProfile {
  std::string name;
  double compute_watts = 0;
  double idle_watts = 0;
  double memory_watts = 0;
  double store_watts = 0;
  // A replayed op costs replay_factor * recorded seconds + replay_fixed_seconds: caches are cold
  // and memory is fresh.
  double replay_factor = 1;
  double replay_fixed_seconds = 0;
  // Bytes that must be kept for a random op which is replayed in the step: the state of its
  // generator.
  int64_t generator_state_bytes = 5056;
  // Secondary storage. Rates in bytes a second; 0: the device has no store, and nothing is paged.
  double store_read_rate = 0;
  double store_write_rate = 0;
  double store_read_latency_seconds = 0;
  double store_write_latency_seconds = 0;
  // A store that is switched off while unused (SD card, DMA engine) pays this each time it wakes
  // up: once for every gap between two first executions of ops in which a transfer starts.
  double wake_joules = 0;
  // 0: a transfer blocks computation. n: up to n transfers run beside ops and beside each other.
  int dma_channels = 0;
  static constexpr int kMaxDmaChannels = 1024;
  static constexpr int64_t kMaxGeneratorStateBytes = int64_t{1} << 30;
  // What the device has, for budgets that nobody gave; 0: unknown.
  int64_t ram_bytes = 0;
  int64_t flash_bytes = 0;  // of its secondary storage
  // How fast it computes, in flops a second by class of op (graph/op_class.h), and how fast it
  // reads and writes its memory, in bytes a second (0: never what limits an op). 0 flops a second:
  // the times of a recorded step are this device's own (device/retarget.h).
  double convolution_rate = 0;
  double matmul_rate = 0;
  double elementwise_rate = 0;
  double memory_rate = 0;
  double op_overhead_seconds = 0;  // of starting any op
  // It carries the plan out itself, without PyTorch: kernels need no workspace, and nothing but the
  // plan holds a value.
  bool direct_kernels = false;
  std::string energy_source;  // where the watts come from, for the user
  std::string store_source;   // where the rates come from; empty without a store

  // The program's own time beside it is the first execution's alone.
  double firstSeconds(const Op& op) const { return op.seconds + op.host_seconds; }
  double replaySeconds(const Op& op) const {
    return replay_factor * op.seconds + replay_fixed_seconds;
  }
  bool hasRates() const { return convolution_rate > 0 && matmul_rate > 0 && elementwise_rate > 0; }
  bool hasStore() const { return store_read_rate > 0 && store_write_rate > 0; }
  // Throws ArgumentError naming the field that no device has: a power, a cost or a latency that is
  // negative, infinite or no number. simulate() and every way to solve begin with it.
  void check() const;
  // Likewise, and naming what no store has: a rate that is not a positive number.
  void checkStore() const;
  // Only where hasStore().
  double pageInSeconds(int64_t bytes) const {
    return store_read_latency_seconds + static_cast<double>(bytes) / store_read_rate;
  }
  double pageOutSeconds(int64_t bytes) const {
    return store_write_latency_seconds + static_cast<double>(bytes) / store_write_rate;
  }
  double busyWatts() const { return compute_watts; }
  double alwaysWatts() const { return idle_watts + memory_watts; }
  double joules(const Usage& usage) const {
    return compute_watts * usage.busy_seconds + alwaysWatts() * usage.makespan_seconds +
           store_watts * usage.store_seconds + wake_joules * static_cast<double>(usage.wake_ups);
  }

  // One flat object with the fields above by their names. A reader takes the defaults for what is
  // missing, and throws FormatError for what it does not know or what no device has (a negative
  // power or latency ...). Infinity and NaN have no JSON: they are refused by the readers.
  std::string toJson() const;
  static DeviceProfile fromJson(std::string_view text);
  static DeviceProfile load(const std::string& path);  // throws Error, FormatError

  static constexpr int kFormatVersion = 1;
};

// The machine poet runs on, with a stated power model (see device/profile.cpp for the sources).
POET_API DeviceProfile hostProfile();
// "host" is the only name so far. Throws ArgumentError that names what was got and what is known.
POET_API DeviceProfile profileByName(const std::string& name);

}  // namespace poet
