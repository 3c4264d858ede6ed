# Functions that make the targets. A csrc folder lists its sources itself: target_sources(poet_core PRIVATE file.cpp ...).

# Everything of poet is installed below this: the prefix itself, or the Python package.
set(poet_home "")
if(SKBUILD)
  set(poet_home "poet/")
endif()

# poet_add_library(NAME FOLDER...): the shared library NAME from csrc/FOLDER..., hidden except for POET_API, and NAME_static
# from the same objects: tests link that one, so that they reach what is not exported.
function(poet_add_library name)
  set(folders "")
  foreach(folder IN LISTS ARGN)
    if(EXISTS "${PROJECT_SOURCE_DIR}/csrc/${folder}/CMakeLists.txt")
      list(APPEND folders "${folder}")
    endif()
  endforeach()
  if(NOT folders)
    return()
  endif()
  add_library(${name} SHARED)
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/csrc>" "$<INSTALL_INTERFACE:${poet_home}include>")
  target_compile_features(${name} PUBLIC cxx_std_20)
  poet_unite(${name})
  # Hidden visibility does not reach the standard library's templates: what is neither poet's nor torch's stays inside.
  target_link_options(${name} PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/cmake/exports.map")
  set_property(TARGET ${name} PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/exports.map")
  target_link_libraries(${name} PRIVATE poet_warnings)
  target_compile_definitions(${name} PRIVATE POET_VERSION="${POET_VERSION}")
  foreach(folder IN LISTS folders)
    add_subdirectory("${PROJECT_SOURCE_DIR}/csrc/${folder}" "${PROJECT_BINARY_DIR}/csrc/${folder}")
  endforeach()

  add_library(${name}_static STATIC EXCLUDE_FROM_ALL $<TARGET_OBJECTS:${name}>)
  set_target_properties(${name}_static PROPERTIES LINKER_LANGUAGE CXX)
  target_include_directories(${name}_static PUBLIC "${PROJECT_SOURCE_DIR}/csrc")
  target_link_libraries(${name}_static PUBLIC ${CMAKE_DL_LIBS})
endfunction()

# The worker process that solves: poet-solver.
function(poet_add_solver)
  set(main "${PROJECT_SOURCE_DIR}/csrc/planner/worker/solver_main.cpp")
  if(NOT EXISTS "${main}")
    return()
  endif()
  add_executable(poet-solver "${main}")
  target_link_libraries(poet-solver PRIVATE poet_core nlohmann::json Threads::Threads poet_warnings)
endfunction()

# poet_add_python_module(FOLDER): the module _C. It is built with the pybind11 headers inside torch: PyPI's pybind11 3.1 has
# another version of the internals, and with both in one process exception types get lost on the way to Python.
function(poet_add_python_module folder)
  if(NOT EXISTS "${PROJECT_SOURCE_DIR}/csrc/${folder}/CMakeLists.txt")
    return()
  endif()
  python_add_library(_C MODULE WITH_SOABI)
  target_link_libraries(_C PRIVATE poet_core poet_torch TorchLibs::torch_python poet_warnings)
  poet_unite(_C)
  target_compile_definitions(_C PRIVATE POET_VERSION="${POET_VERSION}" POET_BUILT_FOR_TORCH="${TorchLibs_VERSION}")
  add_subdirectory("${PROJECT_SOURCE_DIR}/csrc/${folder}" "${PROJECT_BINARY_DIR}/csrc/${folder}")
endfunction()
