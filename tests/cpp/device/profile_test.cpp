#include "device/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace poet::testing
