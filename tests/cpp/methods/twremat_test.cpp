// Tree decompositions are what they claim to be, and twremat's memory on chains is logarithmic.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "methods/method.h"
#include "methods/training_chain.h"
#include "methods/tree_decomposition.h"
#include "schedule/simulator.h"

namespace poet::testing {
namespace {

using methods::Neighbours;

Neighbours fromEdges(int num_vertices, const std::set<std::pair<int, int>>& edges) {
  Neighbours graph(static_cast<size_t>(num_vertices));
  for (const auto& [a, b] : edges) {
    graph[static_cast<size_t>(a)].push_back(b);
    graph[static_cast<size_t>(b)].push_back(a);
  }
  for (auto& neighbours : graph) std::sort(neighbours.begin(), neighbours.end());
  return graph;
}

std::set<std::pair<int, int>> path(int num_vertices) {
  std::set<std::pair<int, int>> edges;
  for (int v = 1; v < num_vertices; ++v) edges.emplace(v - 1, v);
  return edges;
}

TEST(TreeDecomposition, HasTheWidthOfPathsCyclesAndCliques) {
  EXPECT_EQ(methods::widthOf(methods::bagsOf(fromEdges(0, {}))), -1);
  EXPECT_EQ(methods::widthOf(methods::bagsOf(fromEdges(3, {}))), 0);
  EXPECT_EQ(methods::widthOf(methods::bagsOf(fromEdges(20, path(20)))), 1);
  auto cycle = path(20);
  cycle.emplace(0, 19);
  EXPECT_EQ(methods::widthOf(methods::bagsOf(fromEdges(20, cycle))), 2);
  std::set<std::pair<int, int>> clique;
  for (int a = 0; a < 6; ++a) {
    for (int b = a + 1; b < 6; ++b) clique.emplace(a, b);
  }
  EXPECT_EQ(methods::widthOf(methods::bagsOf(fromEdges(6, clique))), 5);
}

TEST(TreeDecomposition, CoversEveryEdgeAndItsSeparatorsSeparate) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 50; ++round) {
    const int n = std::uniform_int_distribution<int>(2, 30)(random);
    auto edges = path(n);
    for (int i = 0; i < n / 3; ++i) {
      const int a = std::uniform_int_distribution<int>(0, n - 1)(random);
      const int b = std::uniform_int_distribution<int>(0, n - 1)(random);
      if (a != b) edges.emplace(std::min(a, b), std::max(a, b));
    }
    const Neighbours graph = fromEdges(n, edges);
    const auto bags = methods::bagsOf(graph);
    for (const auto& [a, b] : edges) {
      const bool covered = std::any_of(bags.begin(), bags.end(), [&, u = a, v = b](auto bag) {
        return std::count(bag.begin(), bag.end(), u) && std::count(bag.begin(), bag.end(), v);
      });
      EXPECT_TRUE(covered) << a << " - " << b;
    }
    const auto tree =
        methods::separate(graph, bags, std::vector<int64_t>(static_cast<size_t>(n), 1), 0);
    const auto isAbove = [&](int above, int node) {
      while (node >= 0 && node != above) node = tree.parent[static_cast<size_t>(node)];
      return node == above;
    };
    for (const auto& [a, b] : edges) {
      const int u = tree.node_of[static_cast<size_t>(a)], v = tree.node_of[static_cast<size_t>(b)];
      EXPECT_TRUE(isAbove(u, v) || isAbove(v, u)) << a << " - " << b;
    }
  }
}

TEST(TreeDecomposition, HalvesPaths) {
  const int n = 127;
  const Neighbours graph = fromEdges(n, path(n));
  const auto tree = methods::separate(graph, methods::bagsOf(graph),
                                      std::vector<int64_t>(static_cast<size_t>(n), 1), 0);
  EXPECT_LE(*std::max_element(tree.depth.begin(), tree.depth.end()), 10);
}

// 2 log2(n) + O(1) boundaries, where plain training holds n.
TEST(Twremat, NeedsLogarithmicMemoryOnChains) {
  const DeviceProfile profile = smallProfile();
  for (const int n : {16, 32, 64, 128, 256}) {
    const Graph graph = uniformChain(n, 1000, 0);
    SolveOptions options;
    options.method = "twremat";
    options.ram_budget_bytes = 1;
    const Schedule least = planWith(graph, profile, options);
    ASSERT_TRUE(least.least_ram_budget.has_value());
    EXPECT_LE(*least.least_ram_budget, static_cast<int64_t>((2 * std::log2(n) + 4) * 1000)) << n;
    options.ram_budget_bytes = *least.least_ram_budget;
    const Schedule schedule = planWith(graph, profile, options);
    const auto replays = simulate(graph, schedule, profile).recomputed_ops;
    EXPECT_LE(replays, static_cast<int64_t>(n * (std::log2(n) + 1))) << n;
  }
}

}  // namespace
}  // namespace poet::testing
