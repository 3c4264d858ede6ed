#include "graph/cycles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/random.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Edges = std::vector<std::vector<int>>;

std::vector<int> find(const Edges& edges) {
  return nodesOnCycles(static_cast<int>(edges.size()),
                       [&](int n) { return edges[static_cast<size_t>(n)]; });
}

TEST(Cycles, AreNoneInAChainOrADiamond) {
  EXPECT_THAT(find({}), IsEmpty());
  EXPECT_THAT(find({{1}, {2}, {}}), IsEmpty());
  EXPECT_THAT(find({{1, 2}, {3}, {3}, {}}), IsEmpty());
}

TEST(Cycles, LeaveOutWhatOnlyLeadsInOrOut) {
  EXPECT_THAT(find({{1}, {2}, {1, 3}, {}}), ElementsAre(1, 2));
}

TEST(Cycles, AreAllFound) {
  EXPECT_THAT(find({{1}, {0, 2}, {3}, {4}, {2, 5}, {}}), ElementsAre(0, 1, 2, 3, 4));
}

TEST(Cycles, OfRandomGraphsAreThoseThatReachabilityFinds) {
  Random random(7);
  for (int trial = 0; trial < 2000; ++trial) {
    const auto n = static_cast<size_t>(random.between(1, 9));
    Edges edges(n);
    std::vector<std::vector<char>> reach(n, std::vector<char>(n, false));
    for (int64_t i = random.between(0, 12); i > 0; --i) {
      const auto from = static_cast<size_t>(random.below(static_cast<int64_t>(n)));
      const auto to = static_cast<size_t>(random.below(static_cast<int64_t>(n)));
      if (from == to) continue;
      edges[from].push_back(static_cast<int>(to));
      reach[from][to] = true;
    }
    for (size_t k = 0; k < n; ++k) {
      for (size_t i = 0; i < n; ++i) {
        for (size_t j = 0; j < n; ++j) reach[i][j] |= reach[i][k] && reach[k][j];
      }
    }
    std::vector<int> expected;
    for (size_t i = 0; i < n; ++i) {
      if (reach[i][i]) expected.push_back(static_cast<int>(i));
    }
    ASSERT_EQ(find(edges), expected) << "trial " << trial;
  }
}

}  // namespace
}  // namespace poet::testing
