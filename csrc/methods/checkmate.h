// What checkmate.cpp lets a caller choose, beside the options of every method.
#pragma once

#include <cstdint>

#include "planner/planner.h"

namespace poet::methods {

struct CheckmateOptions {
  // With more columns the program is not tried: its relaxation is solved and rounded.
  int64_t most_program_columns = 60'000;
  // With more not even the relaxation is built.
  int64_t most_relaxed_columns = 1'000'000;
};

Schedule solveCheckmate(const Graph& graph, const DeviceProfile& profile,
                        const SolveOptions& options, const CheckmateOptions& checkmate);

}  // namespace poet::methods
