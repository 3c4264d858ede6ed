// Small conversions that several files of this folder share.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "graph/ids.h"
#include "schedule/schedule.h"

namespace poet {

namespace py = pybind11;

// The class or function `name` of the Python module `module` of this package. Looked up at the time
// of use: these modules may be importing poet._C themselves while it initialises.
inline py::object fromPackage(const char* module, const char* name) {
  return py::module_::import(module).attr(name);
}

// A member of a string enumeration of poet._enums, by its value.
inline py::object enumMember(const char* enumeration, std::string_view value) {
  return fromPackage("poet._enums", enumeration)(py::str(value.data(), value.size()));
}

// None for an id that names nothing.
template <class Tag>
py::object indexOrNone(Id<Tag> id) {
  return id.valid() ? py::object(py::int_(id.index)) : py::object(py::none());
}

template <class Tag>
py::tuple indices(const std::vector<Id<Tag>>& ids) {
  py::tuple result(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) result[i] = py::int_(ids[i].index);
  return result;
}

// As poet._results.SearchPoint.
inline py::object searchPoint(const SearchPoint& point) {
  return fromPackage("poet._results", "SearchPoint")(point.seconds, point.value, point.bound);
}

// A path from str, bytes or os.PathLike, in the encoding of the file system.
inline std::string fileName(const py::object& path) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw py::error_already_set();
  return std::string(py::reinterpret_steal<py::bytes>(encoded));
}

// A signature of a graph as people see it: 16 hexadecimal digits.
inline std::string hexSignature(uint64_t signature) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(signature));
  return text;
}

// Gives a bound class the name under which people know it: poet.Graph rather than poet._C.Graph.
inline void makePublic(py::handle type) { type.attr("__module__") = "poet"; }

}  // namespace poet
