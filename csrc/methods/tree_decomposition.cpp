#include "methods/tree_decomposition.h"

#include <algorithm>
#include <set>
#include <utility>

namespace poet::methods {
namespace {

// Of the bags that touch a part, at most so many are tried as its separator.
constexpr size_t kMostTried = 64;

class Separation {
 public:
  Separation(const Neighbours& graph, const std::vector<std::vector<int>>& bags,
             const std::vector<int64_t>& weights, int64_t leaf_weight)
      : graph_(graph), bags_(bags), weights_(weights), leaf_weight_(leaf_weight) {}

  SeparatorTree run() {
    tree_.node_of.assign(graph_.size(), -1);
    part_.assign(graph_.size(), 0);
    std::vector<int> all;
    for (int v = 0; v < static_cast<int>(graph_.size()); ++v) all.push_back(v);
    std::vector<Part> todo;
    for (auto& piece : pieces(all, {})) todo.push_back({std::move(piece), -1});
    while (!todo.empty()) {
      Part part = std::move(todo.back());
      todo.pop_back();
      for (auto& piece : split(part)) {
        const int parent = static_cast<int>(tree_.parent.size()) - 1;
        todo.push_back({std::move(piece), parent});
      }
    }
    return std::move(tree_);
  }

 private:
  struct Part {
    std::vector<int> vertices;  // connected
    int parent = -1;
  };

  // Makes the part's node, and returns what is left of it.
  std::vector<std::vector<int>> split(const Part& part) {
    const int node = static_cast<int>(tree_.parent.size());
    tree_.parent.push_back(part.parent);
    tree_.depth.push_back(part.parent < 0 ? 0 : tree_.depth[static_cast<size_t>(part.parent)] + 1);
    const std::vector<int> separator =
        weightOf(part.vertices) <= leaf_weight_ ? part.vertices : separatorOf(part.vertices);
    for (const int v : separator) tree_.node_of[static_cast<size_t>(v)] = node;
    return pieces(part.vertices, separator);
  }

  std::vector<int> separatorOf(const std::vector<int>& part) {
    for (const int v : part) part_[static_cast<size_t>(v)] = 1;
    std::vector<std::vector<int>> tried;
    for (const auto& bag : bags_) {
      std::vector<int> own;
      for (const int v : bag) {
        if (part_[static_cast<size_t>(v)]) own.push_back(v);
      }
      if (!own.empty()) tried.push_back(std::move(own));
    }
    for (const int v : part) part_[static_cast<size_t>(v)] = 0;
    std::vector<int> best;
    int64_t least = -1;
    const size_t step = std::max<size_t>(1, tried.size() / kMostTried);
    for (size_t i = 0; i < tried.size(); i += step) {
      int64_t largest = 0;
      for (const auto& piece : pieces(part, tried[i])) largest = std::max(largest, weightOf(piece));
      if (least >= 0 && largest >= least) continue;
      least = largest;
      best = tried[i];
    }
    return best;
  }

  // Connected parts of `part` without `removed`.
  std::vector<std::vector<int>> pieces(const std::vector<int>& part,
                                       const std::vector<int>& removed) {
    for (const int v : part) part_[static_cast<size_t>(v)] = 1;
    for (const int v : removed) part_[static_cast<size_t>(v)] = 0;
    std::vector<std::vector<int>> found;
    for (const int start : part) {
      if (!part_[static_cast<size_t>(start)]) continue;
      std::vector<int> piece, todo = {start};
      part_[static_cast<size_t>(start)] = 0;
      while (!todo.empty()) {
        const int v = todo.back();
        todo.pop_back();
        piece.push_back(v);
        for (const int u : graph_[static_cast<size_t>(v)]) {
          if (!part_[static_cast<size_t>(u)]) continue;
          part_[static_cast<size_t>(u)] = 0;
          todo.push_back(u);
        }
      }
      found.push_back(std::move(piece));
    }
    return found;
  }

  int64_t weightOf(const std::vector<int>& vertices) const {
    int64_t sum = 0;
    for (const int v : vertices) sum += weights_[static_cast<size_t>(v)];
    return sum;
  }

  const Neighbours& graph_;
  const std::vector<std::vector<int>>& bags_;
  const std::vector<int64_t>& weights_;
  const int64_t leaf_weight_;
  SeparatorTree tree_;
  std::vector<char> part_;
};

}  // namespace

std::vector<std::vector<int>> bagsOf(const Neighbours& graph) {
  std::vector<std::set<int>> left;
  for (const auto& neighbours : graph) left.emplace_back(neighbours.begin(), neighbours.end());
  std::set<std::pair<size_t, int>> by_degree;
  for (size_t v = 0; v < left.size(); ++v) by_degree.emplace(left[v].size(), static_cast<int>(v));
  std::vector<std::vector<int>> bags;
  while (!by_degree.empty()) {
    const int v = by_degree.begin()->second;
    by_degree.erase(by_degree.begin());
    const std::set<int> around = std::move(left[static_cast<size_t>(v)]);
    for (const int u : around) {
      auto& neighbours = left[static_cast<size_t>(u)];
      by_degree.erase({neighbours.size(), u});
      neighbours.erase(v);
      for (const int w : around) {
        if (w != u) neighbours.insert(w);
      }
      by_degree.emplace(neighbours.size(), u);
    }
    std::vector<int> bag = {v};
    bag.insert(bag.end(), around.begin(), around.end());
    bags.push_back(std::move(bag));
  }
  return bags;
}

int widthOf(const std::vector<std::vector<int>>& bags) {
  int width = -1;
  for (const auto& bag : bags) width = std::max(width, static_cast<int>(bag.size()) - 1);
  return width;
}

SeparatorTree separate(const Neighbours& graph, const std::vector<std::vector<int>>& bags,
                       const std::vector<int64_t>& weights, int64_t leaf_weight) {
  return Separation(graph, bags, weights, leaf_weight).run();
}

}  // namespace poet::methods
