#include "schedule/schedule.h"

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "graph/error.h"
#include "methods/placement.h"
#include "methods/swap_feedback.h"
#include "schedule/energy_budget.h"
#include "schedule/other_sizes.h"
#include "schedule/rewritten_graph.h"

namespace poet {
namespace {

using SchedulePtr = std::shared_ptr<Schedule>;

using RewrittenPtr = std::shared_ptr<RewrittenGraph>;

constexpr const char* kGraphAttribute = "_graph";
constexpr const char* kDeviceAttribute = "_device";
constexpr const char* kAskedAttribute = "_asked";

// The graph that was given, or the one that the schedule remembers.
py::object graphFor(const py::object& schedule, const py::object& graph, const char* what) {
  if (!graph.is_none()) return graph;
  py::object remembered = schedule.attr("__dict__").attr("get")(kGraphAttribute);
  POET_CHECK(!remembered.is_none(), what,
             ": this schedule was loaded and does not know its graph. ",
             "Pass the graph that it was made for: ", what,
             "(graph); or save that as plan.graph.json beside plan.json before you load it.");
  return remembered;
}

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

// What makes two schedules equal: everything but how the search went.
std::string identity(Schedule schedule) {
  schedule.history.clear();
  schedule.start.clear();
  return schedule.toJson();
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
                             [](const Schedule& s) { return s.runtime_budget_seconds; })
      .def_property_readonly(
          "energy_budget_joules", [](const Schedule& s) { return s.energy_budget_joules; },
          "Of the step, where battery_joules= was given.");
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
      .def_property_readonly(
          "bound", [](const Schedule& s) { return s.bound; },
          "A lower bound in the objective's unit (joules, seconds or bytes): of the schedules that "
          "bound_scope names. None where there is none.")
      .def_property_readonly(
          "gap", [](const Schedule& s) { return s.gap; },
          "(value - bound) / value: 0.0 when optimal, None without a plan. It compares with "
          "`bound`: where bound_scope is \"candidates\" it speaks of the candidates alone.")
      .def_property_readonly(
          "bound_scope", [](const Schedule& s) { return s.bound_scope; },
          "A result: which schedules `bound` and `gap` speak of. \"all\": every schedule; "
          "\"candidates\": those that the search put into its programs, or one choice of what is "
          "away between steps.")
      .def_property_readonly(
          "bound_all", [](const Schedule& s) { return s.bound_all; },
          "The greatest lower bound known over every schedule, in the same unit; None where there "
          "is none.")
      .def_property_readonly("believed_peak_bytes",
                             [](const Schedule& s) { return s.believed_peak_bytes; })
      .def_property_readonly("believed_seconds",
                             [](const Schedule& s) { return s.believed_seconds; })
      .def_property_readonly("solve_seconds", [](const Schedule& s) { return s.solve_seconds; })
      .def_property_readonly(
          "history",
          [](const Schedule& s) {
            py::list points;
            for (const SearchPoint& p : s.history) points.append(searchPoint(p));
            return py::tuple(points);
          },
          "How the search went: a poet.SearchPoint for each better plan and "
          "each better bound, in order of time.")
      .def_property_readonly(
          "least_ram_budget", [](const Schedule& s) { return s.least_ram_budget; },
          "Where there is no plan: the least budget found that has one, in bytes.")
      .def_property_readonly(
          "least_plan",
          [](const Schedule& s) {
            return s.least_plan ? std::make_shared<Schedule>(*s.least_plan) : nullptr;
          },
          "The plan of method \"poet\" with the peak of `least_ram_budget`, for starts=[...] of a "
          "solve with that budget: a second search need not find in its time what the first has "
          "found. None with other methods.")
      .def_property_readonly("least_ram_op",
                             [](const Schedule& s) { return indexOrNone(s.least_ram_op); })
      .def_property_readonly(
          "least_energy_joules", [](const Schedule& s) { return s.least_energy_joules; },
          "Of the best schedule found, where none keeps the energy budget.")
      .def_property_readonly("message", [](const Schedule& s) { return s.message; })
      .def_property_readonly(
          "start", [](const Schedule& s) { return s.start; },
          "Which part of the planner the plan came from, such as \"greedy\" or \"window\"; with "
          "\"; starts: \" and the methods of the schedules that starts= gave, where it gave any. "
          "Of other methods: the phase, where there are several. Empty without a plan.");
}

void bindCounts(py::class_<Schedule, SchedulePtr>& cls) {
  const auto count = [&cls](const char* name, ActionKind kind) {
    cls.def_property_readonly(name, [kind](const Schedule& s) { return s.countActions(kind); });
  };
  count("frees", ActionKind::kFree);
  count("recomputes", ActionKind::kRecompute);
  count("retains", ActionKind::kRetain);
  count("page_outs", ActionKind::kPageOut);
  count("page_ins", ActionKind::kPageIn);
  cls.def_property_readonly(
      "away_between_steps", [](const Schedule& s) { return indices(s.away_between_steps); },
      "Indices of the values that are in the store when the step begins.");
}

py::bytes toBytes(const py::object& self, const py::object& graph) {
  const py::object found = graphFor(self, graph, "to_bytes");
  const auto schedule = self.cast<SchedulePtr>();
  const auto held = found.cast<std::shared_ptr<Graph>>();
  std::string bytes;
  {
    const py::gil_scoped_release release;
    bytes = schedule->toBytes(*held);
  }
  return py::bytes(bytes);
}

py::object fromBytes(const py::object& data, const py::object& graph) {
  POET_CHECK(PyObject_CheckBuffer(data.ptr()) != 0, "data: expected the bytes that ",
             "Schedule.to_bytes gave (a file of them is read in mode \"rb\"); got ",
             py::repr(py::type::of(data)).cast<std::string>(), ".");
  POET_CHECK(py::isinstance<Graph>(graph), "graph: expected the poet.Graph that the schedule was ",
             "made for: bytes hold no copy of it; got ",
             py::repr(py::type::of(graph)).cast<std::string>(),
             ". Pass Graph.load(...) or the graph of poet.trace.");
  const py::bytes copy = py::reinterpret_steal<py::bytes>(PyBytes_FromObject(data.ptr()));
  const auto text = copy.cast<std::string_view>();
  const auto held = graph.cast<std::shared_ptr<Graph>>();
  SchedulePtr schedule;
  {
    const py::gil_scoped_release release;
    schedule = std::make_shared<Schedule>(Schedule::fromBytes(text, *held));
  }
  py::object result = py::cast(schedule);
  setGraph(result, graph);
  return result;
}

// `schedule` with what hangs on `of` in Python: the step, the device.
py::object withFields(const py::object& of, Schedule schedule) {
  py::object result = py::cast(std::make_shared<Schedule>(std::move(schedule)));
  for (const auto& entry : of.attr("__dict__").cast<py::dict>())
    result.attr("__dict__")[entry.first] = entry.second;
  return result;
}

// The schedule held to what a constraint on the whole training leaves for one step.
py::object heldTo(const py::object& self, const std::string& note, std::optional<double> joules) {
  Schedule schedule = *self.cast<SchedulePtr>();
  if (joules) schedule = withinEnergy(std::move(schedule), *joules);
  if (!note.empty())
    schedule.message = note + (schedule.message.empty() ? "" : ": ") + schedule.message;
  return withFields(self, std::move(schedule));
}

py::object besideMore(const py::object& self, const py::object& graph, int64_t bytes) {
  py::object result = withFields(self, self.cast<SchedulePtr>()->besideMore(bytes));
  setGraph(result, graph);
  return result;
}

// None where the plan cannot be carried out there.
py::object withOtherSizesBound(const py::object& self, const py::object& from, const py::object& to,
                               const DeviceProfile& profile, int64_t ram_budget_bytes,
                               std::optional<double> runtime_budget_seconds) {
  std::optional<Schedule> other = withOtherSizes(
      *self.cast<SchedulePtr>(), from.cast<const Graph&>(), to.cast<const Graph&>(), profile);
  if (!other) return py::none();
  other->ram_budget_bytes = ram_budget_bytes;
  other->runtime_budget_seconds = runtime_budget_seconds;
  py::object result = withFields(self, *std::move(other));
  setGraph(result, to);
  return result;
}

py::object leavingRoomBound(const py::object& self, const py::object& graph,
                            const DeviceProfile& profile, int64_t ram_budget_bytes) {
  py::object result =
      withFields(self, leavingRoom(*self.cast<SchedulePtr>(), graph.cast<const Graph&>(), profile,
                                   ram_budget_bytes));
  setGraph(result, graph);
  return result;
}

// None where no swap was late, or none can begin earlier.
py::object withEarlierSwapsBound(const py::object& self, const py::object& graph,
                                 const DeviceProfile& profile,
                                 const std::vector<std::tuple<int, int, double>>& awaited) {
  std::vector<AwaitedSwap> swaps;
  for (const auto& [value, op, seconds] : awaited)
    swaps.push_back({ValueId(value), OpId(op), seconds});
  std::optional<Schedule> moved =
      withEarlierSwaps(*self.cast<SchedulePtr>(), graph.cast<const Graph&>(), profile, swaps);
  if (!moved) return py::none();
  py::object result = withFields(self, *std::move(moved));
  setGraph(result, graph);
  return result;
}

// The rewritten DAG.
RewrittenPtr rewrite(const py::object& self, const py::object& graph) {
  const py::object found = graphFor(self, graph, "graph");
  const auto schedule = self.cast<SchedulePtr>();
  POET_CHECK_AS(
      ScheduleError, schedule->hasPlan(), "graph: expected a schedule with a plan; this one ",
      "is \"", toString(schedule->status), "\"",
      schedule->message.empty() ? "" : ": " + schedule->message,
      ". Schedule.advice says what would help; method=\"checkpoint_all\" of poet.solve gives ",
      "the plain step.");
  const auto held = found.cast<std::shared_ptr<Graph>>();
  const py::gil_scoped_release release;
  return std::make_shared<RewrittenGraph>(schedule->rewrittenGraph(*held));
}

double fragmentationOf(const py::object& self, const py::object& graph) {
  const py::object found = graphFor(self, graph, "graph");
  const auto schedule = self.cast<SchedulePtr>();
  const auto held = found.cast<std::shared_ptr<Graph>>();
  const py::gil_scoped_release release;
  return placeInArena(*held, *schedule).fragmentation();
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
            SchedulePtr schedule;
            {
              const py::gil_scoped_release release;
              schedule = std::make_shared<Schedule>(Schedule::load(name));
            }
            py::object result = py::cast(schedule);
            const py::tuple found = fromPackage("poet._beside", "found_beside")(path, result);
            setGraph(result, found[0]);
            setDevice(result, found[1]);
            return result;
          },
          py::arg("path"),
          "Its step and its device are taken along where they lie beside it, as `poet solve --out` "
          "writes them (plan.graph.json, plan.device.json) and where they fit.")
      .def("to_bytes", &toBytes, py::arg("graph") = py::none(),
           "The compact form for devices: to be read with its graph. A loaded schedule needs the "
           "graph. Raises poet.ScheduleError if it was made for another one.")
      .def_static(
          "from_bytes", &fromBytes, py::arg("data"), py::arg("graph") = py::none(),
          "The graph is needed. Raises poet.FormatError for damaged bytes, poet.ScheduleError for "
          "another graph, poet.ArgumentError for none.")
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
          "traced_graph",
          [](const py::object& self) { return self.attr("__dict__").attr("get")(kGraphAttribute); },
          "The graph that it was solved for; None for one that was loaded without it.")
      .def_property_readonly(
          "device",
          [](const py::object& self) {
            return self.attr("__dict__").attr("get")(kDeviceAttribute);
          },
          "The device that it was solved for; None for one that was loaded without it.")
      .def_property_readonly(
          "energy_source",
          [](const py::object& self) -> py::object {
            const py::object device = self.attr("device");
            return device.is_none() ? device : device.attr("energy_source");
          },
          "Where the watts behind energy_joules come from, as the device has it; None without one.")
      .def("graph", &rewrite, py::arg("graph") = py::none(),
           "The rewritten DAG: what runs in which order, with recomputed copies and transfers. A "
           "loaded schedule needs the graph that it was made for. Raises poet.ScheduleError if it "
           "cannot be carried out, or has no plan.")
      .def("fragmentation", &fragmentationOf, py::arg("graph") = py::none(),
           "Of the most bytes that are in memory at once, what holes add where every block takes "
           "the lowest place that is large enough, in running order, and nothing moves: 0.1 means "
           "an arena a tenth larger. Without a plan: of the plain step. A loaded schedule needs "
           "the graph that it was made for.");
}

