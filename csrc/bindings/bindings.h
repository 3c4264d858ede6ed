// What each file of this folder adds to the Python module poet._C. They convert and nothing else:
// no decision is taken here. The GIL is released where C++ works for long (solve, simulate, files).
#pragma once

#include <pybind11/pybind11.h>

namespace poet {

void bindErrors(pybind11::module_& m);    // C++ exceptions -> poet.PoetError and its subclasses
void bindGraph(pybind11::module_& m);     // Graph, its ops and values, JSON, files
void bindSchedule(pybind11::module_& m);  // Schedule, its actions, JSON, files
void bindSolve(pybind11::module_& m);     // DeviceProfile, simulate, solve
void bindRuntime(pybind11::module_& m);   // the recorder and the executor: live steps
void bindStore(pybind11::module_& m);     // which folder takes paged values, and how fast it is
void bindMemory(pybind11::module_& m);    // the C library's allocator

// Notes on a poet.Schedule the graph that it was solved for (its Python attribute `traced_graph`)
// and the device (`device`).
void setGraph(const pybind11::object& schedule, const pybind11::object& graph);
void setDevice(const pybind11::object& schedule, const pybind11::object& device);
// What Schedule.advice needs to know of the question.
void setAsked(const pybind11::object& schedule, bool paging, bool away_between_steps);

}  // namespace poet
