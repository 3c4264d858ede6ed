# What poet's own build and its installed package (poetConfig.cmake) both need to know of a torch that was found: a Python
# package's folder, or LibTorch as it is unpacked. The two have the same lib/ and include/.
#
# Why not find_package(Torch): torch's own config of a CUDA build stops where no CUDA toolkit is installed. poet uses no CUDA
# header, so headers and libraries are all it needs, and one way works for every build of torch.

# poet_is_torch(DIR OUT): whether there is a torch.
function(poet_is_torch dir out)
  set(${out} FALSE PARENT_SCOPE)
  if(EXISTS "${dir}/include/ATen/ATen.h" AND (EXISTS "${dir}/version.py" OR EXISTS "${dir}/build-version"))
    set(${out} TRUE PARENT_SCOPE)
  endif()
endfunction()

# poet_read_torch_version(DIR OUT): "2.13.0+cpu".
function(poet_read_torch_version dir out)
  if(EXISTS "${dir}/version.py")
    file(STRINGS "${dir}/version.py" line REGEX "^__version__ = ")
    string(REGEX REPLACE "^__version__ = '([^']+)'.*" "\\1" line "${line}")
  else()
    file(STRINGS "${dir}/build-version" line LIMIT_COUNT 1)
  endif()
  set(${out} "${line}" PARENT_SCOPE)
endfunction()

# poet_add_torch_targets(DIR): TorchLibs::torch, and TorchLibs::torch_python where there is one.
function(poet_add_torch_targets dir)
  if(TARGET TorchLibs::torch)
    return()
  endif()
  foreach(lib c10 torch_cpu torch_python)
    if(EXISTS "${dir}/lib/lib${lib}.so")
      add_library(TorchLibs::lib_${lib} SHARED IMPORTED GLOBAL)
      set_target_properties(TorchLibs::lib_${lib} PROPERTIES IMPORTED_LOCATION "${dir}/lib/lib${lib}.so")
    elseif(NOT lib STREQUAL "torch_python")
      message(FATAL_ERROR "poet: lib${lib}.so is missing in ${dir}/lib. Install torch again.")
    endif()
  endforeach()
  add_library(TorchLibs::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(TorchLibs::torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${dir}/include;${dir}/include/torch/csrc/api/include"
    INTERFACE_LINK_LIBRARIES "TorchLibs::lib_torch_cpu;TorchLibs::lib_c10")
  if(TARGET TorchLibs::lib_torch_python)
    add_library(TorchLibs::torch_python INTERFACE IMPORTED GLOBAL)
    set_target_properties(TorchLibs::torch_python PROPERTIES
      INTERFACE_LINK_LIBRARIES "TorchLibs::lib_torch_python;TorchLibs::torch")
  endif()
endfunction()
