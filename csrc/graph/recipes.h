// How to bring a value back: its producer and every op that later wrote into what that producer
// made. Used by the planner, the methods and the executor. The simulator does not use it: it checks
// versions on its own.
#pragma once

#include <optional>
#include <vector>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

// Note [Recipes and versions]
// A recipe is replayed as one unit and yields the *last* version of every value its producer made.
// Hence:
// - a value may be evicted only after its last write, and a recipe may only run after its last op
// ran first;
// - each op of the chain must find its other inputs in the version that it read the first time. So
// the recipe stops
//   being valid at the first later write to any of them (`valid_until`), or when an input that
//   cannot itself be recomputed dies;
// - a reader of an earlier version is never served the last one: by the first rule it runs (first)
// before the value can
//   be evicted, and when it is replayed the second rule has ended its recipe at the write that
//   followed it.
//
// Note [Passing versions]
// What reads a value of the step that a later op of the step writes to never runs again. It could
// up to that write only, while its input is pinned; and the executor would have to hold that input
// (the step may depart, or raise), which autograd counts: it accumulates gradients in place where
// nobody else holds the buffer, and makes new ones elsewhere, so that another step would run. Such
// a recipe stays in the table all the same, without a position (mayRun()): what it made may be kept
// beyond its death for others, as whatever has a recipe may.
//
// A recipe with a recompute of every absent input, of their absent inputs and so on, at one
// position, always ends: recipes that would lead back to themselves are left out (Note [Recipes
// that feed themselves], recipes.cpp). Recipes that are not valid at that position must not be
// followed.
struct Recipe {
  std::vector<OpId> ops;         // producer first, ascending
  std::vector<ValueId> outputs;  // everything the producer makes, ascending
  std::vector<ValueId> inputs;   // data read from outside the recipe, ascending (statistics and
                                 // shape-only reads left out)
  int64_t workspace_bytes = 0;   // max over ops
  int64_t output_bytes = 0;      // sum over outputs: all of them are allocated during a replay
  double seconds = 0;            // sum of recorded seconds over ops
  bool random = false;           // any op draws from a generator
  OpId valid_until;              // may run at position "before op k" for last_op < k <= valid_until
  // First later write to an input: as valid_until, but not bounded by deaths of inputs (whoever
  // keeps them alive may replay until then).
  OpId unchanged_until;

  // Last op before which everything that bringing an output back may need can still be had; see
  // Note [Recoverability].
  OpId recoverable_until;

  OpId producer() const { return ops.front(); }
  OpId lastOp() const { return ops.back(); }
  bool mayRun() const { return unchanged_until > lastOp(); }  // see Note [Passing versions]
  // Whether an absent input of this recipe comes back by `feeder`, which makes it. One whose recipe
  // has ended by then is held.
  bool isFedBy(const Recipe& feeder) const { return feeder.recoverable_until > lastOp(); }
};

// Note [Recoverability]
// A step may depart from its plan at any op, and then everything that the program can still reach
// must come back. So before anything mutates what a value would be recomputed from, the value is
// resident. recoverable_until is the least `unchanged_until` among the recipe and, transitively,
// those of its inputs (an input whose own recipe has ended by the time this one begins is held
// instead, like one without a recipe). What is held or has no recipe is a root. A schedule must
// have a value resident while the op of its death runs, if that op is at recoverable_until or
// beyond, if a root has died by then, or if its recipe may not run: mustEndResident(). Else the
// executor, which evicts nothing that it cannot bring back and holds the roots of what it evicts,
// would need more memory than was planned. It brings back at recoverable_until whatever is away,
// still reachable, and never planned to return.
class POET_API RecipeTable {
 public:
  // A producer has a recipe if every op of its chain is replayable, the chain writes only what the
  // producer made, makes nothing else and updates no statistics beyond the producer, and every
  // output is evictable.
  explicit RecipeTable(const Graph& graph);

  const std::vector<Recipe>& recipes() const { return recipes_; }  // by producer, ascending
  // Index into recipes() of the recipe that yields `value`, or -1.
  int recipeOf(ValueId value) const { return recipe_of_[static_cast<size_t>(value.index)]; }
  int64_t ownBytes() const;  // that it takes of memory itself
  // Whether a schedule must have `value` resident while op Value::death runs.
  bool mustEndResident(ValueId value) const {
    return must_end_resident_[static_cast<size_t>(value.index)];
  }

 private:
  void findRecoverability(const Graph& graph);
  std::vector<OpId> findRootsUntil(const Graph& graph) const;

  std::vector<Recipe> recipes_;
  std::vector<int> recipe_of_;
  std::vector<bool> must_end_resident_;
};

}  // namespace poet
