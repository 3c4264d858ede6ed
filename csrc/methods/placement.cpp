#include "methods/placement.h"

#include <algorithm>
#include <vector>

#include "methods/address_space.h"
#include "schedule/rewritten_graph.h"

namespace poet {
namespace {

using methods::AddressSpace;

constexpr int64_t kBoundless = int64_t{1} << 62;

// Copies have places from the node that makes them to the node that frees them (Note [Copies]).
class Placing {
 public:
  Placing(const Graph& graph, const Schedule& schedule)
      : graph_(graph), rewritten_(schedule.rewrittenGraph(graph)), space_(kBoundless) {
    made_by_.resize(rewritten_.nodes().size() + 1);
    for (size_t i = 0; i < rewritten_.copies().size(); ++i) {
      const RewrittenCopy& copy = rewritten_.copies()[i];
      if (!copy.in_store) made_by_[at(copy.from + 1)].push_back(static_cast<int>(i));
    }
  }

  Placement run() {
    place(made_by_[0]);
    for (size_t i = 0; i < rewritten_.nodes().size(); ++i) {
      const RewrittenNode& node = rewritten_.nodes()[i];
      if (node.kind == NodeKind::kFree) {
        space_.free(node.frees);
        continue;
      }
      place(made_by_[i + 1]);
      if (!node.op.valid()) continue;
      place(scratch(), graph_.op(node.op).workspace_bytes);
      space_.free(scratch());
    }
    placement_.arena_bytes += graph_.baseBytes();
    placement_.live_bytes += graph_.baseBytes();
    return placement_;
  }

 private:
  static size_t at(int32_t index) { return static_cast<size_t>(index); }
  int scratch() const { return static_cast<int>(rewritten_.copies().size()); }

  void place(const std::vector<int>& copies) {
    for (const int copy : copies) place(copy, rewritten_.copies()[at(copy)].bytes);
  }

  void place(int owner, int64_t bytes) {
    space_.allocate(owner, bytes, AddressSpace::End::kLow);
    // Behind the last block in use nothing but one free block follows: the space has no end.
    placement_.arena_bytes = std::max(placement_.arena_bytes, space_.blocks().back().start);
    placement_.live_bytes = std::max(placement_.live_bytes, space_.bytes() - space_.freeBytes());
  }

  const Graph& graph_;
  const RewrittenGraph rewritten_;
  std::vector<std::vector<int>>
      made_by_;  // copies, by the node behind that makes them; 0: none does
  AddressSpace space_;
  Placement placement_;
};

}  // namespace

Placement placeInArena(const Graph& graph, const Schedule& schedule) {
  return Placing(graph, schedule).run();
}

}  // namespace poet
