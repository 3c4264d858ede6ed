// The methods that need no options of their own, one function and one file each: the file opens
// with the paper, what was chosen, its bound and its known weakness. As planWith(): they throw
// ArgumentError for options that they cannot honour.
#pragma once

#include "planner/planner.h"

namespace poet::methods {

Schedule planCheckpointAll(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planPageAll(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planPoetRematOnly(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planPoetPageOnly(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planChenSqrt(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planChenGreedy(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planRevolve(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planRotor(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planPofo(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planTwremat(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planCapuchin(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planCoop(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planDtrPlaced(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planCheckmate(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planDtr(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planDtrEq(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planDtrLocal(const Graph&, const DeviceProfile&, const SolveOptions&);
Schedule planDtrBanish(const Graph&, const DeviceProfile&, const SolveOptions&);

}  // namespace poet::methods
