// A pass Graph -> Graph: ops between which no plan has anything to gain become one.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/export.h"
#include "graph/graph.h"
#include "graph/recipes.h"

namespace poet {

// Note [What may be merged]
// A run of ops becomes one coarse op where replays and transfers between them are never better than
// before the first or after the last of them. An op b joins the run that the op L, its *leader*,
// begins if
// (a) L touches all data that b reads or writes, and b makes nothing;
// (b) what b writes to L writes to as well, or one producer has made it and all that L makes or
//     writes to;
// (c) b needs no more workspace than L;
// (d) L touches whatever dies at b and takes memory;
// (e) no recipe ceases to be valid at b, or what it needs to be recoverable (graph/recipes.h): not
//     even one of L, which would never run then, for what has a recipe may be kept beyond its
//     death.
// Proof. Take a schedule that does something between L and b. Nothing that it brings back there is
// for b, by (a) and (d); after b all that it reads is as it was, since b writes, by (b), to what is
// still being made or pinned, and it may still run there, by (d) and (e). So let it do all of this
// after b. Then b needs no more memory than L did, by (a) and (c), and what follows b no more than
// before. So there is a schedule as good that does nothing within runs, and bounds over schedules
// of the coarse graph hold for those of the fine one.
// Views read no data: most of them join whatever stands before them.
//
// A coarse op lists as inputs the data that its ops read, without what they make; its seconds and
// flops are their sums. All values stay, with the same ids. So recipes are the same but for the
// views in them.

// Immutable once built; the fine graph must outlive it.
class POET_API Coarsening {
 public:
  // `table`: the fine graph's.
  Coarsening(const Graph& fine, const RecipeTable& table);

  const Graph& fine() const { return *fine_; }
  const Graph& graph() const { return graph_; }
  // The run of fine ops that a coarse op stands for: [first, last]. The end of one step is that of
  // the other.
  OpId firstOf(OpId coarse) const { return OpId(first_[static_cast<size_t>(coarse.index)]); }
  OpId lastOf(OpId coarse) const { return OpId(first_[static_cast<size_t>(coarse.index) + 1] - 1); }
  // The coarse op that a fine op is part of.
  OpId coarseOf(OpId fine) const { return OpId(coarse_of_[static_cast<size_t>(fine.index)]); }

 private:
  const Graph* fine_;
  std::vector<int64_t> first_;      // by coarse op, and the end of the step
  std::vector<int64_t> coarse_of_;  // by fine op, and the end of the step
  Graph graph_;
};

}  // namespace poet
