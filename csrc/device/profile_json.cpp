// DeviceProfile <-> JSON. See Note [Reading hostile files] in graph/json_reader.h.
#include <utility>

#include "device/profile.h"
#include "graph/error.h"
#include "graph/file_io.h"
#include "graph/json_reader.h"

namespace poet {
namespace {

constexpr std::string_view kFormat = "poet-profile";

struct NumberField {
  const char* key;
  double DeviceProfile::*member;
};

// Every power, rate, latency and factor: none of them is negative.
constexpr NumberField kNumbers[] = {
    {"compute_watts", &DeviceProfile::compute_watts},
    {"idle_watts", &DeviceProfile::idle_watts},
    {"memory_watts", &DeviceProfile::memory_watts},
    {"store_watts", &DeviceProfile::store_watts},
    {"replay_factor", &DeviceProfile::replay_factor},
    {"replay_fixed_seconds", &DeviceProfile::replay_fixed_seconds},
    {"store_read_rate", &DeviceProfile::store_read_rate},
    {"store_write_rate", &DeviceProfile::store_write_rate},
    {"store_read_latency_seconds", &DeviceProfile::store_read_latency_seconds},
    {"store_write_latency_seconds", &DeviceProfile::store_write_latency_seconds},
    {"wake_joules", &DeviceProfile::wake_joules},
    {"convolution_rate", &DeviceProfile::convolution_rate},
    {"matmul_rate", &DeviceProfile::matmul_rate},
    {"elementwise_rate", &DeviceProfile::elementwise_rate},
    {"memory_rate", &DeviceProfile::memory_rate},
    {"op_overhead_seconds", &DeviceProfile::op_overhead_seconds},
};

}  // namespace

std::string DeviceProfile::toJson() const {
  json::OrderedJson object = {{"format", kFormat}, {"version", kFormatVersion}, {"name", name}};
  for (const NumberField& field : kNumbers) object[field.key] = this->*field.member;
  object["generator_state_bytes"] = generator_state_bytes;
  object["dma_channels"] = dma_channels;
  object["ram_bytes"] = ram_bytes;
  object["flash_bytes"] = flash_bytes;
  object["direct_kernels"] = direct_kernels;
  object["energy_source"] = energy_source;
  object["store_source"] = store_source;
  return object.dump(2, ' ', false, json::OrderedJson::error_handler_t::replace) + "\n";
}

DeviceProfile DeviceProfile::fromJson(std::string_view text) {
  const json::Json document = json::parse(text, "profile");
  json::checkHeader(document, kFormat, kFormatVersion);
  json::ObjectReader in(document, "profile");
  in.require("format");
  in.require("version");
  DeviceProfile profile;
  profile.name = in.text("name");
  for (const NumberField& field : kNumbers) {
    double& number = profile.*field.member;
    number = in.numberOr(field.key, number);
    POET_CHECK_AS(FormatError, number >= 0, in.path(field.key), ": expected a number >= 0, got ",
                  number);
  }
  profile.generator_state_bytes =
      in.integerOr("generator_state_bytes", profile.generator_state_bytes, 0);
  profile.dma_channels = static_cast<int>(in.integerOr("dma_channels", 0, 0, kMaxDmaChannels));
  profile.ram_bytes = in.integerOr("ram_bytes", 0, 0);
  profile.flash_bytes = in.integerOr("flash_bytes", 0, 0);
  profile.direct_kernels = in.flagOr("direct_kernels", false);
  profile.energy_source = in.textOr("energy_source", "");
  profile.store_source = in.textOr("store_source", "");
  in.finish();
  POET_CHECK_AS(FormatError, (profile.store_read_rate > 0) == (profile.store_write_rate > 0),
                "profile: store_read_rate and store_write_rate: expected both above 0, or both 0 "
                "for a device without a store, got ",
                profile.store_read_rate, " and ", profile.store_write_rate);
  return profile;
}

DeviceProfile DeviceProfile::load(const std::string& path) { return fromJson(readFile(path)); }

}  // namespace poet
