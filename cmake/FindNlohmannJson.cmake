# nlohmann::json: Debian's header (nlohmann-json3-dev) or the PyPI package nlohmann-json, a build requirement.
foreach(dir IN LISTS POET_SITE_DIRS)
  list(APPEND poet_json_hints "${dir}/nlohmann_json/include")
endforeach()
find_path(NlohmannJson_INCLUDE_DIR nlohmann/json.hpp HINTS ${poet_json_hints})
mark_as_advanced(NlohmannJson_INCLUDE_DIR)

if(NlohmannJson_INCLUDE_DIR)
  set(poet_json_abi "${NlohmannJson_INCLUDE_DIR}/nlohmann/detail/abi_macros.hpp")
  if(EXISTS "${poet_json_abi}")
    set(NlohmannJson_VERSION "")
    foreach(part MAJOR MINOR PATCH)
      file(STRINGS "${poet_json_abi}" line REGEX "^#define NLOHMANN_JSON_VERSION_${part} ")
      string(REGEX MATCH "[0-9]+" number "${line}")
      string(APPEND NlohmannJson_VERSION "${number}.")
    endforeach()
    string(REGEX REPLACE "\\.$" "" NlohmannJson_VERSION "${NlohmannJson_VERSION}")
  endif()
endif()

if(NOT NlohmannJson_INCLUDE_DIR)
  message(FATAL_ERROR "poet: nlohmann/json.hpp is missing. Install one of\n"
    "  apt-get install nlohmann-json3-dev\n"
    "  pip install nlohmann-json")
endif()
message(STATUS "poet: JSON: nlohmann-json ${NlohmannJson_VERSION} in ${NlohmannJson_INCLUDE_DIR}")
set(NlohmannJson_FOUND TRUE)
if(NOT TARGET nlohmann::json)
  add_library(nlohmann::json INTERFACE IMPORTED)
  set_target_properties(nlohmann::json PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${NlohmannJson_INCLUDE_DIR}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${NlohmannJson_INCLUDE_DIR}")
endif()
