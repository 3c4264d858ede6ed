// The C library's allocator: from which size on freed memory goes back to the system at once.
#include <cstdint>
#include <limits>

#include "bindings/bindings.h"
#include "bindings/conversions.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

namespace poet {
namespace {

// False where the C library has no such switch, or refuses the figure.
bool fixMmapThreshold(int64_t bytes) {
#if defined(__GLIBC__)
  if (bytes < 0 || bytes > std::numeric_limits<int>::max()) return false;
  return mallopt(M_MMAP_THRESHOLD, static_cast<int>(bytes)) == 1;
#else
  static_cast<void>(bytes);
  return false;
#endif
}

}  // namespace

void bindMemory(py::module_& m) {
  m.def("fix_mmap_threshold", &fixMmapThreshold, py::arg("bytes"),
        "Blocks of `bytes` and more are mapped by themselves from now on, and unmapped when they "
        "are freed. False where the C library has no such switch.");
}

}  // namespace poet
