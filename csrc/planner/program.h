// The sparse event-timeline program, written once against a neutral sparse model. See
// docs/planner.md for the mathematics.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "planner/candidates.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"
#include "planner/sparse_model.h"

namespace poet::planner {

// Note [Event timeline]
// A micro-step is a candidate replay of a stage, or the stage's first execution; they stand in
// running order. The events of a value are the micro-steps that make it (P) or touch it (U), in
// order. Variables, all binary:
//   r_s  the replay of micro-step s runs;
//   x_g  the value stays in memory across gap g, from one of its events to the next;
//   g_p  the generator states of replay p are kept; of a page-in p: its page_out is made.
//   w_t  the store is woken before stage t; only where that costs something.
// Rows, with x the gap before an event and x' the gap after it:
//   (1) P by replay s:           x' <= x + r_s
//   (2) U by replay s:           r_s <= x          and x' <= x
//   (3) U by a first execution:  x = 1
//   (4) random ops, page-ins:    r_s <= g_p
//   (7) transfers at stage t:    r_s <= w_t, g_p <= w_t
//   (5) memory at s:             sum of bytes x over gaps across s + replay bytes r_s + generator
//   bytes g <= B_s - fixed_s (6) deadline:                sum of seconds r <= D
// B_s is the budget, or the last sum of whole sizes within it (Note [Whole sizes]).
// Rows (5) are many and few of them bind, so whoever solves adds those that are violated. All rows
// are divided by their right-hand scale and costs by the plain step's seconds / 100, so that no
// tolerance of a solver matters.
//
// Note [Bounds for every schedule]
// The program replays a recipe at most once in a stage, in running order. A schedule may do more:
// with little memory left it can pay to replay b before a, or a twice. A *relaxed* program is one
// that every schedule is a point of, whatever its order and its repetitions: r_{t,i} = "stage t
// replays i at all"; x of a gap that spans first executions = "resident during all of them"; x of a
// gap inside a stage = "resident at the stage's start, or replayed in it". Rows (1) to (4), (6) and
// the path cuts hold for it as they stand, and so does (5) at first executions. At a replay i of
// stage t only this much is sure: i itself takes its memory and its inputs', and what is resident
// during op(t) without having been replayed in t was there all along:
//   (5') replay bytes r_i + sum over inputs of bytes r_i + sum over others of bytes (x_v at op(t) -
//   r_{t,v}) + g <= B - fixed
// Without rows (5') nothing but first executions asks for memory, so a value that replays of a
// stage may read stays through all of them at once: the gaps after its touches in the stage are one
// column. With every runnable replay as a candidate its optimum is a lower bound for all schedules.
// Where the plan that it yields keeps the budget, that plan is optimal; where it does not, the
// program with several rounds a stage finds one.

struct MicroStep {
  int stage = 0;
  int replay = -1;  // -1: the first execution
  int column = -1;  // of r
};

struct TouchEvent {
  int step = 0;  // -1: the start of the step, where the value is there already
  bool makes = false;
  int gap_column = -1;  // of the gap after it; -1 after the last
};

// `bytes` are resident during steps first..last if the column is 1.
struct MemoryItem {
  int first = 0;
  int last = 0;
  int column = -1;
  int64_t bytes = 0;
};

struct ProgramOptions {
  int64_t budget_bytes = 0;
  std::optional<double> replay_seconds_limit;  // deadline minus the plain seconds
  // Rows (5') in place of (5) at replays.
  bool relaxed = false;
  // Without them the program is a relaxation too, and next to never a weaker one: replays come just
  // before a first execution that has a row of its own.
  bool rows_at_replays = true;
  // Both objectives at once: cost of the replays, times this ...
  double replay_weight = 1;
  // ... plus this times (peak - budget) / budget where positive. 0: the budget is hard.
  double excess_weight = 0;
};

// A violated or a wanted memory row: the micro-step it stands for, and by how many bytes it is
// violated.
struct MemoryRow {
  int step = 0;
  double excess_bytes = 0;
};

// Scaled objective of one second of plain computation.
double costPerSecond(const Problem& problem);

class Program {
 public:
  Program(const Problem& problem, const Candidates& candidates, const ProgramOptions& options);

  const Problem& problem() const { return *problem_; }
  const ProgramOptions& options() const { return options_; }
  const SparseModel& model() const { return model_; }  // without rows (5)
  int numColumns() const { return model_.numColumns(); }
  const std::vector<MicroStep>& steps() const { return steps_; }
  const std::vector<std::vector<TouchEvent>>& events() const { return events_; }
  const std::vector<MemoryItem>& items() const { return items_; }
  const std::vector<int64_t>& fixedBytes() const { return fixed_; }  // by step
  int firstStepOf(int stage) const {
    return first_step_[static_cast<size_t>(stage)];
  }  // earliest micro-step of a stage
  int executionOf(int stage) const { return first_step_[static_cast<size_t>(stage) + 1] - 1; }

  // Of the page_out that all page-ins of a segment share; -1 where it costs nothing of its own.
  int outColumn(int replay) const { return out_column_[static_cast<size_t>(replay)]; }

  int excessColumn() const { return excess_column_; }  // -1 where the budget is hard

  // Bytes resident by step; of relaxed programs the left sides of (5').
  std::vector<double> profile(std::span<const double> x) const;
  // The right side of row (5), fixed bytes included: the budget, or what whole sizes leave of it.
  int64_t mostBytes(int step) const { return most_[static_cast<size_t>(step)]; }
  // Violated rows (5) by more than `tolerance` x budget, at most one a stage, worst first.
  std::vector<MemoryRow> violatedRows(std::span<const double> x, double tolerance) const;
  // Row (5) of a step, divided by the budget: terms and upper bound.
  double memoryRow(int step, std::vector<Term>& terms) const;

  // The plan as a point; nullopt where it uses what is no candidate. Retention is the least that
  // serves it.
  std::optional<std::vector<double>> pointOf(const ReplayPlan& plan) const;
  // The one place where solver values are rounded.
  ReplayPlan planOf(std::span<const double> x) const;
  // Sets retention (and generator states) to the least that the replays of x need.
  void leastRetention(std::vector<double>& x) const;
  // Sets the excess column, where there is one, to what the rest of x needs.
  void setExcess(std::vector<double>& x) const;

 private:
  void addSteps(const Candidates& candidates);
  void addEvents();
  void addValue(int v, std::vector<TouchEvent>& events);
  bool mergesGaps() const { return options_.relaxed && !options_.rows_at_replays; }
  void addGenerators();
  void addPageOuts();
  int wakeColumn(int stage);
  void addDeadline();
  void roundBudget();
  void relaxReplays(std::span<const double> x, std::vector<double>& bytes) const;
  void relaxedRow(int step, std::vector<Term>& terms) const;
  // Column of the gap of v that covers the step, -1 where none does.
  int gapOver(int v, int step) const;
  int replayColumn(int t, int r) const;

  const Problem* problem_;
  ProgramOptions options_;
  SparseModel model_;
  std::vector<MicroStep> steps_;
  std::vector<int> first_step_;
  std::vector<std::vector<TouchEvent>> events_;
  std::vector<MemoryItem> items_;
  std::vector<int64_t> fixed_, most_;  // by step
  std::vector<int> generator_column_;  // by replay, -1 where none
  std::vector<int> out_column_;        // by replay: its page_out, -1 where none
  std::vector<int> wake_column_;       // by stage, -1 where none
  int excess_column_ = -1;
};

}  // namespace poet::planner
