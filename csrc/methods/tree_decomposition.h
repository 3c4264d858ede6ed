// Balanced separators of a graph of low treewidth, for twremat.
#pragma once

#include <cstdint>
#include <vector>

namespace poet::methods {

// Undirected; neighbours ascending, without repetition and loops.
using Neighbours = std::vector<std::vector<int>>;

// Bags of a tree decomposition by eliminating a vertex of least degree first (Arnborg, Corneil,
// Proskurowski 1987 for the ordering's use; no bound on the width for general graphs). Bag i holds
// the i-th vertex that was eliminated and its neighbours then; every edge lies within a bag.
std::vector<std::vector<int>> bagsOf(const Neighbours& graph);

// Largest bag less one: an upper bound of the treewidth. -1 without vertices.
int widthOf(const std::vector<std::vector<int>>& bags);

// A tree of separators: removing the vertices of a node and of all nodes above it leaves what lies
// below each of its children apart from everything else.
struct SeparatorTree {
  std::vector<int> parent;   // by node; -1: a root
  std::vector<int> depth;    // by node; 0: a root
  std::vector<int> node_of;  // by vertex
};

// Splits each connected part at the bag that leaves the least weight in its largest piece, until a
// part weighs at most `leaf_weight`: that is a node as a whole.
SeparatorTree separate(const Neighbours& graph, const std::vector<std::vector<int>>& bags,
                       const std::vector<int64_t>& weights, int64_t leaf_weight);

}  // namespace poet::methods
