// What containers say that they take, beside what malloc has given.
#include "graph/heap_bytes.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <optional>

#include "graph/recipes.h"
#include "support/random_graph.h"

namespace poet {
namespace {

int64_t inUse() {
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 33)
  const struct mallinfo2 now = mallinfo2();
  return static_cast<int64_t>(now.uordblks + now.hblkhd);
#else
  return 0;
#endif
}

// Other threads' allocators and sanitizers count elsewhere.
bool mallocTells() {
  const int64_t before = inUse();
  const std::vector<char> some(100000);
  return inUse() - before >= 100000;
}

TEST(HeapBytes, OfGraphAndRecipesAreWhatMallocHasGiven) {
  if (!mallocTells()) GTEST_SKIP() << "this malloc does not tell what is in use";
  std::optional<Graph> graph(testing::randomGraph(7, {.forward_ops = 3000}));
  const Graph other = *graph;
  const int64_t with_both = inUse();
  const int64_t of_graph = graph->ownBytes() - static_cast<int64_t>(sizeof(Graph));
  graph.reset();
  const auto freed = static_cast<double>(with_both - inUse());
  EXPECT_GT(freed, 500000);
  EXPECT_NEAR(static_cast<double>(of_graph), freed, 0.1 * freed);

  const int64_t without = inUse();
  const RecipeTable table(other);
  const auto taken = static_cast<double>(inUse() - without);
  const int64_t of_table = table.ownBytes() - static_cast<int64_t>(sizeof(RecipeTable));
  // Small blocks that were freed on the way count as given out: the thread's cache has them.
  EXPECT_NEAR(static_cast<double>(of_table), taken, 0.2 * taken);
}

TEST(HeapBytes, OfWhatLiesInsideAreNone) {
  EXPECT_EQ(heapBytes(std::string("short")), 0);
  EXPECT_EQ(heapBytes(std::vector<int>()), 0);
  const std::vector<std::vector<int>> empty_ones(10);
  EXPECT_EQ(heapBytes(empty_ones), heapBlock(10 * sizeof(std::vector<int>)));
}

}  // namespace
}  // namespace poet
