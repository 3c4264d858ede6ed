# TorchLibs::torch and TorchLibs::torch_python from the torch package of the interpreter (POET_SITE_DIRS). Reads its files and
# never imports it.
#
# Why not find_package(Torch): torch's own config of a CUDA build stops where no CUDA toolkit is installed. poet uses no CUDA
# header, so headers and libraries are all it needs, and one way works for every build of torch.
set(TorchLibs_DIR "" CACHE PATH "The installed torch package, .../site-packages/torch (found when left empty)")
set(poet_torch_dir "${TorchLibs_DIR}")
foreach(dir IN LISTS POET_SITE_DIRS)
  if(NOT poet_torch_dir AND EXISTS "${dir}/torch/version.py" AND EXISTS "${dir}/torch/include/ATen/ATen.h")
    set(poet_torch_dir "${dir}/torch")
  endif()
endforeach()

if(NOT poet_torch_dir)
  message(FATAL_ERROR "poet: torch is not installed for ${Python_EXECUTABLE}. torch is not fetched by the build: install the\n"
    "one that you train with first, then poet:\n"
    "  ${Python_EXECUTABLE} -m pip install torch==2.13.0\n"
    "  ${Python_EXECUTABLE} -m pip install -e .\n"
    "(A build of poet_core alone needs no torch: cmake -DPOET_BUILD_TORCH=OFF.)")
endif()

file(STRINGS "${poet_torch_dir}/version.py" poet_torch_line REGEX "^__version__ = ")
string(REGEX REPLACE "^__version__ = '([^']+)'.*" "\\1" TorchLibs_VERSION "${poet_torch_line}")
# The versions that poet is tested with, also in pyproject.toml. Whatever differs between them stands in
# csrc/trace/torch_compat.h.
if(TorchLibs_VERSION VERSION_LESS 2.13 OR TorchLibs_VERSION VERSION_GREATER_EQUAL 2.14)
  message(FATAL_ERROR "poet: torch ${TorchLibs_VERSION} in ${poet_torch_dir} is outside the tested range, torch>=2.13,<2.14. Run\n"
    "  ${Python_EXECUTABLE} -m pip install torch==2.13.0\n"
    "  ${Python_EXECUTABLE} -m pip install -e .")
endif()
message(STATUS "poet: torch ${TorchLibs_VERSION} in ${poet_torch_dir}")

foreach(lib c10 torch_cpu torch torch_python)
  find_library(TorchLibs_${lib}_LIBRARY ${lib} PATHS "${poet_torch_dir}/lib" NO_DEFAULT_PATH REQUIRED)
  mark_as_advanced(TorchLibs_${lib}_LIBRARY)
endforeach()
set(TorchLibs_FOUND TRUE)

if(NOT TARGET TorchLibs::torch)
  foreach(lib c10 torch_cpu torch_python)
    add_library(TorchLibs::lib_${lib} SHARED IMPORTED)
    set_target_properties(TorchLibs::lib_${lib} PROPERTIES IMPORTED_LOCATION "${TorchLibs_${lib}_LIBRARY}")
  endforeach()
  add_library(TorchLibs::torch INTERFACE IMPORTED)
  target_include_directories(TorchLibs::torch SYSTEM INTERFACE
    "${poet_torch_dir}/include" "${poet_torch_dir}/include/torch/csrc/api/include")
  target_link_libraries(TorchLibs::torch INTERFACE TorchLibs::lib_torch_cpu TorchLibs::lib_c10)

  add_library(TorchLibs::torch_python INTERFACE IMPORTED)
  target_link_libraries(TorchLibs::torch_python INTERFACE TorchLibs::lib_torch_python TorchLibs::torch)
endif()
