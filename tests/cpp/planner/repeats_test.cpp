// Repeated blocks recognised by structure.
#include "planner/repeats.h"

#include <gtest/gtest.h>

#include <map>

#include "support/graph_builder.h"

namespace poet::planner {
namespace {

using poet::testing::GraphBuilder;

// Blocks of three ops forwards, and one op backwards for each of those.
Graph blocks(int count, int64_t bytes_of_one = 64) {
  GraphBuilder g;
  ValueId x = g.input(64);
  std::vector<ValueId> kept;
  for (int i = 0; i < count; ++i) {
    for (const char* name : {"linear", "relu", "norm"}) {
      kept.push_back(x);
      const bool odd = i == count / 2 && std::string_view(name) == "relu";
      x = g.op(name).reads({x}).seconds(1 + 0.1 * i).makes(odd ? bytes_of_one : 64);
    }
  }
  for (size_t i = kept.size(); i-- > 0;) x = g.op("backward").reads({x, kept[i]}).makes(64);
  g.outlives(x);
  return g.build();
}

std::map<uint64_t, int> sizes(const std::vector<uint64_t>& colours) {
  std::map<uint64_t, int> count;
  for (const uint64_t colour : colours) ++count[colour];
  return count;
}

TEST(Repeats, EqualBlocksHaveEqualColoursWhateverTheirTimes) {
  const Graph graph = blocks(24);
  const std::vector<uint64_t> colours = opColours(graph);
  ASSERT_EQ(static_cast<int64_t>(colours.size()), graph.numOps());
  for (size_t k = 3 * 8; k < 3 * 16; ++k) {
    EXPECT_EQ(colours[k], colours[k + 3]) << k;
    EXPECT_NE(colours[k], colours[k + 1]) << k;
  }
  // All but those near the ends of the step: three forward parts, and the backward ops of each.
  int large = 0;
  for (const auto& [colour, count] : sizes(colours)) large += count >= 16;
  EXPECT_EQ(large, 6);
}

TEST(Repeats, AnotherSizeSetsABlockApart) {
  const std::vector<uint64_t> colours = opColours(blocks(24, 65));
  const size_t odd = 3 * 12 + 1;
  for (size_t k = 3 * 8 + 1; k < 3 * 16; k += 3) {
    if (k != odd) {
      EXPECT_NE(colours[k], colours[odd]) << k;
    }
  }
}

TEST(Repeats, TheSameGraphHasTheSameColours) {
  EXPECT_EQ(opColours(blocks(5)), opColours(blocks(5)));
  EXPECT_EQ(opColours(GraphBuilder().build()).size(), 0U);
}

}  // namespace
}  // namespace poet::planner
