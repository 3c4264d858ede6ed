// Where the program poet-solver lies.
#pragma once

#include <string>

namespace poet {

// `wanted` if it is not empty, else $POET_SOLVER, else beside this library as it is installed
// (../bin) or built (the same folder). Throws Error where there is no executable file.
std::string findSolver(const std::string& wanted);

}  // namespace poet
