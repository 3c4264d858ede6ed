#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "graph/graph.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

using GraphPtr = std::shared_ptr<Graph>;

// One op or value as Python sees it: a position in a graph that it keeps alive. Read-only, as cheap
// as a pointer.
struct OpView {
  GraphPtr graph;
  OpId id;
  const Op& op() const { return graph->op(id); }
};
struct ValueView {
  GraphPtr graph;
  ValueId id;
  const Value& value() const { return graph->value(id); }
};

bool sameContent(const OpView& a, const OpView& b) { return a.id == b.id && a.op() == b.op(); }
bool sameContent(const ValueView& a, const ValueView& b) {
  return a.id == b.id && a.value() == b.value();
}

struct OpSequence {
  using View = OpView;
  static constexpr const char* kOf = "ops";
  GraphPtr graph;
  int64_t size() const { return graph->numOps(); }
  View at(int64_t i) const { return {graph, OpId(i)}; }
};
struct ValueSequence {
  using View = ValueView;
  static constexpr const char* kOf = "values";
  GraphPtr graph;
  int64_t size() const { return graph->numValues(); }
  View at(int64_t i) const { return {graph, ValueId(i)}; }
};

py::object sliceOf(const Slice& slice) {
  if (slice == Slice()) return py::none();
  return py::make_tuple(slice.of, slice.index, slice.count);
}

constexpr const char* kSliceDoc =
    "In a sliced graph: what it comes from in the recorded one, which slice it is, and of how many "
    "(1: it is whole). None in any other graph.";

py::object deathOf(const ValueView& v) {
  const OpId death = v.value().death;
  return death == v.graph->endOfStep() ? py::object(py::none()) : py::int_(death.index);
}

py::str reprOfOp(const OpView& o) {
  return py::str("<poet op {}: {}, {}, {} -> {}>")
      .format(o.id.index, o.op().name, std::string(toString(o.op().phase)), indices(o.op().inputs),
              indices(o.op().outputs));
}

py::str reprOfValue(const ValueView& v) {
  const py::str tensor =
      py::str("{}{}").format(v.value().dtype, py::tuple(py::cast(v.value().shape)));
  return py::str("<poet value {}: {}, {} bytes{}{}>")
      .format(v.id.index, std::string(toString(v.value().kind)), v.value().bytes,
              v.value().dtype.empty() ? "" : ", ", v.value().dtype.empty() ? py::str("") : tensor);
}

void bindOp(py::module_& m) {
  py::class_<OpView> cls(m, "Op", "One ATen operator call of the recorded step.");
  cls.def_property_readonly("index", [](const OpView& o) { return o.id.index; })
      .def_property_readonly("name", [](const OpView& o) { return o.op().name; })
      .def_property_readonly(
          "phase", [](const OpView& o) { return enumMember("Phase", toString(o.op().phase)); })
      .def_property_readonly("seconds", [](const OpView& o) { return o.op().seconds; })
      .def_property_readonly("host_seconds", [](const OpView& o) { return o.op().host_seconds; })
      .def_property_readonly("flops", [](const OpView& o) { return o.op().flops; })
      .def_property_readonly("workspace_bytes",
                             [](const OpView& o) { return o.op().workspace_bytes; })
      .def_property_readonly("inputs", [](const OpView& o) { return indices(o.op().inputs); })
      .def_property_readonly("outputs", [](const OpView& o) { return indices(o.op().outputs); })
      .def_property_readonly("mutates", [](const OpView& o) { return indices(o.op().mutates); })
      .def_property_readonly("statistics",
                             [](const OpView& o) { return indices(o.op().statistics); })
      .def_property_readonly("metadata_only", [](const OpView& o) { return o.op().metadata_only; })
      .def_property_readonly("reads_no_data", [](const OpView& o) { return o.op().reads_no_data; })
      .def_property_readonly("random", [](const OpView& o) { return o.op().random; })
      .def_property_readonly("replayable", [](const OpView& o) { return o.op().replayable; })
      .def_property_readonly(
          "slice", [](const OpView& o) { return sliceOf(o.op().slice); }, kSliceDoc)
      .def(
          "__eq__", [](const OpView& a, const OpView& b) { return sameContent(a, b); },
          py::is_operator())
      .def("__hash__",
           [](const OpView& o) { return py::hash(py::make_tuple(o.id.index, o.op().name)); })
      .def("__repr__", &reprOfOp);
  makePublic(cls);
}

void bindValue(py::module_& m) {
  py::class_<ValueView> cls(m, "Value", "One storage of the recorded step; views share it.");
  cls.def_property_readonly("index", [](const ValueView& v) { return v.id.index; })
      .def_property_readonly(
          "kind",
          [](const ValueView& v) { return enumMember("ValueKind", toString(v.value().kind)); })
      .def_property_readonly("bytes", [](const ValueView& v) { return v.value().bytes; })
      .def_property_readonly(
          "producer", [](const ValueView& v) { return indexOrNone(v.value().producer); },
          "Index of the op that made it; None when it existed before the step.")
      .def_property_readonly("death", &deathOf,
                             "Index of the last op after which plain training holds it; None when "
                             "it outlives the step, -1 when it is gone before the first op.")
      .def_property_readonly("evictable", [](const ValueView& v) { return v.value().evictable; })
      .def_property_readonly("dtype", [](const ValueView& v) { return v.value().dtype; })
      .def_property_readonly(
          "shape", [](const ValueView& v) { return py::tuple(py::cast(v.value().shape)); })
      .def_property_readonly(
          "slice", [](const ValueView& v) { return sliceOf(v.value().slice); }, kSliceDoc)
      .def(
          "__eq__", [](const ValueView& a, const ValueView& b) { return sameContent(a, b); },
          py::is_operator())
      .def("__hash__",
           [](const ValueView& v) { return py::hash(py::make_tuple(v.id.index, v.value().bytes)); })
      .def("__repr__", &reprOfValue);
  makePublic(cls);
}

