#include "graph/cycles.h"

#include <algorithm>
#include <utility>

namespace poet {
namespace {

class CycleFinder {
 public:
  CycleFinder(int count, const std::function<std::vector<int>(int)>& successors)
      : successors_(successors), nodes_(static_cast<size_t>(count)) {}

  std::vector<int> run() {
    for (int root = 0; root < static_cast<int>(nodes_.size()); ++root) {
      if (node(root).order < 0) explore(root);
    }
    std::sort(result_.begin(), result_.end());
    return std::move(result_);
  }

 private:
  struct Node {
    int order = -1;     // in which it was entered; -1: not yet
    int lowest = 0;     // least order known to be reachable within its component
    bool open = false;  // entered, and its component is not complete
  };
  struct Frame {
    int node;
    std::vector<int> successors;
    size_t next = 0;
  };

  Node& node(int n) { return nodes_[static_cast<size_t>(n)]; }

  void explore(int root) {
    enter(root);
    while (!frames_.empty()) {
      Frame& frame = frames_.back();
      if (frame.next == frame.successors.size()) {
        leave();
        continue;
      }
      const int to = frame.successors[frame.next++];
      if (node(to).order < 0) {
        enter(to);
      } else if (node(to).open) {
        node(frame.node).lowest = std::min(node(frame.node).lowest, node(to).order);
      }
    }
  }

  void enter(int n) {
    node(n) = {entered_, entered_, true};
    ++entered_;
    open_.push_back(n);
    frames_.push_back({n, successors_(n)});
  }

  void leave() {
    const int n = frames_.back().node;
    frames_.pop_back();
    if (!frames_.empty()) {
      Node& above = node(frames_.back().node);
      above.lowest = std::min(above.lowest, node(n).lowest);
    }
    if (node(n).lowest == node(n).order) closeComponent(n);
  }

  // Everything that was entered since n, and is still open, is one component.
  void closeComponent(int n) {
    const auto first = std::find(open_.rbegin(), open_.rend(), n).base() - 1;
    for (auto it = first; it != open_.end(); ++it) node(*it).open = false;
    if (open_.end() - first > 1) result_.insert(result_.end(), first, open_.end());
    open_.erase(first, open_.end());
  }

  const std::function<std::vector<int>(int)>& successors_;
  std::vector<Node> nodes_;
  std::vector<Frame> frames_;
  std::vector<int> open_;
  std::vector<int> result_;
  int entered_ = 0;
};

}  // namespace

std::vector<int> nodesOnCycles(int count, const std::function<std::vector<int>(int)>& successors) {
  return CycleFinder(count, successors).run();
}

}  // namespace poet
