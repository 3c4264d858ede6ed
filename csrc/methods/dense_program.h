// The columns and rows of the dense program. See poet_paper.h for papers and equations.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "planner/clock.h"
#include "planner/problem.h"
#include "planner/replay_plan.h"
#include "planner/sparse_model.h"

namespace poet::methods {

struct DenseOptions {
  int64_t budget_bytes = 0;                    // > 0
  std::optional<double> replay_seconds_limit;  // of replays and transfers
  // Building stops when it is over: millions of rows take longer than a short search may.
  const planner::Deadline* deadline = nullptr;
};

// The problem must outlive the program, and nothing of it may start away.
class DenseProgram {
 public:
  DenseProgram(const planner::Problem& problem, const DenseOptions& options);

  // How many columns there would be, about.
  static int64_t estimateColumns(const planner::Problem& problem);

  // False where the deadline ended it: then there is nothing to solve.
  bool complete() const { return complete_; }
  const planner::SparseModel& model() const { return model_; }
  planner::ReplayPlan planOf(std::span<const double> x) const;
  // S^RAM of value v in stage t, in [0, 1]; 0 where it cannot be kept.
  double keptAt(std::span<const double> x, int t, int v) const {
    const int column = stages_[static_cast<size_t>(t)].kept[static_cast<size_t>(v)];
    return column < 0 ? 0 : x[static_cast<size_t>(column)];
  }

 private:
  // What stands in one stage: columns, -1 where there is none.
  struct DenseStage {
    std::vector<int> kept;       // S^RAM by value: in memory when the stage begins
    std::vector<int> stored;     // S^SD by value: a good copy is in the store then
    std::vector<int> in, out;    // M^in, M^out by value
    std::vector<int> recompute;  // R by replay
    std::vector<int> order;      // replays that may run, in running order, page-ins left out
  };
  using Terms = std::vector<planner::Term>;

  bool lives(int v, int t) const;
  void addStage(int t);
  void addTransfers(int t, int v);
  void addPresence(int t);
  void addStore(int t);
  void addGenerators();
  void addMemory(int t);
  int addStartOfStage(int t);
  int addReplayMemory(int t, size_t e, int before, Terms& freed);
  int addFree(int t, int v, size_t event);
  Terms presenceOf(int t, int v) const;
  void addCopies(int t, int replay, Terms& balance);
  void addGeneratorBytes(int t, bool at_execution, Terms& terms) const;
  void addDeadline();
  bool isOver() const { return options_.deadline != nullptr && options_.deadline->over(); }
  double share(int64_t bytes) const {
    return static_cast<double>(bytes) / static_cast<double>(options_.budget_bytes);
  }
  const planner::Replay& replay(int r) const { return problem_.replays[static_cast<size_t>(r)]; }
  const planner::Evictable& value(int v) const { return problem_.values[static_cast<size_t>(v)]; }

  const planner::Problem& problem_;
  const DenseOptions options_;
  planner::SparseModel model_;
  bool complete_ = false;
  std::vector<DenseStage> stages_;
  std::vector<int> generator_;  // by stage: its generator's state is kept; -1: it draws nothing
};

}  // namespace poet::methods
