// Problem: what of a Graph is a choice. Graph + DeviceProfile -> stages, evictable values,
// replayable recipes, and the bytes that no plan can take away. Greedy start, program, local search
// and extraction all speak of these indices.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "device/profile.h"
#include "graph/coarsening.h"
#include "graph/graph.h"
#include "graph/recipes.h"
#include "planner/replay_plan.h"
#include "schedule/schedule.h"

namespace poet::planner {

// Note [Stages]
// Stage t is op t, and the end of the step is the last one: what must outlive the step is an input
// of it. Replays of stage t run at position "before op t", then op t runs for the first time. Views
// are stages as well: nothing happens in them, but a value may die with one, or a recipe end before
// it, and then it matters on which side of it a replay stands.

// Note [Segments]
// What a plan may free and bring back is not a value but a span of its life in which nothing writes
// to it: an *Evictable*.
// - A value that the step makes has one: from its last write on; until then it stays.
// - A value that exists before the step has one up to its first write, and one from its last write
//   on; between the two it is a constant. The second one is born in the stage of that write, in
//   place of the first where there is one write only. A value without writes has one.
// It comes back by a recompute (an output of a recipe), by a page-in, or by either.
//
// Note [Page-ins are replays]
// A page-in of v acts like a recipe that makes v and reads nothing. What it costs beyond that, the
// one page_out that all page-ins of a segment share, is paid once for a plan (Replay::once_*), as
// the generator states of a random recipe are kept once. So greedy, annealing, program, cuts and
// extraction know of one kind of thing. The page_out stands right after the last write: earlier is
// impossible, and later gains nothing without overlap.
//
// Note [The price of a transfer]
// A transfer that blocks costs the step its seconds. One that runs beside computation costs it
// nothing until a channel is full: with R seconds of replays and X seconds of transfers on c
// channels a step takes at least max(plain + R, X / c). Plans are searched for R + price * X with
// 0 <= price <= 1, the Lagrange multiplier of the channels' capacity. Energy that the store draws
// while it moves something is charged in full. A price is a way to look for plans and nothing more:
// what they take is timed (Note [Timing of transfers]) and simulated.
//
// Note [Dominated recomputes]
// Where the page_outs and page-ins of all that a recipe makes cost no more than one replay of it,
// some best plan never replays it: page-ins at the same place make the same values, read nothing,
// and take less memory meanwhile; a page_out takes none. The same must hold of their seconds where
// there is a deadline, and waking the store must cost nothing. Programs leave such replays out.
struct Evictable {
  ValueId id;
  int64_t bytes = 0;
  int recipe = -1;           // index into Problem::replays; -1: it cannot be recomputed
  int page = -1;             // likewise; -1: it cannot be paged
  int first_stage = 0;       // its producer's or first write's; -1: the start of the step
  bool starts_away = false;  // in the store when the step begins (first_stage is -1)
  bool in_place = false;     // born with a write to the segment before it, which is resident then
  bool goes_on = false;      // its last use is the write after which the next segment may begin
  int pin_stage = 0;         // of its last write: it is not freed before this stage has run
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

// A recipe of the RecipeTable with at least one evictable output, or a page-in.
struct Replay {
  int table_index = -1;  // of a recipe
  bool is_page = false;
  std::vector<OpId> ops;
  std::vector<int> outputs;  // evictable values, ascending
  std::vector<int> inputs;   // likewise
  std::vector<ValueId>
      held;  // small outputs of other recipes that it reads: they must be retained for it
  std::vector<ValueId> small_outputs;
  int64_t replay_bytes = 0;  // all outputs afresh, and the workspace
  double seconds = 0;        // of one replay
  // In the objective: seconds of plain computation that are as dear (Problem::costOfTransfer).
  double cost = 0;
  double once_seconds = 0;  // of a page-in: the page_out, paid by the first page-in of a plan
  double once_cost = 0;
  int out_stage = -1;              // of a page-in: the page_out stands before the op of this stage
  int last_stage = 0;              // stage of its last op: it may run in later stages only
  int until_stage = -1;            // last stage in which it may run
  bool dominated = false;          // See Note [Dominated recomputes]
  std::vector<int> random_stages;  // first executions of its ops that draw from a generator
};

struct Stage {
  // As fixed_during_bytes: nothing asks for memory then. Sums with the bytes of a graph stay in
  // range.
  static constexpr int64_t kNoMemoryRow = std::numeric_limits<int64_t>::min() / 4;