template <class Sequence>
bool holds(const Sequence& sequence, const typename Sequence::View& view) {
  return view.id.index < sequence.size() && sameContent(sequence.at(view.id.index), view);
}

// What collections.abc.Sequence asks for, over `Sequence::size` and `Sequence::at`.
template <class Sequence>
void bindSequence(py::module_& m, const char* name) {
  using View = typename Sequence::View;
  py::class_<Sequence> cls(m, name, "A read-only sequence over a graph.");
  cls.def("__len__", &Sequence::size)
      .def("__getitem__",
           [](const Sequence& s, int64_t i) {
             const int64_t wrapped = i < 0 ? i + s.size() : i;
             if (wrapped < 0 || wrapped >= s.size()) {
               const py::str text = py::str("index {} is out of range: the graph has {} {}");
               throw py::index_error(std::string(py::str(text.format(i, s.size(), Sequence::kOf))));
             }
             return s.at(wrapped);
           })
      .def("__getitem__",
           [](const Sequence& s, const py::slice& slice) {
             size_t start = 0, stop = 0, step = 0, length = 0;
             if (!slice.compute(static_cast<size_t>(s.size()), &start, &stop, &step, &length)) {
               throw py::error_already_set();
             }
             py::tuple items(length);
             for (size_t i = 0; i < length; ++i, start += step)
               items[i] = s.at(static_cast<int64_t>(start));
             return items;
           })
      .def("__iter__",
           [](const py::object& self) {
             return py::reinterpret_steal<py::iterator>(PySeqIter_New(self.ptr()));
           })
      .def("__contains__", [](const Sequence& s, const View& view) { return holds(s, view); })
      .def("__contains__", [](const Sequence&, const py::object&) { return false; })
      .def("count", [](const Sequence& s, const View& view) { return holds(s, view) ? 1 : 0; })
      .def("count", [](const Sequence&, const py::object&) { return 0; })
      .def("index",
           [](const Sequence& s, const View& view) {
             if (!holds(s, view)) throw py::value_error("it is not in this graph");
             return view.id.index;
           })
      .def("__repr__",
           [](const Sequence& s) { return py::str("<{} {}>").format(s.size(), Sequence::kOf); });
  py::module_::import("collections.abc").attr("Sequence").attr("register")(cls);
  makePublic(cls);
}

void bindGraphClass(py::module_& m) {
  py::class_<Graph, GraphPtr> cls(
      m, "Graph",
      "What one training step computes, in the order in which it ran. Immutable.\n\n"
      "Made by poet.trace, Graph.load and Graph.from_json.");
  cls.def_property_readonly("ops", [](const GraphPtr& g) { return OpSequence{g}; })
      .def_property_readonly("values", [](const GraphPtr& g) { return ValueSequence{g}; })
      .def_property_readonly(
          "signature", [](const Graph& g) { return hexSignature(g.signature()); },
          "Identity of the op stream (names, geometry, dtypes, devices), in hexadecimal.")
      .def_property_readonly("base_bytes", &Graph::baseBytes,
                             "Bytes that no op touches but that are resident all through the step.")
      .def_property_readonly(
          "plain_seconds", &Graph::plainSeconds,
          "Sum of the recorded seconds of all ops, and of the program's own between them.")
      .def(
          "plain_peak_bytes",
          [](const Graph& g) {
            const py::gil_scoped_release release;
            return simulatePlain(g, hostProfile()).peak_bytes;
          },
          "Peak of plain training, in bytes, by the simulator.")
      .def("to_json",
           [](const Graph& g) {
             const py::gil_scoped_release release;
             return g.toJson();
           })
      .def_static(
          "from_json",
          [](const std::string& text) {
            const py::gil_scoped_release release;
            return std::make_shared<Graph>(Graph::fromJson(text));
          },
          py::arg("text"))
      .def(
          "save",
          [](const Graph& g, const py::object& path) {
            const std::string name = fileName(path);
            const py::gil_scoped_release release;
            g.save(name);
          },
          py::arg("path"))
      .def_static(
          "load",
          [](const py::object& path) {
            const std::string name = fileName(path);
            const py::gil_scoped_release release;
            return std::make_shared<Graph>(Graph::load(name));
          },
          py::arg("path"))
      .def("__len__", &Graph::numOps)
      .def(
          "__eq__",
          [](const Graph& a, const Graph& b) { return &a == &b || a.toJson() == b.toJson(); },
          py::is_operator())
      .def("__hash__", [](const Graph& g) { return py::hash(py::int_(g.signature())); })
      .def(py::pickle(
          [](const Graph& x) { return x.toJson(); },
          [](const std::string& text) { return std::make_shared<Graph>(Graph::fromJson(text)); }))
      .def("__repr__", [](const Graph& g) {
        return py::str("<poet.Graph {}: {} ops, {} values, {:.3f} s>")
            .format(hexSignature(g.signature()), g.numOps(), g.numValues(), g.plainSeconds());
      });
  makePublic(cls);
}

}  // namespace

void bindGraph(py::module_& m) {
  bindOp(m);
  bindValue(m);
  bindSequence<OpSequence>(m, "OpSequence");
  bindSequence<ValueSequence>(m, "ValueSequence");
  bindGraphClass(m);
}

}  // namespace poet
