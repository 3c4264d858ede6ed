# What is installed, below the prefix (`cmake --install`), or below the Python package `poet` (a wheel):
#   lib/libpoet_core.so   lib/libpoet_torch.so   bin/poet-solver   include/poet/...   lib/cmake/poet/poetConfig.cmake
#   lib/solver/*.so: CBC and what it needs, where it is bundled     _C.<abi>.so: of the Python package alone
# RPATHs are relative, so the package can be moved; in a wheel torch lies beside poet in the same site-packages.
include(CMakePackageConfigHelpers)

set(poet_torch_rpath "$ORIGIN")
if(SKBUILD)
  list(APPEND poet_torch_rpath "$ORIGIN/../../torch/lib")
endif()
set(poet_core_rpath "$ORIGIN")
if(Cbc_RUNTIME_LIBRARIES)
  list(APPEND poet_core_rpath "$ORIGIN/solver")
endif()

# ---- programs and libraries -----------------------------------------------------------------------------------------
if(TARGET poet_core)
  set_target_properties(poet_core PROPERTIES INSTALL_RPATH "${poet_core_rpath}")
  install(TARGETS poet_core EXPORT poetCoreTargets LIBRARY DESTINATION ${poet_home}lib)
endif()
if(TARGET poet-solver)
  set_target_properties(poet-solver PROPERTIES INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../lib/solver")
  install(TARGETS poet-solver EXPORT poetCoreTargets RUNTIME DESTINATION ${poet_home}bin)
endif()
if(TARGET poet_torch)
  set_target_properties(poet_torch PROPERTIES INSTALL_RPATH "${poet_torch_rpath}")
  install(TARGETS poet_torch EXPORT poetTorchTargets LIBRARY DESTINATION ${poet_home}lib)
endif()
if(TARGET _C)
  set_target_properties(_C PROPERTIES INSTALL_RPATH "$ORIGIN/lib;$ORIGIN/../torch/lib")
  install(TARGETS _C LIBRARY DESTINATION poet)
  install(DIRECTORY profiles/ DESTINATION poet/profiles FILES_MATCHING PATTERN "*.toml" PATTERN "*.json")
  install(DIRECTORY tests/data/poet_reference/ DESTINATION poet/paper_graphs FILES_MATCHING PATTERN "*.json"
    PATTERN "results.json" EXCLUDE)
endif()

foreach(library IN LISTS Cbc_RUNTIME_LIBRARIES)
  # The file that the soname points to, under the soname: wheels hold no links.
  string(REGEX MATCH "^(.*)=([^=]+)$" matched "${library}")
  set(soname "${CMAKE_MATCH_2}")
  file(REAL_PATH "${CMAKE_MATCH_1}" real)
  install(FILES "${real}" DESTINATION ${poet_home}lib/solver RENAME "${soname}")
endforeach()
foreach(license IN LISTS Cbc_LICENSE_FILES)
  string(REGEX MATCH "^(.*)=([^=]+)$" matched "${license}")
  set(name "${CMAKE_MATCH_2}")
  if(EXISTS "${CMAKE_MATCH_1}")
    file(REAL_PATH "${CMAKE_MATCH_1}" real)
    install(FILES "${real}" DESTINATION ${poet_home}lib/solver RENAME "${name}")
  endif()
endforeach()

# ---- headers --------------------------------------------------------------------------------------------------------
# Inside the sources it is "graph/graph.h"; installed it is "poet/graph/graph.h", so that no folder of so common a name gets on
# anybody's include path.
set(poet_core_headers
  device/profile.h
  device/retarget.h
  graph/accounting.h
  graph/error.h
  graph/export.h
  graph/graph.h
  graph/heap_bytes.h
  graph/id_lists.h
  graph/ids.h
  graph/op_class.h
  methods/moccasin.h
  methods/poet_paper.h
  planner/planner.h
  planner/solver_choice.h
  schedule/rewritten_graph.h
  schedule/schedule.h
  schedule/simulator.h
  store/page_store.h)
set(poet_torch_headers
  runtime/budget.h
  runtime/training_step.h)

# poet_install_headers(HEADERS... BESIDE MORE...): MORE are installed wherever HEADERS are.
function(poet_install_headers)
  cmake_parse_arguments(PARSE_ARGV 0 poet "" "" "BESIDE")
  foreach(header IN LISTS poet_UNPARSED_ARGUMENTS)
    set(source "${PROJECT_SOURCE_DIR}/csrc/${header}")
    set_property(DIRECTORY "${PROJECT_SOURCE_DIR}" APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${source}")
    # configure_file() leaves an unchanged file alone, and file(READ) would stumble over semicolons and brackets.
    file(READ "${source}" poet_header_text)
    string(REGEX MATCHALL "#include \"[a-z0-9_/]+\\.h\"" included "${poet_header_text}")
    foreach(include IN LISTS included)
      string(REGEX REPLACE "^#include \"(.*)\"$" "\\1" include "${include}")
      if(NOT include IN_LIST poet_UNPARSED_ARGUMENTS AND NOT include IN_LIST poet_BESIDE)
        message(FATAL_ERROR "csrc/${header} is installed and includes ${include}, which is not: add it to the headers in "
          "cmake/PoetInstall.cmake.")
      endif()
    endforeach()
    string(REGEX REPLACE "#include \"([a-z_]+/)" "#include \"poet/\\1" poet_header_text "${poet_header_text}")
    set(target "${PROJECT_BINARY_DIR}/include/poet/${header}")
    file(CONFIGURE OUTPUT "${target}" CONTENT "@poet_header_text@" @ONLY)
    get_filename_component(folder "${header}" DIRECTORY)
    install(FILES "${target}" DESTINATION ${poet_home}include/poet/${folder})
  endforeach()
endfunction()

function(poet_install_umbrella name comment)
  set(poet_header_text "// ${comment}\n#pragma once\n\n")
  foreach(header IN LISTS ARGN)
    string(APPEND poet_header_text "#include \"poet/${header}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT "${PROJECT_BINARY_DIR}/include/poet/${name}" CONTENT "@poet_header_text@" @ONLY)
  install(FILES "${PROJECT_BINARY_DIR}/include/poet/${name}" DESTINATION ${poet_home}include/poet)
endfunction()

poet_install_headers(${poet_core_headers})
poet_install_umbrella(poet.h "Graphs, devices, plans and the planner: poet::poet_core. No torch." ${poet_core_headers})
if(TARGET poet_torch)
  poet_install_headers(${poet_torch_headers} BESIDE ${poet_core_headers})
  poet_install_umbrella(poet_torch.h "Training steps of LibTorch programs: poet::poet_torch." ${poet_core_headers}
    ${poet_torch_headers})
endif()

# ---- find_package(poet CONFIG) ------------------------------------------------------------------------------------------
set(poet_cmake "${poet_home}lib/cmake/poet")
install(EXPORT poetCoreTargets NAMESPACE poet:: DESTINATION ${poet_cmake})
set(POET_HAS_TORCH FALSE)
if(TARGET poet_torch)
  set(POET_HAS_TORCH TRUE)
  string(REGEX MATCH "^[0-9]+\\.[0-9]+" POET_TORCH_SERIES "${TorchLibs_VERSION}")
  install(EXPORT poetTorchTargets NAMESPACE poet:: DESTINATION ${poet_cmake})
  install(FILES cmake/PoetTorchTargets.cmake DESTINATION ${poet_cmake})
endif()
configure_package_config_file(cmake/poetConfig.cmake.in "${PROJECT_BINARY_DIR}/poetConfig.cmake"
  INSTALL_DESTINATION ${poet_cmake} NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/poetConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/poetConfig.cmake" "${PROJECT_BINARY_DIR}/poetConfigVersion.cmake" DESTINATION ${poet_cmake})
