// poet_remat_only, poet_page_only: the dense program of POET's paper with one of its two means.
//
// Paper: the ablations of POET (Patil et al., ICML 2022, section 5.3 and Figure 3).
//
// Chosen, bound and weakness: those of poet_paper.h. Without paging the program is Checkmate's.
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
