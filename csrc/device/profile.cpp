#include "device/profile.h"

#include <cmath>

#include "graph/error.h"

namespace poet {

// Note [The host's power model]
// These watts are stated, not measured: few machines let a process read their meters, and a plan
// must not depend on the weather of one afternoon. They are round figures of a laptop-class
// machine:
//   compute  15 W above idle for a busy package: the base power of the 15 W class of mobile
//   processors (their vendors
//            allow 15 to 28 W sustained).
//   idle      5 W for the package and the board while the step lasts, whatever it does.
//   memory    3 W for two DDR4 modules in use (vendors' rule of thumb: about 3 W per 8 GB under
//   load, far less at rest). store     5 W for an NVMe drive that reads or writes (data sheets of
//   consumer drives: 3 to 8 W active).
// Plans of equal time have equal joules under any such model on a machine without overlap; the
// figures decide how recompute and, later, paging trade against each other, and what is printed.
// replay_factor and replay_fixed_seconds: a replayed op finds cold caches and fresh memory. Trials
// on three models saw replays cost 4 to 15 % above the recorded times.
DeviceProfile hostProfile() {
  DeviceProfile host;
  host.name = "host";
  host.compute_watts = 15;
  host.idle_watts = 5;
  host.memory_watts = 3;
  host.store_watts = 5;
  host.replay_factor = 1.07;
  host.replay_fixed_seconds = 2e-6;
  host.generator_state_bytes = 5056;
  host.energy_source =
      "stated power model (laptop-class CPU: 15 W compute, 5 W idle, 3 W memory, 5 W store), not "
      "measured";
  return host;
}

namespace {

void checkNumber(const DeviceProfile& profile, const char* field, double number, bool may_be_zero) {
  POET_CHECK(std::isfinite(number) && (number > 0 || (may_be_zero && number == 0)), "profile \"",
             profile.name, "\": ", field, ": expected a number ", may_be_zero ? ">= 0" : "> 0",
             ", got ", number);
}

}  // namespace

void DeviceProfile::check() const {
  checkNumber(*this, "compute_watts", compute_watts, true);
  checkNumber(*this, "idle_watts", idle_watts, true);
  checkNumber(*this, "memory_watts", memory_watts, true);
  checkNumber(*this, "store_watts", store_watts, true);
  checkNumber(*this, "replay_factor", replay_factor, true);
  checkNumber(*this, "replay_fixed_seconds", replay_fixed_seconds, true);
  POET_CHECK(generator_state_bytes >= 0 && generator_state_bytes <= kMaxGeneratorStateBytes,
             "profile \"", name, "\": generator_state_bytes: expected a number in [0, ",
             kMaxGeneratorStateBytes, "], got ", generator_state_bytes);
  checkNumber(*this, "store_read_rate", store_read_rate, true);
  checkNumber(*this, "store_write_rate", store_write_rate, true);
  checkNumber(*this, "store_read_latency_seconds", store_read_latency_seconds, true);
  checkNumber(*this, "store_write_latency_seconds", store_write_latency_seconds, true);
  checkNumber(*this, "wake_joules", wake_joules, true);
  checkNumber(*this, "convolution_rate", convolution_rate, true);
  checkNumber(*this, "matmul_rate", matmul_rate, true);
  checkNumber(*this, "elementwise_rate", elementwise_rate, true);
  checkNumber(*this, "memory_rate", memory_rate, true);
  checkNumber(*this, "op_overhead_seconds", op_overhead_seconds, true);
  POET_CHECK(ram_bytes >= 0 && flash_bytes >= 0, "profile \"", name,
             "\": ram_bytes and flash_bytes: expected numbers >= 0, got ", ram_bytes, " and ",
             flash_bytes);
  POET_CHECK(dma_channels >= 0 && dma_channels <= kMaxDmaChannels, "profile \"", name,
             "\": dma_channels: expected a number in [0, ", kMaxDmaChannels, "], got ",
             dma_channels);
}

void DeviceProfile::checkStore() const {
  checkNumber(*this, "store_read_rate", store_read_rate, false);
  checkNumber(*this, "store_write_rate", store_write_rate, false);
  check();
}

DeviceProfile profileByName(const std::string& name) {
  POET_CHECK(name == "host", "platform: expected a known device, got \"", name,
             "\"; known: \"host\"");
  return hostProfile();
}

}  // namespace poet
