// Path cuts: what the plain relaxation does not see.
//
// It keeps a tenth of one tensor and feeds ten fractional replays from it. Let a first execution in
// stage t touch v, and let tau be the start of an earlier stage after v's previous plain touch.
// Take any path of ancestors v = z_1 <- z_2 <- ... <- z_k of values that exist at tau, and
// micro-steps t >= e_1 >= e_2 >= ... >= e_k >= tau, with e_1 the touch. Then
//   sum over i of [ x_{z_i}(tau) + P_i + sum of r_{z_i,s} over e_{i+1} <= s < e_i ]  >=  1
// where e_{k+1} = tau, and P_i is either the sum of the page-ins of z_i in [tau, e_i) or the
// page_out that they all need. For z_i is resident just before e_i; so it was at tau, or it came
// back in between: by a page-in, by a replay that is counted, or by a replay before e_{i+1}, and
// then z_{i+1} was resident just before that replay, which is what the rest of the sum says.
//
// Separation, exact for one tau, is a shortest path over (value, micro-step):
//   label(z, e) = x_z(tau) + P + min over e' of (replays of z in [e', e)) + min over inputs u of
//   label(u, e')
// Only replays with positive value need a state, and labels do not depend on t or v. Source:
// derived for poet; the idea of following a chain of inputs is that of flow covers.
#pragma once

#include <span>
#include <vector>

#include "planner/program.h"

namespace poet::planner {

struct PathCut {
  std::vector<int> columns;  // their sum must be at least 1; ascending
  double value = 0;          // what it is
};

class PathCutSeparator {
 public:
  explicit PathCutSeparator(const Program& program);

  // Violated cuts, worst first, at most one per (stage, value).
  std::vector<PathCut> separate(std::span<const double> x);

 private:
  // Of one value; steps ascend.
  struct Lookup {
    std::vector<int> made_steps, made_columns;  // replays that make it, page-ins too
    std::vector<char> made_by_page;
    std::vector<int> gap_first, gap_last, gap_columns;
    // Those of made_steps with a positive value, and sums over the ones before each.
    std::vector<int> live;
    std::vector<double> replayed_before, paged_before;  // one longer than live
  };
  struct Label {
    int window = -1;  // for which it holds
    double value = 0;
    int pass = -1;  // of live: the latest replay that is charged to an input; -1: none is
    int next = -1;  // that input
    bool by_page_out = false;  // its page-ins are counted by their page_out
  };

  void gatherLive(std::span<const double> x);
  double label(std::span<const double> x, int v, int before);
  double chargeInputs(std::span<const double> x, int recipe, int step, int& next);
  size_t numLiveBefore(const Lookup& lookup, int step) const;
  int gapAcross(int v) const;
  int outColumn(int v) const;
  PathCut follow(int v, int before, double value) const;

  const Program& program_;
  std::vector<Lookup> lookup_;
  std::vector<std::vector<Label>> labels_;  // by value, by number of live replays before the step
  std::vector<int> live_stages_;            // with a replay of positive value
  int window_ = 0;                          // id of the current tau
  int window_first_ = 0;                    // micro-step
  int window_stage_ = 0;
};

}  // namespace poet::planner
