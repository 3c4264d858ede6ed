// Schedule: what to do between the ops of a traced step, and what a planner says of it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

class RewrittenGraph;

// Note [Semantics of a schedule]
// Position "before op k" (0 <= k <= N; k = N is the end of the step): the actions in before[k] run
// in order, then op k. Position "after op k": the actions in after[k] run right after op k's
// kernel, before anything can die naturally. In between, values whose Value::death is k die, unless
// retained.
//   free(v)         v's bytes leave, and its retention ends. Only if resident and evictable. If the
//                   value lives on in the program (death >= the position), it must be recomputed
//                   or paged in before its next use and before the end of the step.
//   recompute(r)    runs the chain recipes[r] again as one unit: an op that makes values and, in
//                   order, every op that writes into those. All of them have run, none writes into
//                   anything else (running statistics of the first excepted), and only the first
//                   makes values. The chain's inputs must be resident in the versions that its ops
//                   first read. While it runs, every value its first op makes is allocated afresh,
//                   plus the largest workspace of the chain. Afterwards the values that were not
//                   resident (and are evictable) are, in the version that the program has reached;
//                   for those that were, the second copy is dropped. A value that comes back at a
//                   position > Graph::lastShown(v) is retained by that (nothing else may hold it).
//   page_out(v)     v's bytes are copied to the store; v stays in memory until it is freed. Only if
//                   resident and evictable. The copy is good for the version that it was made of,
//                   to the end of the step; another page_out replaces it.
//   page_in(v)      v's bytes come back from the store, in the version that the program has
//                   reached. Only if v is not resident and the store has a good copy, which stays
//                   good. v occupies memory from the moment that the transfer starts. One that
//                   comes back at a position > Graph::lastShown(v) is retained by that.
//   retain(v)       only in after[k] with k == Graph::lastShown(v): v survives its natural death
//                   until freed, or the end of the step.
// Frees that op k allows stand in before[k + 1]: until then the caller may still read the memory
// behind our back. A random op that any recompute of the schedule contains keeps
// DeviceProfile::generator_state_bytes from its first execution (that op included) to the end of
// the step. Values dead at the end of plain training may be absent at the end; all others must be
// resident, but for those of away_between_steps.
//
// Note [Time of transfers]
// Without DMA (DeviceProfile::dma_channels == 0) a transfer blocks: ops, replays and transfers run
// one after the other. With n channels a transfer begins as soon as its position is reached and one
// of the channels is free (the one that is free first), and the step goes on. It waits only
// - at an op, a replay or a page_out that touches a value whose page_in is not done;
// - at a write to, the natural death or a free of a value whose page_out (or page_in) is not done;
// - at a page_in of a value whose page_out is not done; and at the end of the step for everything.
//
// Note [Away between steps]
// Values of away_between_steps existed before the step and outlive it (optimizer state, weights).
// They are in the store, and not in memory, when the step begins, in the version that it begins
// with, and they may be there, in the version that it ends with, when it is over. The step that
// follows the first plan finds them in memory and moves them out at its start.
enum class ActionKind : uint8_t { kFree, kRecompute, kRetain, kPageOut, kPageIn };
POET_API std::string_view toString(ActionKind);

struct Action {
  ActionKind kind = ActionKind::kFree;
  int32_t arg = 0;  // ValueId::index, or an index into Schedule::recipes for kRecompute

  friend bool operator==(const Action&, const Action&) = default;
};

enum class Status : uint8_t { kOptimal, kFeasible, kInfeasible, kTimeLimit };
enum class Objective : uint8_t { kEnergy, kTime, kMemory };
POET_API std::string_view toString(Status);     // "optimal", "feasible", "infeasible", "time_limit"
POET_API std::string_view toString(Objective);  // "energy", "time", "memory"
POET_API Objective objectiveFromString(std::string_view);

// A moment of the search for a schedule: what was known by then, in the objective's unit.
struct SearchPoint {
  double seconds = 0;           // since the solve began
  std::optional<double> value;  // of the best plan
  std::optional<double> bound;  // greatest lower bound, in whatever scope

  friend bool operator==(const SearchPoint&, const SearchPoint&) = default;
};

