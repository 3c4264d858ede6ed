#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "device/profile.h"
#include "device/retarget.h"
#include "graph/accounting.h"
#include "graph/op_class.h"
#include "graph/slicing.h"
#include "methods/method.h"
#include "planner/planner.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

// Lets Python's signal handlers and an optional callback end a solve that runs without the GIL.
// What they raise is kept and raised once the solver has been stopped.
class StopPoll {
 public:
  StopPoll(py::object should_stop, py::object on_progress)
      : should_stop_(std::move(should_stop)), on_progress_(std::move(on_progress)) {}

  bool shouldStop() {
    const py::gil_scoped_acquire acquire;
    return keepError([&] {
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
      return !should_stop_.is_none() && should_stop_().cast<bool>();
    });
  }

  void tell(const SearchPoint& point) {
    if (error_ || on_progress_.is_none()) return;
    const py::gil_scoped_acquire acquire;
    keepError([&] {
      on_progress_(searchPoint(point));
      return false;
    });
  }

  // True once something was raised.
  template <class Call>
  bool keepError(const Call& call) {
    if (error_) return true;
    try {
      return call();
    } catch (py::error_already_set& error) {
      error_.emplace(std::move(error));
      return true;
    }
  }

  void rethrow() {
    if (error_) throw py::error_already_set(std::move(*error_));
  }

 private:
  py::object should_stop_, on_progress_;
  std::optional<py::error_already_set> error_;
};

py::object solveFromPython(const py::object& graph, const DeviceProfile& profile,
                           int64_t ram_budget_bytes, std::optional<double> runtime_budget_seconds,
                           const std::string& minimize, double time_limit_seconds, int threads,
                           const std::string& worker_path, const py::object& should_stop,
                           const py::object& on_progress, bool recompute, bool paging,
                           bool away_between_steps, bool parameters_away, bool deterministic,
                           const std::vector<std::shared_ptr<Schedule>>& starts,
                           const std::string& solver, const std::string& highs_library,
                           const std::vector<std::string>& gurobi_command,
                           const py::object& on_trouble, const std::string& method,
                           const std::string& python, int niceness) {
  SolveOptions options{.ram_budget_bytes = ram_budget_bytes,
                       .runtime_budget_seconds = runtime_budget_seconds,
                       .minimize = objectiveFromString(minimize),
                       .time_limit_seconds = time_limit_seconds,
                       .deterministic = deterministic,
                       .threads = threads,
                       .niceness = niceness,
                       .solver = {.kind = solverKindFromString(solver),
                                  .highs_library = highs_library,
                                  .gurobi_command = gurobi_command},
                       .recompute = recompute,
                       .paging = paging,
                       .away_between_steps = away_between_steps,
                       .parameters_away = parameters_away,
                       .method = method,
                       .python = python};
  checkMethod(profile, options);  // found wrong here rather than in the worker
  for (const auto& start : starts) options.starts.push_back(*start);
  const auto held = graph.cast<std::shared_ptr<Graph>>();
  StopPoll poll(should_stop, on_progress);
  auto schedule = std::make_shared<Schedule>();
  {
    const py::gil_scoped_release release;
    *schedule = solveInWorker(
        *held, profile, options, worker_path, [&] { return poll.shouldStop(); },
        [&](const SearchPoint& point) { poll.tell(point); });
  }
  poll.rethrow();
  if (!on_trouble.is_none()) {
    for (const std::string& text : options.solver.trouble->texts()) on_trouble(text);
  }
  py::object result = py::cast(schedule);
  setGraph(result, graph);
  setDevice(result, py::cast(profile));
  setAsked(result, paging, away_between_steps);
  return result;
}

// As poet._methods.Method.
py::tuple methodsForPython() {
  const std::vector<Method>& all = allMethods();
  py::tuple result(all.size());
  for (size_t i = 0; i < all.size(); ++i) {
    const MethodTraits& can = all[i].traits;
    result[i] = fromPackage("poet._methods", "Method")(
        py::arg("name") = std::string(all[i].name), py::arg("source") = std::string(all[i].source),
        py::arg("summary") = std::string(all[i].summary),
        py::arg("general_graphs") = can.general_graphs, py::arg("recomputes") = can.recomputes,
        py::arg("pages") = can.pages, py::arg("compute_aware") = can.compute_aware,
        py::arg("memory_aware") = can.memory_aware, py::arg("power_aware") = can.power_aware,
        py::arg("deadline") = can.deadline, py::arg("in_place") = can.in_place,
        py::arg("online") = can.online, py::arg("live") = can.live,
        py::arg("executes") = can.executes);
  }
  return result;
}

