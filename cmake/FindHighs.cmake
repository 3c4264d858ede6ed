# The header and the shared library of HiGHS: PyPI's highsbox, or the system's. Neither the libraries nor the solver link it
# (Note [HiGHS is loaded, not linked] in csrc/planner/backends/highs_api.h): the tests compare poet's declarations with the
# header, and load the library.
#
# Sets Highs_FOUND, Highs_INCLUDE_DIR (of interfaces/highs_c_api.h) and Highs_LIBRARY; each is empty where it is missing.
foreach(dir IN LISTS POET_SITE_DIRS)
  list(APPEND poet_highs_hints "${dir}/highsbox/highs_dist")
endforeach()
find_path(Highs_INCLUDE_DIR interfaces/highs_c_api.h HINTS ${poet_highs_hints} PATH_SUFFIXES include/highs highs)
find_library(Highs_LIBRARY NAMES highs HINTS ${poet_highs_hints} PATH_SUFFIXES lib)
mark_as_advanced(Highs_INCLUDE_DIR Highs_LIBRARY)

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Highs REQUIRED_VARS Highs_LIBRARY Highs_INCLUDE_DIR)
