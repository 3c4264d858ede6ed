#include <torch/version.h>

#include "bindings/bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native part of poet. Use the names that the package poet exports.";
  // Compared with torch.__version__ at import: the ABI of libtorch changes with every release.
  m.attr("built_for_torch") = TORCH_VERSION;
  m.attr("version") = POET_VERSION;
  poet::bindErrors(m);
  poet::bindGraph(m);
  poet::bindSchedule(m);
  poet::bindSolve(m);
  poet::bindRuntime(m);
  poet::bindStore(m);
  poet::bindMemory(m);
}
