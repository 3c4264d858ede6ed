// Secondary storage: which folder takes paged values, and how fast it is.
#include <memory>
#include <string>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "runtime/transfers.h"
#include "store/page_store.h"

namespace poet {
namespace {

// The store is opened and closed again: nothing else knows whether a folder will do.
std::string pageFolder(const py::object& directory) {
  const std::string name = fileName(directory);
  const py::gil_scoped_release release;
  return PageStore::open(name)->directory();
}

py::dict toDict(const StoreSpeed& speed) {
  py::dict result;
  result["read_rate"] = speed.read_rate;
  result["write_rate"] = speed.write_rate;
  result["read_latency_seconds"] = speed.read_latency_seconds;
  result["write_latency_seconds"] = speed.write_latency_seconds;
  return result;
}

py::dict measureFromPython(const py::object& directory, double seconds) {
  const std::string name = fileName(directory);
  StoreSpeed speed;
  {
    const py::gil_scoped_release release;
    speed = measureStore(name, seconds);
  }
  return toDict(speed);
}

py::dict measureHost(const std::string& device) {
  StoreSpeed speed;
  {
    const py::gil_scoped_release release;
    speed = measureTransfersToHost(c10::Device(device));
  }
  return toDict(speed);
}

}  // namespace

void bindStore(py::module_& m) {
  m.def("page_folder", &pageFolder, py::arg("directory") = "",
        "The folder that paged values go to when `directory` is asked for; \"\": the system's. "
        "Raises poet.ArgumentError where it takes no page file, saying why.");
  m.def("measure_store", &measureFromPython, py::arg("directory"), py::arg("seconds") = 1.0,
        "Rates in bytes a second and latencies in seconds of a page file in that folder.");
  m.def("measure_host_transfers", &measureHost, py::arg("device"),
        "The same of the host's pinned memory, for that accelerator.");
}

}  // namespace poet
