# TorchLibs::torch and TorchLibs::torch_python from the torch package of the interpreter (POET_SITE_DIRS), or from an unpacked
# LibTorch (TorchLibs_DIR). Reads their files and never imports torch.
set(TorchLibs_DIR "" CACHE PATH "The installed torch package, .../site-packages/torch, or LibTorch's folder (found when left empty)")
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

include("${CMAKE_CURRENT_LIST_DIR}/PoetTorchTargets.cmake")
poet_read_torch_version("${poet_torch_dir}" TorchLibs_VERSION)
# The versions that poet is tested with, also in pyproject.toml. Whatever differs between them stands in
# csrc/trace/torch_compat.h.
#
# A machine with a GPU has the torch that its driver wants: POET_ANY_TORCH=ON builds with that one. 2.11 is the oldest that
# poet's sources know of.
option(POET_ANY_TORCH "Build with a torch outside the tested range" OFF)
if(TorchLibs_VERSION VERSION_LESS 2.13 OR TorchLibs_VERSION VERSION_GREATER_EQUAL 2.14)
  if(POET_ANY_TORCH AND TorchLibs_VERSION VERSION_GREATER_EQUAL 2.11)
    set(poet_torch_message WARNING)
  else()
    set(poet_torch_message FATAL_ERROR)
  endif()
  message(${poet_torch_message} "poet: torch ${TorchLibs_VERSION} in ${poet_torch_dir} is outside the tested range, torch>=2.13,<2.14. Run\n"
    "  ${Python_EXECUTABLE} -m pip install torch==2.13.0\n"
    "  ${Python_EXECUTABLE} -m pip install -e .")
endif()
message(STATUS "poet: torch ${TorchLibs_VERSION} in ${poet_torch_dir}")

poet_add_torch_targets("${poet_torch_dir}")
set(TorchLibs_FOUND TRUE)
