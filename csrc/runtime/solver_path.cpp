#include "runtime/solver_path.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "graph/error.h"

namespace poet {
namespace {

namespace fs = std::filesystem;

fs::path folderOfThisLibrary() {
  Dl_info info{};
  // The address of any function in here will do.
  if (dladdr(reinterpret_cast<const void*>(&findSolver), &info) == 0 || info.dli_fname == nullptr)
    return fs::current_path();
  std::error_code ignored;
  const fs::path file = fs::canonical(info.dli_fname, ignored);
  return file.empty() ? fs::path(info.dli_fname).parent_path() : file.parent_path();
}

bool isProgram(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string findSolver(const std::string& wanted) {
  const char* named = std::getenv("POET_SOLVER");
  const bool by_variable = wanted.empty() && named != nullptr && *named != '\0';
  std::vector<fs::path> candidates;
  if (!wanted.empty()) {
    candidates = {wanted};
  } else if (by_variable) {
    candidates = {named};
  } else {
    const fs::path folder = folderOfThisLibrary();
    candidates = {folder.parent_path() / "bin" / "poet-solver", folder / "poet-solver"};
  }
  for (const fs::path& candidate : candidates) {
    if (isProgram(candidate)) return candidate.string();
  }
  const char* advice =
      !wanted.empty() ? "Correct or leave out the option solver_path."
      : by_variable
          ? "Correct or unset the environment variable POET_SOLVER."
          : "Install poet again, or name the program in the environment variable POET_SOLVER.";
  throw Error(detail::message("The solver program was expected at ", candidates[0].string(),
                              ", and there is no executable file. ", advice));
}

}  // namespace poet