void bindForPeople(py::class_<Schedule, SchedulePtr>& cls) {
  cls.def(
         "summary",
         [](const py::object& self, const py::object& graph) {
           return fromPackage("poet._summary", "summary")(self, graph);
         },
         py::arg("graph") = py::none(), "What was asked and what came out, as a table.")
      .def_property_readonly(
          "advice",
          [](const py::object& self) { return fromPackage("poet._advice", "advice")(self); },
          "What would help where there is no plan: a tuple of sentences, best first.")
      .def(
          "plot",
          [](const py::object& self, const py::object& path, const py::object& graph) {
            return fromPackage("poet._plot", "plot")(self, path, graph);
          },
          py::arg("path") = py::none(), py::arg("graph") = py::none(),
          "Draws ops against time and memory against time with matplotlib, and returns the figure; "
          "writes it to `path` (.png, .svg, .pdf) where one is given.")
      .def(
          "to_perfetto",
          [](const py::object& self, const py::object& path, const py::object& graph) {
            return fromPackage("poet._perfetto", "to_perfetto")(self, path, graph);
          },
          py::arg("path") = py::none(), py::arg("graph") = py::none(),
          "The schedule as a trace for ui.perfetto.dev: JSON text, written to `path` where one is "
          "given.")
      .def("__str__",
           [](const py::object& self) { return fromPackage("poet._summary", "summary")(self); })
      .def("__repr__", [](const Schedule& s) {
        const std::string peak =
            s.hasPlan() ? ", peak " + std::to_string(s.peak_bytes) + " bytes" : "";
        return py::str("<poet.Schedule {}: {} ops{}>")
            .format(std::string(toString(s.status)), s.num_ops, peak);
      });
}

