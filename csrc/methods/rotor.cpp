// rotor: the best checkpoints of a heterogeneous chain.
//
// Paper: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous
// chains: how to train deep neural networks with limited memory" (arXiv 1911.13214, 2019), the
// method of the package rotor: the dynamic program of theorem 1 over "memory persistent" schedules,
// in which a link's forward keeps its input, all of its values, or nothing.
//
// Chosen: links lie between the step's cut vertices (Note [Cut vertices]); see
// Note [The program of a chain] for the program. Unlike the paper's, it charges what is resident in
// each stage whatever the plan (gradients that pile up), and a replay leaves out what only link
// s + 1 would read. At most 100 links: neighbours are joined. Memory in 500 slots, as in the paper.
// Where the simulator finds more than the program says, that much is left alone and the table read
// again.
//
// Bound: optimal among persistent schedules of the chain, to the rounding of slots. Weakness: a
// step that is no chain has few links, and none that is small enough; schedules that are not
// persistent can be better on very heterogeneous chains (the paper's section 4.1).
#include "methods/chain_program.h"
#include "methods/every_method.h"

namespace poet::methods {

Schedule planRotor(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planChains(graph, profile, options, "rotor", false);
}

}  // namespace poet::methods