  OpId op;                         // Graph::endOfStep() for the last one
  int64_t fixed_before_bytes = 0;  // fixed values resident while replays of this stage run
  int64_t fixed_during_bytes =
      0;  // fixed values, evictable outputs and workspace while op runs first
  int64_t held_bytes =
      0;  // part of both: small values past their natural death, held for later replays
  std::vector<int> needs = {};  // evictable values that op touches, ascending; its outputs left out
  std::vector<int> born = {};   // evictable values that op makes
  uint64_t colour = 0;          // equal for twins (Note [Repeated blocks])
};

struct ProblemOptions {
  // Values up to this size are constants. The default keeps programs of long steps small, those of
  // short ones exact.
  static int64_t defaultSmallBytes(int64_t plain_peak_bytes, int64_t num_ops);
  int64_t small_bytes = 0;
  Objective objective = Objective::kEnergy;
  bool recompute = true;
  bool paging = false;  // needs DeviceProfile::hasStore()
  // See Note [Away between steps] in schedule/schedule.h.
  std::vector<ValueId> away = {};
  // Of a second of transfers, in seconds of the step: 1 where transfers block (Note [The price of a
  // transfer]).
  double transfer_price = 1;
  // The deadline bounds seconds, whatever the objective.
  bool has_deadline = true;
  // Where `graph` is a coarse one: a replay then costs what the fine ops in it do. Must outlive the
  // problem.
  const Coarsening* coarsening = nullptr;
};

// Immutable once built.
class Problem {
 public:
  // Graph and profile must outlive it; it keeps neither, so no temporary will do.
  Problem(const Graph& graph, const RecipeTable& table, const DeviceProfile& profile,
          const ProblemOptions& options);
  Problem(const Graph&, const RecipeTable&, DeviceProfile&&, const ProblemOptions&) = delete;

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
  // Of a budget: what is left for tensors that the step touches, at least one byte. Shares of a
  // budget are taken of this; else a large model beside the step would make each of them coarse.
  int64_t bytesForStep(int64_t budget_bytes) const {
    return std::max<int64_t>(1, budget_bytes - graph_->baseBytes());
  }
  // What every plan has: a page-in of each value that starts away, before its first use.
  ReplayPlan leastPlan() const;
  bool pages() const { return pages_; }
  // Seconds of plain computation that are as dear as a transfer of so many seconds, and as a
  // wake-up of the store.
  // The former is priced, and so are the seconds of page-ins and page-outs below.
  double costOfTransfer(double seconds) const;
  double transferPrice() const { return transfer_price_; }
  double costOfWakeUp() const;

  std::vector<Stage> stages;
  std::vector<Evictable> values;
  std::vector<Replay> replays;  // in an order in which each may read what earlier ones make
  std::vector<Fixed> fixed;
  // Page-outs that every plan has: of values that are away between steps, after their last write.
  std::vector<int> page_outs;  // values that begin with that write
  std::vector<ValueId> away;   // ascending
  double constant_seconds = 0;
  double constant_cost = 0;
  int64_t generator_bytes = 0;
  double plain_seconds = 0;
  // No positive size was rounded into a constant and nothing was left out: bounds hold for every
  // schedule.
  bool exact = true;

  int64_t start_bytes = 0;  // resident when the step begins, before anything can be paged out

  // What every schedule needs, whatever it recomputes: the greatest stage's inputs, outputs,
  // workspace and what cannot be away at that moment.
  int64_t floor_bytes = 0;
  OpId floor_op;

 private:
  void findStages();
  void findReplays(const RecipeTable& table, const ProblemOptions& options);
  void addReplay(const Recipe& recipe, int table_index, const ProblemOptions& options);
  double secondsOfReplay(OpId op) const;
  void addSegments(ValueId id, const ProblemOptions& options);
  void addPage(int value);
  void linkReplays(const RecipeTable& table);
  void findDominated(bool has_deadline);
  // Segment that holds the value when stage t reads it; -1: it is a constant then.
  int segmentAt(ValueId id, int t) const;
  void findUses(const RecipeTable& table);
  void findFixed();
  void findFloor();

  const Graph* graph_;
  const DeviceProfile* profile_;
  const Coarsening* coarsening_;
  Objective objective_;
  double transfer_price_ = 1;
  bool pages_ = false;
  std::vector<std::vector<int>> segments_;  // by ValueId: indices into values, ascending in time
};

}  // namespace poet::planner