// As poet._results.Simulation.
py::object simulateFromPython(const Graph& graph, const Schedule* schedule,
                              const DeviceProfile& profile) {
  SimulationResult result;
  {
    const py::gil_scoped_release release;
    result =
        schedule == nullptr ? simulatePlain(graph, profile) : simulate(graph, *schedule, profile);
  }
  return fromPackage("poet._results", "Simulation")(
      py::arg("peak_bytes") = result.peak_bytes, py::arg("peak_op") = indexOrNone(result.peak_op),
      py::arg("makespan_seconds") = result.makespan_seconds,
      py::arg("energy_joules") = result.energy_joules,
      py::arg("recompute_seconds") = result.recompute_seconds,
      py::arg("recomputed_ops") = result.recomputed_ops,
      py::arg("transfer_seconds") = result.transfer_seconds,
      py::arg("hidden_seconds") = result.hidden_seconds, py::arg("page_outs") = result.page_outs,
      py::arg("page_ins") = result.page_ins, py::arg("paged_out_bytes") = result.paged_out_bytes,
      py::arg("paged_in_bytes") = result.paged_in_bytes, py::arg("wake_ups") = result.wake_ups,
      py::arg("resident_bytes") = py::tuple(py::cast(result.resident_bytes)));
}

DeviceProfile withStore(DeviceProfile device, double read_rate, double write_rate,
                        double read_latency_seconds, double write_latency_seconds, int dma_channels,
                        double wake_joules, const std::string& source) {
  device.store_read_rate = read_rate;
  device.store_write_rate = write_rate;
  device.store_read_latency_seconds = read_latency_seconds;
  device.store_write_latency_seconds = write_latency_seconds;
  device.dma_channels = dma_channels;
  device.wake_joules = wake_joules;
  device.store_source = source;
  device.checkStore();
  return device;
}

void bindProfile(py::module_& m) {
  py::class_<DeviceProfile> cls(m, "DeviceProfile",
                                "A device and its model of time and energy. Read-only.");
  cls.def_static("by_name", &profileByName, py::arg("name"),
                 "Raises poet.ArgumentError that names the known ones.")
      .def_readonly("name", &DeviceProfile::name)
      .def_readonly("compute_watts", &DeviceProfile::compute_watts)
      .def_readonly("idle_watts", &DeviceProfile::idle_watts)
      .def_readonly("memory_watts", &DeviceProfile::memory_watts)
      .def_readonly("store_watts", &DeviceProfile::store_watts)
      .def_readonly("replay_factor", &DeviceProfile::replay_factor)
      .def_readonly("replay_fixed_seconds", &DeviceProfile::replay_fixed_seconds)
      .def_readonly("generator_state_bytes", &DeviceProfile::generator_state_bytes)
      .def_readonly("energy_source", &DeviceProfile::energy_source)
      .def_property_readonly("has_store", &DeviceProfile::hasStore)
      .def_readonly("store_read_rate", &DeviceProfile::store_read_rate, "Bytes a second.")
      .def_readonly("store_write_rate", &DeviceProfile::store_write_rate, "Bytes a second.")
      .def_readonly("store_read_latency_seconds", &DeviceProfile::store_read_latency_seconds)
      .def_readonly("store_write_latency_seconds", &DeviceProfile::store_write_latency_seconds)
      .def_readonly("wake_joules", &DeviceProfile::wake_joules)
      .def_readonly("dma_channels", &DeviceProfile::dma_channels,
                    "Transfers that may run beside ops; 0: a transfer blocks.")
      .def_readonly("store_source", &DeviceProfile::store_source)
      .def_readonly("ram_bytes", &DeviceProfile::ram_bytes, "0: unknown.")
      .def_readonly("flash_bytes", &DeviceProfile::flash_bytes, "0: unknown.")
      .def_property_readonly("has_rates", &DeviceProfile::hasRates,
                             "Whether it says how long an op takes that ran elsewhere.")
      .def_readonly("convolution_rate", &DeviceProfile::convolution_rate, "Flops a second.")
      .def_readonly("matmul_rate", &DeviceProfile::matmul_rate, "Flops a second.")
      .def_readonly("elementwise_rate", &DeviceProfile::elementwise_rate, "Flops a second.")
      .def_readonly("memory_rate", &DeviceProfile::memory_rate, "Bytes a second.")
      .def_readonly("op_overhead_seconds", &DeviceProfile::op_overhead_seconds)
      .def_readonly("direct_kernels", &DeviceProfile::direct_kernels,
                    "Whether its kernels need no workspace.")
      .def_static("from_json", &DeviceProfile::fromJson, py::arg("text"),
                  "Raises poet.FormatError.")
      .def("to_json", &DeviceProfile::toJson)
      .def("with_store", &withStore, py::arg("read_rate"), py::arg("write_rate"),
           py::arg("read_latency_seconds"), py::arg("write_latency_seconds"),
           py::arg("dma_channels") = 0, py::arg("wake_joules") = 0.0, py::arg("source") = "",
           "The same device with this secondary storage; rates in bytes a second. Raises "
           "poet.ArgumentError for figures that no store has.")
      .def("__repr__", [](const DeviceProfile& p) {
        return py::str("<poet.DeviceProfile {}>").format(p.name);
      });
  makePublic(cls);
}