// A plain aggregate: planners and methods fill it in, finalize() (schedule/simulator.h) writes the
// simulator's figures.
struct POET_API Schedule {
  uint64_t graph_signature = 0;
  int64_t num_ops = 0;
  std::string method = "poet";
  Status status = Status::kTimeLimit;
  Objective objective = Objective::kEnergy;
  std::optional<int64_t> ram_budget_bytes;
  std::optional<double> runtime_budget_seconds;
  std::optional<double> energy_budget_joules;  // of the step (schedule/energy_budget.h)

  // The plan. Empty unless status is kOptimal or kFeasible; then before has num_ops + 1 entries and
  // after num_ops.
  std::vector<std::vector<Action>> before;
  std::vector<std::vector<Action>> after;
  std::vector<std::vector<OpId>> recipes;
  std::vector<ValueId> away_between_steps;  // ascending; see Note [Away between steps]

  // What the simulator says of it (0 without a plan).
  int64_t peak_bytes = 0;
  OpId peak_op;
  double makespan_seconds = 0;
  double energy_joules = 0;

  // What the planner says of it.
  std::optional<double> bound;  // lower bound in the objective's unit (joules, seconds, bytes)
  std::optional<double>
      gap;  // (value - bound) / value; 0.0 when optimal; nullopt only without a plan
  std::string bound_scope;  // "all": every schedule; "candidates": schedules over the candidate
                            // recomputes only
  // Greatest lower bound known over every schedule, in the same unit: `bound` where that is one, or
  // what stands beside a greater one over candidates.
  std::optional<double> bound_all;
  int64_t believed_peak_bytes = 0;  // by the program's own arithmetic; equals peak_bytes
  double believed_seconds = 0;      // likewise
  double solve_seconds = 0;
  std::vector<SearchPoint> history;  // in order of time: each better plan and each better bound
  // Where the plan came from. Of the method "poet": the part of the planner that found it
  // (planner/plan_source.h), and behind "; starts: " the methods of the schedules that the search
  // was given to start from, where it took any: without that word nothing but the planner's own
  // plans went in. Of other methods: the phase that found it, where they have several, else empty.
  // Empty without a plan, and in what older versions wrote.
  std::string start;
  // With kInfeasible (and whenever known): the least budget that has a plan, and the op that sets
  // it.
  std::optional<int64_t> least_ram_budget;
  OpId least_ram_op;
  // Without a plan, of the method "poet": the one that has that budget, to start from with it. What
  // was found once, a second search need not find again in the same time. The compact form leaves
  // it out.
  std::shared_ptr<const Schedule> least_plan;
  // Where no plan keeps the energy budget: the joules of the best one that was found.
  std::optional<double> least_energy_joules;
  std::string message;  // for the user: why infeasible, why no plan, what a budget came from

  // The same plan where `bytes` more lie beside the step: its figures in bytes, all the greater.
  Schedule besideMore(int64_t bytes) const;
  bool hasPlan() const { return status == Status::kOptimal || status == Status::kFeasible; }
  double objectiveValue() const;  // of the plan, in the objective's unit
  int64_t countActions(ActionKind kind) const;
  int64_t ownBytes() const;  // that it takes of memory itself

  std::string toJson() const;
  static Schedule fromJson(
      std::string_view text);  // throws FormatError; checks its own consistency, not the graph's
  void save(const std::string& path) const;  // replaces the file atomically
  static Schedule load(const std::string& path);
  // The compact form for devices (schedule/compact.h). Throws ScheduleError where the schedule does
  // not belong to the graph; fromBytes throws FormatError for damaged bytes.
  std::string toBytes(const Graph& graph) const;
  static Schedule fromBytes(std::string_view bytes, const Graph& graph);
  // What runs in which order, with recomputed copies and transfers (schedule/rewritten_graph.h).
  // Throws ScheduleError as simulate() does. Without a plan: the plain step.
  RewrittenGraph rewrittenGraph(const Graph& graph) const;
  // Throws ScheduleError naming both signatures if it was made for another graph, or if any id is
  // out of range.
  void checkAgainst(const Graph& graph) const;

  static constexpr int kFormatVersion = 1;
};

}  // namespace poet
