# Cbc::Cbc, COIN-OR's mixed-integer solver: Debian's coinor-libcbc-dev where it is installed, the PyPI package cbcbox
# otherwise. Debian's was two to four times as fast in our measurements; cbcbox needs no root. Headers are included without
# a folder in both: #include <Cbc_C_Interface.h>.
#
# Sets Cbc_PROVIDER (system or cbcbox), Cbc_VERSION, and for cbcbox Cbc_RUNTIME_LIBRARIES: what cmake/PoetInstall.cmake
# puts beside poet's own libraries, so that the installed package works without the 600 MB of cbcbox.
set(POET_CBC "auto" CACHE STRING "Which CBC: auto, system (coinor-libcbc-dev) or cbcbox (PyPI)")
set_property(CACHE POET_CBC PROPERTY STRINGS auto system cbcbox)

set(Cbc_FOUND FALSE)
set(Cbc_PROVIDER "")
set(Cbc_RUNTIME_LIBRARIES "")

function(poet_find_cbc_system)
  find_package(PkgConfig QUIET)
  if(NOT PkgConfig_FOUND)
    return()
  endif()
  pkg_check_modules(PoetCbc QUIET IMPORTED_TARGET GLOBAL cbc)
  if(NOT PoetCbc_FOUND)
    return()
  endif()
  # Only the C++ libraries that poet's back end calls: cbc.pc also names those that they themselves need.
  add_library(Cbc::Cbc INTERFACE IMPORTED GLOBAL)
  target_include_directories(Cbc::Cbc SYSTEM INTERFACE ${PoetCbc_INCLUDE_DIRS})
  target_link_libraries(Cbc::Cbc INTERFACE PkgConfig::PoetCbc)
  set(Cbc_PROVIDER system PARENT_SCOPE)
  set(Cbc_VERSION "${PoetCbc_VERSION}" PARENT_SCOPE)
endfunction()

function(poet_find_cbc_cbcbox)
  set(found "")
  foreach(dir IN LISTS POET_SITE_DIRS)
    if(NOT found AND EXISTS "${dir}/cbcbox/__init__.py")
      set(found "${dir}")
    endif()
  endforeach()
  if(NOT found)
    return()
  endif()
  # The package itself knows which of its builds suits this processor (CBCBOX_BUILD overrides).
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -E env --unset=CBCBOX_VERBOSE "${Python_EXECUTABLE}" -c "import sys; sys.path.insert(0, sys.argv[1])
import importlib.metadata, cbcbox
print(importlib.metadata.version('cbcbox') + ';' + cbcbox.cbc_dist_dir())" "${found}"
    OUTPUT_VARIABLE answer OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE ".*\n" "" answer "${answer}")
  list(GET answer 0 version)
  list(GET answer 1 dist)
  if(NOT EXISTS "${dist}/include/coin-or/Cbc_C_Interface.h" OR NOT EXISTS "${dist}/lib/libCbc.so.0")
    message(WARNING "poet: cbcbox ${version} in ${dist} is not laid out as expected (include/coin-or, lib/libCbc.so.0)")
    return()
  endif()
  add_library(Cbc::Cbc INTERFACE IMPORTED GLOBAL)
  target_include_directories(Cbc::Cbc SYSTEM INTERFACE "${dist}/include/coin-or")
  foreach(lib Cbc Cgl OsiClp Clp Osi CoinUtils)
    target_link_libraries(Cbc::Cbc INTERFACE "${dist}/lib/lib${lib}.so")
  endforeach()
  # Their own needs (OpenBLAS, gfortran) lie beside them and are found through their RUNPATH, $ORIGIN.
  target_link_options(Cbc::Cbc INTERFACE "-Wl,-rpath-link,${dist}/lib")
  set(runtime "")
  foreach(soname libCbc.so.0 libCgl.so.0 libOsiClp.so.0 libClp.so.0 libOsi.so.0 libCoinUtils.so.0 libopenblas.so.0
                 libgfortran.so.5 libquadmath.so.0)
    if(EXISTS "${dist}/lib/${soname}")
      list(APPEND runtime "${dist}/lib/${soname}")
    endif()
  endforeach()
  set(Cbc_PROVIDER cbcbox PARENT_SCOPE)
  set(Cbc_VERSION "${version}" PARENT_SCOPE)
  set(Cbc_RUNTIME_LIBRARIES "${runtime}" PARENT_SCOPE)
  set(Cbc_LICENSE_FILE "${dist}/share/doc/coin-or-cbc/LICENSE" PARENT_SCOPE)
endfunction()

if(TARGET Cbc::Cbc)
  set(Cbc_FOUND TRUE)
  return()
endif()
if(POET_CBC MATCHES "^(auto|system)$")
  poet_find_cbc_system()
endif()
if(NOT Cbc_PROVIDER AND POET_CBC MATCHES "^(auto|cbcbox)$")
  poet_find_cbc_cbcbox()
endif()

if(NOT Cbc_PROVIDER)
  message(FATAL_ERROR "poet: no CBC solver was found (POET_CBC=${POET_CBC}). Install one of the two and build again:\n"
    "  apt-get install coinor-libcbc-dev pkg-config   (Debian and Ubuntu, needs root, the faster one)\n"
    "  pip install cbcbox                             (PyPI, needs no root, 600 MB)")
endif()
set(Cbc_FOUND TRUE)
if(Cbc_PROVIDER STREQUAL "system")
  message(STATUS "poet: solver: CBC ${Cbc_VERSION}, the system's (pkg-config cbc)")
else()
  message(STATUS "poet: solver: CBC from PyPI's cbcbox ${Cbc_VERSION}")
endif()