// A new graph made from one, without the GIL.
template <class Pass>
std::shared_ptr<Graph> pass(const Pass& make) {
  const py::gil_scoped_release release;
  return std::make_shared<Graph>(make());
}

void bindPasses(py::module_& m) {
  m.def(
      "on_device",
      [](const std::shared_ptr<Graph>& graph, const DeviceProfile& device) {
        return pass([&] { return onDevice(*graph, device); });
      },
      py::arg("graph"), py::arg("device"), "The step with the device's times and workspaces.");
  m.def(
      "activations_only",
      [](const std::shared_ptr<Graph>& graph) {
        return pass([&] { return activationsOnly(*graph); });
      },
      py::arg("graph"), "The step in which activations and workspaces alone have bytes.");
  m.def(
      "slice_optimizer",
      [](const std::shared_ptr<Graph>& graph, int64_t threshold_bytes, int64_t most_bytes) {
        return pass([&] {
          return sliceOptimizer(*graph,
                                {.threshold_bytes = threshold_bytes, .most_bytes = most_bytes});
        });
      },
      py::arg("graph"), py::arg("threshold_bytes"), py::arg("most_bytes"),
      "The step in which the optimizer's elementwise ops run slice by slice.");
  m.def(
      "op_class", [](const std::string& name) { return std::string(toString(opClassOf(name))); },
      py::arg("name"), "\"convolution\", \"matmul\" or \"elementwise\".");
}

}  // namespace

void bindSolve(py::module_& m) {
  bindProfile(m);
  bindPasses(m);
  m.attr("BACKGROUND_NICENESS") = SolveOptions::kBackgroundNiceness;
  m.attr("LEAST_SHARE_OF_ROOM") = SolveOptions::kLeastShareOfRoom;
  m.def("methods", &methodsForPython);
  m.def(
      "check_objective",
      [](const std::string& method, const std::string& minimize) {
        checkObjective(methodByName(method), objectiveFromString(minimize));
      },
      py::arg("method"), py::arg("minimize"));
  m.def("simulate", &simulateFromPython, py::arg("graph"), py::arg("schedule"), py::arg("profile"));
  m.def("solve_in_worker", &solveFromPython, py::arg("graph"), py::arg("profile"), py::kw_only(),
        py::arg("ram_budget_bytes"), py::arg("runtime_budget_seconds"), py::arg("minimize"),
        py::arg("time_limit_seconds"), py::arg("threads"), py::arg("worker_path"),
        py::arg("should_stop") = py::none(), py::arg("on_progress") = py::none(),
        py::arg("recompute") = SolveOptions{}.recompute, py::arg("paging") = SolveOptions{}.paging,
        py::arg("away_between_steps") = SolveOptions{}.away_between_steps,
        py::arg("parameters_away") = SolveOptions{}.parameters_away,
        py::arg("deterministic") = SolveOptions{}.deterministic,
        py::arg("starts") = std::vector<std::shared_ptr<Schedule>>(),
        py::arg("solver") = std::string(toString(SolverKind::kAuto)), py::arg("highs_library") = "",
        py::arg("gurobi_command") = std::vector<std::string>(), py::arg("on_trouble") = py::none(),
        py::arg("method") = SolveOptions{}.method, py::arg("python") = SolveOptions{}.python,
        py::arg("niceness") = SolveOptions{}.niceness,
        "should_stop is called about ten times a second; when it returns true the best plan so far "
        "is returned. on_progress hears of every better plan and bound (poet.SearchPoint), "
        "on_trouble, once the solve is over, why another solver went on.");
}

}  // namespace poet
