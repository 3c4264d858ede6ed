// What simplex iterations and nodes of branch and cut count for, in seconds of work (clock.h, Note
// [Work]).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "planner/clock.h"
#include "planner/sparse_model.h"

namespace poet::planner {

// Of a model with that many columns, rows and entries in them.
class SolverWork {
 public:
  // `per_node`: how much more a node costs than one of HiGHS.
  explicit SolverWork(const SparseModel& model, double per_node = 1)
      : size_(static_cast<double>(model.index.size()) + model.numColumns() + model.numRows()),
        per_node_(per_node) {}

  void addEntries(size_t entries) { size_ += static_cast<double>(entries); }

  // At least one, so that there is progress.
  int iterationsWithin(double seconds) const { return within(seconds, secondsPerIteration()); }
  int nodesWithin(double seconds) const {
    return within(seconds - rootSeconds(), secondsPerNode());
  }

  void chargeIterations(double iterations) const {
    chargeWork(size_ * kLoading + iterations * secondsPerIteration());
  }
  // Of a branch and cut that says how many of all kinds it took, cuts and heuristics with them:
  // what presolve has decided takes none.
  void chargeSearch(double iterations) const {
    chargeWork(rootSeconds() + iterations * kSearchIteration * std::sqrt(size_));
  }

 private:
  // Measured over traced steps; what counts is that they are constants. The bases are so sparse
  // that an iteration takes about the root of what the model holds.
  static constexpr double kIteration = 5e-7, kLoading = 5e-8, kRoot = 1e-5, kNode = 5e-7;
  static constexpr double kSearchIteration = 6e-6;
  static constexpr int kMost = 1000000000;

  double secondsPerIteration() const { return kIteration * std::sqrt(size_) + 1e-6; }
  double secondsPerNode() const { return per_node_ * (kNode * size_ + 1e-4); }
  double rootSeconds() const { return kRoot * size_ + 1e-3; }
  static int within(double seconds, double each) {
    return static_cast<int>(std::clamp(std::floor(seconds / each), 1.0, double{kMost}));
  }

  double size_;
  double per_node_;
};

}  // namespace poet::planner
