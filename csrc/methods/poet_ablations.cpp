// poet_remat_only, poet_page_only: the dense program of POET's paper with one of its two means.
//
// Paper: the ablations of POET (Patil et al., ICML 2022, section 5.3 and Figure 3).
//
// Chosen: poet_paper.h's program with the other means left out: without paging it is Checkmate's,
// without recompute it holds page-ins and page_outs alone.
//
// Bound: poet_paper.h's, over schedules of the one means, so "candidates": with both means plans
// may cost less. On the chains that tests search exhaustively it is that means' optimum.
//
// Weakness: poet_remat_only: what cannot be computed again stays, and near the least budget it
// recomputes what a store would bring back for less; O(T * (values + recipes)) columns as in
// poet_paper.h. poet_page_only: O(T * values) columns; transfers block, so a slow store makes every
// plan slow, and nothing is made smaller while an op needs it.
#include "methods/every_method.h"
#include "methods/poet_paper.h"

namespace poet::methods {
namespace {

Schedule planAblation(const Graph& graph, const DeviceProfile& profile, SolveOptions options,
                      const char* name) {
  Schedule schedule = solvePoetPaper(graph, profile, options);
  schedule.method = name;
  return schedule;
}

}  // namespace

Schedule planPoetRematOnly(const Graph& graph, const DeviceProfile& profile,
                           const SolveOptions& options) {
  SolveOptions own = options;
  own.paging = false;
  return planAblation(graph, profile, std::move(own), "poet_remat_only");
}

Schedule planPoetPageOnly(const Graph& graph, const DeviceProfile& profile,
                          const SolveOptions& options) {
  SolveOptions own = options;
  own.recompute = false;
  return planAblation(graph, profile, std::move(own), "poet_page_only");
}

}  // namespace poet::methods
