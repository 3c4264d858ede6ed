// Cycles in a directed graph of small integers. Internal to the recipe table.
#pragma once

#include <functional>
#include <vector>

namespace poet {

// The nodes of [0, count) that lie on a cycle of two or more nodes, ascending. `successors` is
// asked once per node. Tarjan's strongly connected components (SIAM J. Comput. 1972), without
// recursion: a step has thousands of recipes in one chain. O(nodes + edges).
std::vector<int> nodesOnCycles(int count, const std::function<std::vector<int>(int)>& successors);

}  // namespace poet
