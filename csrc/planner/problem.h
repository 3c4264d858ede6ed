// Problem: what of a Graph is a choice. Graph + DeviceProfile -> stages, evictable values,
// replayable recipes, and the bytes that no plan can take away. Greedy start, program, local search
// and extraction all speak of these indices.
#pragma once

#include <cstdint>
#include <vector>

#include "device/profile.h"
#include "graph/graph.h"
#include "graph/recipes.h"

namespace poet::planner {

// Note [Stages]
// Stage t is op t, and the end of the step is the last one: what must outlive the step is an input
// of it. Replays of stage t run at position "before op t", then op t runs for the first time. Views
// are stages as well: nothing happens in them, but a value may die with one, or a recipe end before
// it, and then it matters on which side of it a replay stands.

// A value that a plan may free and bring back: an output of a recipe above the size threshold.
struct Evictable {
  ValueId id;
  int64_t bytes = 0;
  int recipe = -1;      // index into Problem::recipes
  int first_stage = 0;  // its producer's
  int pin_stage = 0;    // of its last write: it is not freed before this stage has run
  std::vector<int> use_stages =
      {};  // first executions that touch it, ascending, after first_stage; the end of the
           // step is one where the value outlives it
  bool at_end = false;
};

// A value that dies by itself or never, as in plain training: what no recipe yields, and what is
// too small to matter.
struct Fixed {
  ValueId id;
  int64_t bytes = 0;
  int hold_stage =
      -1;  // small outputs of recipes: the last stage whose replays may still read it; else -1
};

// A recipe of the RecipeTable with at least one evictable output.
struct Replay {
  int table_index = -1;
  std::vector<OpId> ops;
  std::vector<int> outputs;  // evictable values, ascending
  std::vector<int> inputs;   // likewise
  std::vector<ValueId>
      held;  // small outputs of other recipes that it reads: they must be retained for it
  std::vector<ValueId> small_outputs;
  int64_t replay_bytes = 0;        // all outputs afresh, and the workspace
  double seconds = 0;              // of one replay
  int last_stage = 0;              // stage of its last op: it may run in later stages only
  int until_stage = -1;            // last stage in which it may run
  std::vector<int> random_stages;  // first executions of its ops that draw from a generator
};

struct Stage {
  OpId op;                         // Graph::endOfStep() for the last one
  int64_t fixed_before_bytes = 0;  // fixed values resident while replays of this stage run
  int64_t fixed_during_bytes =
      0;  // fixed values, evictable outputs and workspace while op runs first
  int64_t held_bytes =
      0;  // part of both: small values past their natural death, held for later replays
  std::vector<int> needs = {};  // evictable values that op touches, ascending; its outputs left out
  std::vector<int> born = {};   // evictable values that op makes
};

struct ProblemOptions {
  // Values up to this size are constants. The default keeps programs of real steps small, those of
  // tiny graphs exact.
  static int64_t defaultSmallBytes(int64_t plain_peak_bytes);
  int64_t small_bytes = 0;
  // Leaves out gradients that survive the step and everything that the optimizer makes or touches:
  // they are seldom worth a choice, and there are hundreds of them.
  bool lean = false;
};

// Immutable once built.
class Problem {
 public:
  Problem(const Graph& graph, const RecipeTable& table, const DeviceProfile& profile,
          const ProblemOptions& options);

  const Graph& graph() const { return *graph_; }
  const DeviceProfile& profile() const { return *profile_; }
  int numStages() const { return static_cast<int>(stages.size()); }
  int numValues() const { return static_cast<int>(values.size()); }
  int endStage() const { return numStages() - 1; }
  // May `replay` run in stage t?
  bool runnable(int replay, int t) const {
    const Replay& r = replays[static_cast<size_t>(replay)];
    return r.last_stage < t && t <= r.until_stage;
  }
  // Latest stage before t in which plain training touches the value; -1 before it exists.
  int plainTouchBefore(int value, int t) const;
  // Earliest stage >= t in which plain training touches it; -1 where there is none.
  int plainTouchFrom(int value, int t) const;

  std::vector<Stage> stages;
  std::vector<Evictable> values;
  std::vector<Replay> replays;  // in an order in which each may read what earlier ones make
  std::vector<Fixed> fixed;
  std::vector<int> value_of;  // by ValueId: index into values, or -1
  int64_t generator_bytes = 0;
  double plain_seconds = 0;
  // No positive size was rounded into a constant and nothing was left out: bounds hold for every
  // schedule.
  bool exact = true;

  // What every schedule needs, whatever it recomputes: the greatest stage's inputs, outputs,
  // workspace and what cannot be away at that moment.
  int64_t floor_bytes = 0;
  OpId floor_op;

 private:
  void findStages();
  void findReplays(const RecipeTable& table, const ProblemOptions& options);
  void addReplay(const Recipe& recipe, int table_index, const ProblemOptions& options);
  void linkReplays(const RecipeTable& table);
  void findUses(const RecipeTable& table);
  void findFixed();
  void findFloor();
  bool leftOut(const Recipe& recipe) const;

  const Graph* graph_;
  const DeviceProfile* profile_;
  OpId last_backward_;
};

}  // namespace poet::planner
