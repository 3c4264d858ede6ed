#include "methods/child_process.h"

#include <gtest/gtest.h>

#include <string>

namespace poet::testing {
namespace {

using methods::ChildResult;
using methods::runChild;

TEST(ChildProcess, GetsItsInputAndGivesItsOutput) {
  const std::string megabyte(size_t{1} << 20, 'x');
  const ChildResult result = runChild({"cat"}, megabyte, 20);
  EXPECT_TRUE(result.started);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, megabyte);
}

TEST(ChildProcess, MayEndWithoutReadingItsInput) {
  const ChildResult result =
      runChild({"sh", "-c", "echo why >&2; exit 3"}, std::string(size_t{1} << 20, 'x'), 20);
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.err, "why\n");
}

TEST(ChildProcess, IsKilledWhenItsTimeIsOver) {
  const ChildResult result = runChild({"sleep", "60"}, "", 0.05);
  EXPECT_TRUE(result.timed_out);
  EXPECT_EQ(result.exit_code, 128 + 9);
}

TEST(ChildProcess, SaysThatThereIsNoSuchProgram) {
  EXPECT_FALSE(runChild({"/no/such/program"}, "", 20).started);
}

}  // namespace
}  // namespace poet::testing
