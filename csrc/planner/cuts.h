// Path cuts: what the plain relaxation does not see.
//
// It keeps a tenth of one tensor and feeds ten fractional replays from it. For a touch of v by a
// first execution in stage t and an earlier stage start tau after v's previous plain touch, with W
// the micro-steps from tau on, and any ancestor path v <- u <- ... <- w of values that exist at
// tau:
//   sum over z on the path of x_z(tau)  +  sum over s in W of r_{w,s}  >=  1
// since v is resident at tau or is made in W; if it is made, so is or was u; and so on. Separation
// is a shortest path over ancestors: label(z) = x_z(tau) + min(sum_W r_z, min over inputs u of
// label(u)). Exact for one (t, v, tau); O(edges) each. Source: derived for poet; the idea of
// following a chain of inputs is that of flow covers.
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
  struct Lookup {                               // of one value, ascending by step
    std::vector<int> made_steps, made_columns;  // replays that make it, page-ins too
    std::vector<char> made_by_page;
    std::vector<int> gap_first, gap_last, gap_columns;
    std::vector<double> made_sum;   // prefix sums of x over made_columns
    std::vector<double> paged_sum;  // likewise, over those of page-ins
  };
  struct Label {
    double value = 0;
    int next = -1;    // input that the path goes on to; -1: ends with replays of this value
    int window = -1;  // for which it holds
  };

  void separateTouch(std::span<const double> x, int t, int v, std::vector<PathCut>& cuts);
  double label(std::span<const double> x, int v);
  double within(const Lookup& lookup, const std::vector<double>& sum) const;
  int gapAcross(int v) const;
  PathCut follow(int v, double value) const;

  const Program& program_;
  std::vector<Lookup> lookup_;
  std::vector<Label> labels_;
  int window_ = 0;  // id of the current (t, v, tau)
  int window_first_ = 0, window_end_ = 0;
  int window_stage_ = 0;
};

}  // namespace poet::planner