// Reads as (copy, version, node that made it or None).
py::tuple usesOf(const std::vector<RewrittenNode::Use>& uses) {
  py::tuple result(uses.size());
  for (size_t i = 0; i < uses.size(); ++i) {
    const py::object from = uses[i].from < 0 ? py::object(py::none()) : py::int_(uses[i].from);
    result[i] = py::make_tuple(uses[i].copy, uses[i].version, from);
  }
  return result;
}

// As poet._results.Node.
py::tuple nodesOf(const RewrittenGraph& graph) {
  const py::object node_class = fromPackage("poet._results", "Node");
  py::tuple result(graph.nodes().size());
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const RewrittenNode& node = graph.nodes()[i];
    py::list writes;
    for (const RewrittenNode::Use& use : node.writes)
      writes.append(py::make_tuple(use.copy, use.version));
    result[i] = node_class(
        py::arg("kind") = enumMember("NodeKind", toString(node.kind)),
        py::arg("op") = indexOrNone(node.op), py::arg("at") = node.at,
        py::arg("phase") = enumMember("Phase", toString(node.phase)), py::arg("name") = node.name,
        py::arg("planned") = node.planned, py::arg("reads") = usesOf(node.reads),
        py::arg("writes") = py::tuple(writes),
        py::arg("frees") = node.frees < 0 ? py::object(py::none()) : py::int_(node.frees),
        py::arg("resident_bytes") = node.resident_bytes);
  }
  return result;
}

