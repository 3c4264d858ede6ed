#include "schedule/schedule.h"

#include <memory>
#include <string>

#include "bindings/bindings.h"
#include "bindings/conversions.h"

namespace poet {
namespace {

using SchedulePtr = std::shared_ptr<Schedule>;

constexpr const char* kGraphAttribute = "_graph";

// Appends what stands at one position as poet._results.Action.
void appendActions(const Schedule& schedule, int64_t at, const char* when,
                   const std::vector<Action>& actions, const py::object& action_class,
                   py::list& out) {
  for (const Action& action : actions) {
    const py::object kind = enumMember("ActionKind", toString(action.kind));
    if (action.kind == ActionKind::kRecompute) {
      const py::tuple ops = indices(schedule.recipes.at(static_cast<size_t>(action.arg)));
      out.append(action_class(at, when, kind, py::none(), ops));
    } else {
      out.append(action_class(at, when, kind, action.arg));
    }
  }
}

py::tuple actionsOf(const Schedule& schedule) {
  const py::object action_class = fromPackage("poet._results", "Action");
  py::list out;
  for (size_t k = 0; k < schedule.before.size(); ++k) {
    appendActions(schedule, static_cast<int64_t>(k), "before", schedule.before[k], action_class,
                  out);
    if (k < schedule.after.size()) {
      appendActions(schedule, static_cast<int64_t>(k), "after", schedule.after[k], action_class,
                    out);
    }
  }
  return py::tuple(out);
}

void bindAsked(py::class_<Schedule, SchedulePtr>& cls) {
  cls.def_property_readonly("graph_signature",
                            [](const Schedule& s) { return hexSignature(s.graph_signature); })
      .def_property_readonly("num_ops", [](const Schedule& s) { return s.num_ops; })
      .def_property_readonly("method", [](const Schedule& s) { return s.method; })
      .def_property_readonly(
          "objective",
          [](const Schedule& s) { return enumMember("Objective", toString(s.objective)); })
      .def_property_readonly(
          "ram_budget", [](const Schedule& s) { return s.ram_budget_bytes; }, "Bytes.")
      .def_property_readonly("runtime_budget_seconds",
                             [](const Schedule& s) { return s.runtime_budget_seconds; });
}

void bindOutcome(py::class_<Schedule, SchedulePtr>& cls) {
  cls.def_property_readonly(
         "status", [](const Schedule& s) { return enumMember("Status", toString(s.status)); })
      .def_property_readonly("has_plan", &Schedule::hasPlan)
      .def_property_readonly("actions", &actionsOf)
      .def_property_readonly("peak_bytes", [](const Schedule& s) { return s.peak_bytes; })
      .def_property_readonly("peak_op", [](const Schedule& s) { return indexOrNone(s.peak_op); })
      .def_property_readonly("makespan_seconds",
                             [](const Schedule& s) { return s.makespan_seconds; })
      .def_property_readonly("energy_joules", [](const Schedule& s) { return s.energy_joules; })
      .def_property_readonly("bound", [](const Schedule& s) { return s.bound; })
      .def_property_readonly("gap", [](const Schedule& s) { return s.gap; })
      .def_property_readonly("bound_scope", [](const Schedule& s) { return s.bound_scope; })
      .def_property_readonly("believed_peak_bytes",
                             [](const Schedule& s) { return s.believed_peak_bytes; })
      .def_property_readonly("believed_seconds",
                             [](const Schedule& s) { return s.believed_seconds; })
      .def_property_readonly("solve_seconds", [](const Schedule& s) { return s.solve_seconds; })
      .def_property_readonly(
          "least_ram_budget", [](const Schedule& s) { return s.least_ram_budget; }, "Bytes.")
      .def_property_readonly("least_ram_op",
                             [](const Schedule& s) { return indexOrNone(s.least_ram_op); })
      .def_property_readonly("message", [](const Schedule& s) { return s.message; });
}

void bindStorage(py::class_<Schedule, SchedulePtr>& cls) {
  cls.def("to_json",
          [](const Schedule& s) {
            const py::gil_scoped_release release;
            return s.toJson();
          })
      .def_static(
          "from_json",
          [](const std::string& text) {
            const py::gil_scoped_release release;
            return std::make_shared<Schedule>(Schedule::fromJson(text));
          },
          py::arg("text"))
      .def(
          "save",
          [](const Schedule& s, const py::object& path) {
            const std::string name = fileName(path);
            const py::gil_scoped_release release;
            s.save(name);
          },
          py::arg("path"))
      .def_static(
          "load",
          [](const py::object& path) {
            const std::string name = fileName(path);
            const py::gil_scoped_release release;
            return std::make_shared<Schedule>(Schedule::load(name));
          },
          py::arg("path"))
      .def(py::pickle([](const Schedule& x) { return x.toJson(); },
                      [](const std::string& text) {
                        return std::make_shared<Schedule>(Schedule::fromJson(text));
                      }));
}

// Python may not change a schedule; poet.solve alone notes the graph that it solved for.
void bindFrozen(py::class_<Schedule, SchedulePtr>& cls) {
  const auto refuse = [](const py::object&, const std::string& name, const py::args&) {
    throw py::attribute_error("a poet.Schedule cannot be changed: " + name);
  };
  cls.def("__setattr__", refuse)
      .def("__delattr__", refuse)
      .def_property_readonly(
          "graph",
          [](const py::object& self) { return self.attr("__dict__").attr("get")(kGraphAttribute); },
          "The graph that it was solved for; None for one that was loaded.");
}

void bindForPeople(py::class_<Schedule, SchedulePtr>& cls) {
  cls.def(
         "summary",
         [](const py::object& self, const py::object& graph) {
           return fromPackage("poet._summary", "summary")(self, graph);
         },
         py::arg("graph") = py::none(), "What was asked and what came out, as a table.")
      .def("__str__",
           [](const py::object& self) { return fromPackage("poet._summary", "summary")(self); })
      .def("__repr__", [](const Schedule& s) {
        const std::string peak =
            s.hasPlan() ? ", peak " + std::to_string(s.peak_bytes) + " bytes" : "";
        return py::str("<poet.Schedule {}: {} ops{}>")
            .format(std::string(toString(s.status)), s.num_ops, peak);
      });
}

}  // namespace

void setGraph(const py::object& schedule, const py::object& graph) {
  schedule.attr("__dict__")[kGraphAttribute] = graph;
}

void bindSchedule(py::module_& m) {
  py::class_<Schedule, SchedulePtr> cls(
      m, "Schedule", py::dynamic_attr(),
      "What to do between the ops of a training step, and what that costs. Immutable.\n\n"
      "Made by poet.solve, Schedule.load and Schedule.from_json.");
  bindAsked(cls);
  bindOutcome(cls);
  bindStorage(cls);
  bindFrozen(cls);
  bindForPeople(cls);
  cls.def("check_against", &Schedule::checkAgainst, py::arg("graph"),
          "Raises poet.ScheduleError if it was made for another graph.")
      .def(
          "__eq__",
          [](const Schedule& a, const Schedule& b) { return &a == &b || a.toJson() == b.toJson(); },
          py::is_operator())
      .def("__hash__", [](const Schedule& s) { return py::hash(py::str(s.toJson())); });
  makePublic(cls);
}

}  // namespace poet
