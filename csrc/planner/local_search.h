// Large neighbourhood search over a Program: most of a point is kept, a window of it is solved
// exactly by branch and cut.
//
// Windows: the values of a stretch of the step (one to three stretches), the stages around a tight
// moment, or where the point and the relaxation disagree. Their size adapts to how fast they are
// solved. A point that exceeds the budget is repaired on the way: the window's memory rows then
// share one elastic column. Source: Shaw, CP 1998; relaxation-induced neighbourhoods: Danna,
// Rothberg, Le Pape, Math. Prog. 2005.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "planner/clock.h"
#include "planner/cuts.h"
#include "planner/lp_loop.h"
#include "planner/program.h"

namespace poet::planner {

struct LocalSearchOptions {
  double window_seconds = 2;  // per window
  int threads = 1;
  uint64_t seed = 0;
  SolverChoice solver = {};
};

class LocalSearch {
 public:
  // `relaxation` guides and cuts; it must be of the same program.
  LocalSearch(const Program& program, const Relaxation& relaxation,
              const LocalSearchOptions& options);

  // Moves to another point (a plan of the program), which may exceed the budget.
  void moveTo(std::vector<double> point);
  // Solves one window within the time; true where the score fell.
  bool improveOnce(double time_limit_seconds);

  const std::vector<double>& point() const { return point_; }
  double excessBytes() const { return excess_; }  // 0: keeps the budget
  double score() const { return score_; }         // scaled cost, and a heavy price on the excess
  bool lastWindowWasEverything() const { return last_was_everything_; }

 private:
  struct Window {
    SparseModel model;
    std::vector<int> columns;  // of the program
    std::vector<double> start;
    bool elastic = false;
  };

  void describeColumns();
  void transpose();
  std::vector<char> pickValues(bool disagreeing);
  std::vector<char> pickStages();
  void freeGenerators(std::vector<char>& free) const;
  Window makeWindow(const std::vector<char>& free);
  void addProgramRows(const std::vector<char>& free, const std::vector<int>& place,
                      Window& window) const;
  void addMemoryRows(const std::vector<char>& free, const std::vector<int>& place,
                     Window& window) const;
  double scoreOf(const std::vector<double>& point, double& excess) const;
  size_t below(size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random_); }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  const Program& program_;
  const Relaxation& relaxation_;
  const LocalSearchOptions options_;
  std::mt19937_64 random_;
  SparseModel rows_;                           // the program and the cuts, without memory rows
  std::vector<std::vector<int>> rows_of_;      // by column
  std::vector<std::vector<int>> columns_of_;   // by value: its gaps and the replays that make it
  std::vector<int> first_stage_, last_stage_;  // by column
  std::vector<double> point_;
  double score_ = 0;
  double excess_ = 0;
  size_t size_ = 900;  // columns to free
  bool last_was_everything_ = false;
};

}  // namespace poet::planner