void bindRewritten(py::module_& m) {
  py::class_<RewrittenGraph, RewrittenPtr> cls(
      m, "RewrittenGraph",
      "A step with its schedule carried out: nodes in execution order, and edges between them.\n\n"
      "Made by Schedule.graph. The formats: docs/rewritten-graph.md.");
  cls.def_property_readonly("nodes", &nodesOf)
      .def_property_readonly("peak_bytes", &RewrittenGraph::peakBytes)
      .def("to_json",
           [](const RewrittenGraph& g) {
             const py::gil_scoped_release release;
             return g.toJson();
           })
      .def("to_dot",
           [](const RewrittenGraph& g) {
             const py::gil_scoped_release release;
             return g.toDot();
           })
      .def(
          "save",
          [](const RewrittenGraph& g, const py::object& path) {
            const std::string name = fileName(path);
            const py::gil_scoped_release release;
            g.save(name);
          },
          py::arg("path"), "JSON for a name in .json, Graphviz for one in .dot or .gv.")
      .def("__len__", [](const RewrittenGraph& g) { return g.nodes().size(); })
      .def("__repr__", [](const RewrittenGraph& g) {
        return py::str("<poet.RewrittenGraph: {} nodes, {} edges, peak {} bytes>")
            .format(g.nodes().size(), g.edges().size(), g.peakBytes());
      });
  makePublic(cls);
}

}  // namespace

