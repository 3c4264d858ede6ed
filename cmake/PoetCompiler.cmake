# Language level, warnings, visibility, sanitizers, ccache.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Optimised builds keep line tables, so that a sanitizer's or a user's back trace names lines. NDEBUG is not set: the
# standard library's and torch's header assertions are cheap next to the ops that we run.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1")

# torch's headers take most of the time of a file that includes them: eight files at once take less than half of it. A file must
# compile by itself as well, which the sanitizer builds of `make nightly` see to.
option(POET_UNITY "Compile several files of a target as one" ON)
function(poet_unite target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${POET_UNITY} UNITY_BUILD_BATCH_SIZE 8)
endfunction()

find_program(POET_CCACHE ccache)
if(POET_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${POET_CCACHE}")
endif()

add_library(poet_warnings INTERFACE)
target_compile_options(poet_warnings INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
# Beside instrumentation GCC warns of what is none: the plain builds are what must have no warning.
if(POET_WARNINGS_AS_ERRORS AND NOT POET_SANITIZE)
  target_compile_options(poet_warnings INTERFACE -Werror)
endif()

if(POET_SANITIZE)
  # At -O2 what the sanitizers add takes half as long again to compile.
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1")
  # Beside instrumentation GCC sees uninitialized members in torch's headers that are none.
  add_compile_options("-fsanitize=${POET_SANITIZE}" -fno-omit-frame-pointer -fno-sanitize-recover=all
    $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  add_link_options("-fsanitize=${POET_SANITIZE}")
endif()
