// twremat: recursion over a tree decomposition.
//
// Paper: Kumar, Purohit, Svitkina, Vee, Wang, "Efficient Rematerialization for Deep Networks",
// NeurIPS 2019: with a tree decomposition of width w of the computation's graph, a balanced
// separator of at most w + 1 values is computed and kept, and the pieces that it leaves are done
// one after the other in the same way: O(w log n) values are in memory at once, for O(log n) times
// the work on a graph of bounded width.
//
// Chosen: the graph is that of the values that forward makes and that may leave, with an edge where
// a recipe reads one to make another. The decomposition is by least degree, the separator of each
// piece the bag that halves its bytes best. The order of first executions is the traced one, so the
// recursion shows in what stays: while an op of a piece runs, the separators above that piece stay,
// and nothing else does beyond its use; what is missing is computed from what stayed. Pieces of at
// most so many bytes are not divided further; powers of two are tried for the budget.
//
// Bound: on a chain of n equal links 2 log2(n) + O(1) values, by test. Weakness: it knows bytes and
// no seconds; least degree has no bound on the width of general graphs; gradients are kept as in
// plain training.
#include <algorithm>

#include "methods/every_method.h"
#include "methods/plan_choice.h"
#include "methods/plan_walk.h"
#include "methods/tree_decomposition.h"

namespace poet::methods {
namespace {

using planner::Problem;

class Twremat {
 public:
  explicit Twremat(const Problem& problem)
      : problem_(problem), may_leave_(findMayLeave(problem)), vertex_(problem.values.size(), -1) {
    findVertices();
    findEdges();
    bags_ = bagsOf(graph_);
  }

  int64_t totalBytes() const {
    int64_t sum = 0;
    for (const int64_t bytes : weights_) sum += bytes;
    return sum;
  }

  planner::ReplayPlan plan(int64_t leaf_bytes) {
    tree_ = separate(graph_, bags_, weights_, leaf_bytes);
    above_.assign(tree_.parent.size(), 0);
    PlanWalk walk(problem_);
    for (int t = 0; t < problem_.numStages(); ++t) {
      if (!isForward(t)) bring(walk, t);
      walk.advance();
      forget(walk, t);
    }
    return walk.take();
  }

 private:
  bool isForward(int t) const {
    return t >= 0 && t < problem_.endStage() &&
           problem_.graph().op(OpId(t)).phase == Phase::kForward;
  }
  int nodeOf(int v) const {
    return tree_.node_of[static_cast<size_t>(vertex_[static_cast<size_t>(v)])];
  }

  void findVertices() {
    last_forward_.assign(problem_.values.size(), -1);
    for (int v = 0; v < problem_.numValues(); ++v) {
      const planner::Evictable& value = problem_.values[static_cast<size_t>(v)];
      if (!may_leave_[static_cast<size_t>(v)] || !isForward(value.first_stage)) continue;
      vertex_[static_cast<size_t>(v)] = static_cast<int>(values_.size());
      values_.push_back(v);
      weights_.push_back(value.bytes);
      last_forward_[static_cast<size_t>(v)] = value.pin_stage;
      for (const int t : value.use_stages) {
        if (isForward(t)) last_forward_[static_cast<size_t>(v)] = t;
      }
    }
  }

  void findEdges() {
    graph_.resize(values_.size());
    const auto connect = [&](int u, int v) {
      const int a = vertex_[static_cast<size_t>(u)], b = vertex_[static_cast<size_t>(v)];
      if (a < 0 || b < 0 || a == b) return;
      graph_[static_cast<size_t>(a)].push_back(b);
      graph_[static_cast<size_t>(b)].push_back(a);
    };
    for (const planner::Replay& replay : problem_.replays) {
      if (replay.is_page) continue;
      for (const int v : replay.outputs) {
        for (const int u : replay.inputs) connect(u, v);
        for (const int u : replay.outputs) connect(u, v);
      }
    }
    for (auto& neighbours : graph_) {
      std::sort(neighbours.begin(), neighbours.end());
      neighbours.erase(std::unique(neighbours.begin(), neighbours.end()), neighbours.end());
    }
  }

  // The pieces that stage t works on, and everything above them.
  void findPath(int t) {
    std::vector<int> here;
    const planner::Stage& stage = problem_.stages[static_cast<size_t>(t)];
    for (const auto* touched : {&stage.needs, &stage.born}) {
      for (const int v : *touched) {
        if (vertex_[static_cast<size_t>(v)] >= 0) here.push_back(nodeOf(v));
      }
    }
    if (here.empty()) return;  // where it was
    std::fill(above_.begin(), above_.end(), 0);
    for (int node : here) {
      for (; node >= 0; node = tree_.parent[static_cast<size_t>(node)])
        above_[static_cast<size_t>(node)] = 1;
    }
  }

  bool stays(int v) const { return above_[static_cast<size_t>(nodeOf(v))] != 0; }

  void bring(PlanWalk& walk, int t) {
    findPath(t);
    const auto& needs = problem_.stages[static_cast<size_t>(t)].needs;
    for (const int v : walk.bring(needs)) {
      const bool needed = std::binary_search(needs.begin(), needs.end(), v);
      if (vertex_[static_cast<size_t>(v)] >= 0 && !needed && !stays(v)) walk.leave(v);
    }
  }

  void forget(PlanWalk& walk, int t) {
    if (isForward(t)) findPath(t);
    for (const int v : values_) {
      const bool forward_reads_on = last_forward_[static_cast<size_t>(v)] > t;
      if (walk.there(v) && !forward_reads_on && !stays(v)) walk.leave(v);
    }
  }

  const Problem& problem_;
  const std::vector<char> may_leave_;
  std::vector<int> vertex_;  // by value; -1: none
  std::vector<int> values_;  // by vertex
  std::vector<int64_t> weights_;
  std::vector<int> last_forward_;  // by value
  Neighbours graph_;
  std::vector<std::vector<int>> bags_;
  SeparatorTree tree_;
  std::vector<char> above_;  // by node of the tree
};

}  // namespace

Schedule planTwremat(const Graph& graph, const DeviceProfile& profile,
                     const SolveOptions& options) {
  const RecipeTable table(graph);
  const Problem problem(graph, table, profile, {.objective = options.minimize});
  PlanChoice choice(problem, options, "twremat");
  choice.offer(problem.leastPlan());  // keeps everything: its bags may take more than that
  Twremat twremat(problem);
  for (int64_t leaf_bytes = twremat.totalBytes();; leaf_bytes /= 2) {
    choice.offer(twremat.plan(leaf_bytes));
    if (leaf_bytes == 0 || choice.deadline().over()) break;
  }
  return choice.finish("the least of its plans");
}

}  // namespace poet::methods