void setGraph(const py::object& schedule, const py::object& graph) {
  schedule.attr("__dict__")[kGraphAttribute] = graph;
}

void setDevice(const py::object& schedule, const py::object& device) {
  schedule.attr("__dict__")[kDeviceAttribute] = device;
}

void setAsked(const py::object& schedule, bool paging, bool away_between_steps) {
  py::dict asked;
  asked["paging"] = paging;
  asked["away_between_steps"] = away_between_steps;
  schedule.attr("__dict__")[kAskedAttribute] = asked;
}

void bindSchedule(py::module_& m) {
  bindRewritten(m);
  py::class_<Schedule, SchedulePtr> cls(
      m, "Schedule", py::dynamic_attr(),
      "What to do between the ops of a training step, and what that costs. Immutable.\n\n"
      "Made by poet.solve, Schedule.load and Schedule.from_json.");
  bindAsked(cls);
  bindOutcome(cls);
  bindCounts(cls);
  bindStorage(cls);
  bindFrozen(cls);
  bindForPeople(cls);
  cls.def("check_against", &Schedule::checkAgainst, py::arg("graph"),
          "Raises poet.ScheduleError if it was made for another graph.")
      .def(
          "__eq__",
          [](const Schedule& a, const Schedule& b) {
            return &a == &b || identity(a) == identity(b);
          },
          py::is_operator())
      .def("__hash__", [](const Schedule& s) { return py::hash(py::str(identity(s))); });
  makePublic(cls);
  m.def("held_to", &heldTo, py::arg("schedule"), py::arg("note"), py::arg("energy_budget_joules"),
        "The schedule with a note before its message, held to a cap on the step's joules.");
  m.def("beside_more", &besideMore, py::arg("schedule"), py::arg("graph"), py::arg("bytes"),
        "The schedule where that many bytes more lie beside the step, which is `graph` now.");
  m.def("with_other_sizes", &withOtherSizesBound, py::arg("schedule"), py::arg("graph"),
        py::arg("other"), py::arg("device"), py::arg("ram_budget_bytes"),
        py::arg("runtime_budget_seconds"),
        "The plan for a graph that differs from its own in sizes alone; None where it is no plan.");
  m.def("with_earlier_swaps", &withEarlierSwapsBound, py::arg("schedule"), py::arg("graph"),
        py::arg("device"), py::arg("awaited"),
        "The plan with those page-ins earlier that a step waited for (value, op, seconds); None "
        "where no wait was long, or nothing can begin earlier.");
  m.def("leaving_room", &leavingRoomBound, py::arg("schedule"), py::arg("graph"), py::arg("device"),
        py::arg("ram_budget_bytes"),
        "A plan that was made for less memory as one of this budget, of which it leaves the rest.");
}

}  // namespace poet
