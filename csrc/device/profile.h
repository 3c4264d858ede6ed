// DeviceProfile and the cost model: seconds and joules of an op. Every number carries its source.
#pragma once

#include <cstdint>
#include <string>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// Powers in watts. Energy of a step = compute_watts * busy seconds
//   + (idle_watts + memory_watts) * makespan
//   (+ store_watts while a store is in use; no store before paging exists).
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
  std::string energy_source;  // where the watts come from, for the user

  double firstSeconds(const Op& op) const { return op.seconds; }
  double replaySeconds(const Op& op) const {
    return replay_factor * op.seconds + replay_fixed_seconds;
  }
  double busyWatts() const { return compute_watts; }
  double alwaysWatts() const { return idle_watts + memory_watts; }
  double joules(double busy_seconds, double makespan_seconds) const {
    return compute_watts * busy_seconds + alwaysWatts() * makespan_seconds;
  }
};

// The machine poet runs on, with a stated power model (see device/profile.cpp for the sources).
POET_API DeviceProfile hostProfile();
// "host" is the only name so far. Throws ArgumentError that names what was got and what is known.
POET_API DeviceProfile profileByName(const std::string& name);

}  // namespace poet
