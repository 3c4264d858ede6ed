// pofo: rotor's chain with offloading.
//
// Paper: Beaumont, Eyraud-Dubois, Shilova, "Efficient Combination of Rematerialization and
// Offloading for Training DNNs" (POFO), NeurIPS 2021: a dynamic program over the chain that decides
// for every stored activation whether it stays or is offloaded during forward and prefetched during
// backward, with rotor's program between two of them.
//
// Chosen: the program of rotor.cpp (Note [The program of a chain]) with two more choices in the
// step's own forward: the boundary between two groups goes to the store, or everything that a link
// keeps for its backward. Where transfers block they cost their time and energy, added up. Where
// they run beside computation the paper's windows (idle time of the channel while a group runs) are
// approximated: the program is solved with transfers at 0, 1/4, 1/2 and all of their price, with
// and without prefetching one link ahead, and the simulator, which times the channel, decides.
// Recomputed values are not offloaded again, as in the paper.
//
// Bound: where transfers block, optimal within these schedules, to the rounding of slots. Weakness:
// rotor's; and a page-in that sets out one link ahead may still be waited for.
#include "methods/chain_program.h"
#include "methods/every_method.h"

namespace poet::methods {

Schedule planPofo(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planChains(graph, profile, options, "pofo", options.paging && profile.hasStore());
}

}  // namespace poet::methods
