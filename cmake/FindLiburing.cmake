# Liburing::Liburing, the library for the kernel's io_uring (Debian: liburing-dev). Optional: without it the store reads and
# writes on threads. The static library where there is one, 20 kB: what is built then needs no liburing where it runs.
#
# Sets Liburing_FOUND. POET_IO_URING OFF looks for none.
option(POET_IO_URING "Use io_uring, where liburing is found" ON)
set(Liburing_FOUND FALSE)
if(NOT POET_IO_URING)
  message(STATUS "poet: store: threads (POET_IO_URING is off)")
  return()
endif()

find_path(Liburing_INCLUDE_DIR liburing.h)
find_library(Liburing_LIBRARY NAMES liburing.a uring)
mark_as_advanced(Liburing_INCLUDE_DIR Liburing_LIBRARY)
if(Liburing_INCLUDE_DIR AND Liburing_LIBRARY)
  # Releases before 2.0 lack calls that poet makes, and some static libraries cannot go into a shared one.
  include(CheckCXXSourceCompiles)
  set(CMAKE_REQUIRED_INCLUDES "${Liburing_INCLUDE_DIR}")
  set(CMAKE_REQUIRED_LIBRARIES "${Liburing_LIBRARY}")
  set(CMAKE_REQUIRED_FLAGS "-fPIC -shared")
  set(CMAKE_REQUIRED_LINK_OPTIONS "-Wl,-z,defs")
  check_cxx_source_compiles("#include <liburing.h>
    extern \"C\" int poet_try(io_uring* ring) {
      io_uring_cqe* entry = nullptr;
      return io_uring_queue_init(4, ring, 0) + io_uring_submit(ring) + io_uring_wait_cqe(ring, &entry) +
             (io_uring_get_probe_ring(ring) != nullptr);
    }
    int main() { return 0; }" POET_LIBURING_WORKS)
  unset(CMAKE_REQUIRED_INCLUDES)
  unset(CMAKE_REQUIRED_LIBRARIES)
  unset(CMAKE_REQUIRED_FLAGS)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
endif()

if(POET_LIBURING_WORKS)
  set(Liburing_FOUND TRUE)
  if(NOT TARGET Liburing::Liburing)
    add_library(Liburing::Liburing INTERFACE IMPORTED GLOBAL)
    target_include_directories(Liburing::Liburing SYSTEM INTERFACE "${Liburing_INCLUDE_DIR}")
    target_link_libraries(Liburing::Liburing INTERFACE "${Liburing_LIBRARY}")
  endif()
  message(STATUS "poet: store: io_uring (${Liburing_LIBRARY})")
else()
  message(STATUS "poet: store: threads (apt-get install liburing-dev for io_uring)")
endif()
