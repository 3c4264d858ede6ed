#include "device/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/error.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(HostProfile, StatesItsPowersAndSaysThatTheyAreStated) {
  const DeviceProfile host = hostProfile();
  EXPECT_EQ(host.name, "host");
  EXPECT_GT(host.compute_watts, host.idle_watts);
  EXPECT_GT(host.idle_watts, 0);
  EXPECT_GT(host.memory_watts, 0);
  EXPECT_GT(host.store_watts, 0);
  EXPECT_EQ(host.generator_state_bytes, 5056);
  EXPECT_THAT(host.energy_source,
              AllOf(HasSubstr("stated power model"), HasSubstr("not measured")));
}

TEST(DeviceProfile, AReplayCostsMoreThanTheFirstRun) {
  Op op;
  op.seconds = 0.5;
  DeviceProfile device;
  device.replay_factor = 1.5;
  device.replay_fixed_seconds = 0.25;
  EXPECT_DOUBLE_EQ(device.firstSeconds(op), 0.5);
  EXPECT_DOUBLE_EQ(device.replaySeconds(op), 1);
  EXPECT_GT(hostProfile().replaySeconds(op), hostProfile().firstSeconds(op));
}

TEST(DeviceProfile, JoulesAreComputeWhileBusyAndTheRestAllTheTime) {
  DeviceProfile device;
  device.compute_watts = 10;
  device.idle_watts = 2;
  device.memory_watts = 1;
  EXPECT_DOUBLE_EQ(device.joules({.busy_seconds = 3, .makespan_seconds = 5}), 10 * 3 + 3 * 5);
}

TEST(ProfileByName, KnowsTheHostAndSaysWhatItKnows) {
  EXPECT_EQ(profileByName("host").name, "host");
  for (const char* unknown : {"m4", "", "Host", "host "}) {
    EXPECT_THAT(
        [&] { profileByName(unknown); },
        ThrowsMessage<ArgumentError>(AllOf(HasSubstr(std::string("got \"") + unknown + "\""),
                                           HasSubstr("known: \"host\""))));
  }
}

TEST(DeviceProfile, AStoreHasRatesAndNoNegativeCosts) {
  DeviceProfile device = hostProfile();
  EXPECT_FALSE(device.hasStore());
  EXPECT_THAT([&] { device.checkStore(); },
              ThrowsMessage<ArgumentError>(AllOf(HasSubstr("\"host\""), HasSubstr("read_rate"))));
  device.store_read_rate = 100;
  device.store_write_rate = 50;
  device.store_read_latency_seconds = 0.5;
  device.store_write_latency_seconds = 0.25;
  EXPECT_TRUE(device.hasStore());
  EXPECT_NO_THROW(device.checkStore());
  EXPECT_DOUBLE_EQ(device.pageInSeconds(200), 2.5);
  EXPECT_DOUBLE_EQ(device.pageOutSeconds(200), 4.25);
  EXPECT_DOUBLE_EQ(device.pageOutSeconds(0), 0.25);

  const auto expect_refused = [&](auto field, auto value, const char* name) {
    DeviceProfile wrong = device;
    wrong.*field = value;
    EXPECT_THAT([&] { wrong.checkStore(); }, ThrowsMessage<ArgumentError>(HasSubstr(name)));
  };
  const double infinite = std::numeric_limits<double>::infinity();
  expect_refused(&DeviceProfile::store_write_rate, -1, "store_write_rate");
  expect_refused(&DeviceProfile::store_write_rate, infinite, "store_write_rate");
  expect_refused(&DeviceProfile::store_read_latency_seconds, -1e-9, "read_latency");
  expect_refused(&DeviceProfile::store_write_latency_seconds, infinite, "write_latency");
  expect_refused(&DeviceProfile::wake_joules, std::nan(""), "wake_joules");
  expect_refused(&DeviceProfile::dma_channels, -1, "dma_channels");
  expect_refused(&DeviceProfile::dma_channels, 1 << 20, "dma_channels");
}

TEST(DeviceProfile, SurvivesItsJson) {
  DeviceProfile device = hostProfile();
  device.name = "board \"m4\"";
  device.compute_watts = 0.1 + 0.2;
  device.store_read_rate = 4616510;
  device.store_write_rate = 4.44e6;
  device.store_read_latency_seconds = 1.09e-4;
  device.wake_joules = 1e-9;
  device.dma_channels = 2;
  device.store_source = "data sheet";
  const DeviceProfile read = DeviceProfile::fromJson(device.toJson());
  EXPECT_EQ(read.toJson(), device.toJson());
  EXPECT_EQ(read.compute_watts, device.compute_watts);
  EXPECT_EQ(read.generator_state_bytes, device.generator_state_bytes);
  EXPECT_EQ(read.name, device.name);
}

TEST(DeviceProfile, ReadsDefaultsForWhatItsJsonLeavesOut) {
  const DeviceProfile read =
      DeviceProfile::fromJson(R"({"format": "poet-profile", "version": 1, "name": "bare"})");
  EXPECT_EQ(read.replay_factor, 1);
  EXPECT_FALSE(read.hasStore());
}

TEST(DeviceProfile, RefusesJsonThatNoDeviceHas) {
  const auto read = [](const std::string& fields) {
    return [text = R"({"format": "poet-profile", "version": 1, "name": "x", )" + fields + "}"] {
      DeviceProfile::fromJson(text);
    };
  };
  EXPECT_THAT(read(R"("compute_watts": -1)"),
              ThrowsMessage<FormatError>(AllOf(HasSubstr("compute_watts"), HasSubstr(">= 0"))));
  EXPECT_THAT(read(R"("watts": 1)"), ThrowsMessage<FormatError>(HasSubstr("watts")));
  EXPECT_THAT(read(R"("dma_channels": 5000)"), ThrowsMessage<FormatError>(HasSubstr("5000")));
  EXPECT_THAT(read(R"("store_read_rate": 1)"),
              ThrowsMessage<FormatError>(HasSubstr("store_write_rate")));
  EXPECT_THROW(DeviceProfile::fromJson("{}"), FormatError);
}

}  // namespace
}  // namespace poet::testing
