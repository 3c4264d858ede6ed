// Session: the recorder and the executor behind poet.trace and poet.wrap.
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <unordered_set>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "graph/error.h"
#include "graph/recipes.h"
#include "runtime/session.h"
#include "trace/kept_storages.h"
#include "trace/lending.h"
#include "trace/listener.h"
#include "trace/op_clock.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

// Known storages from any iterable of tensors, those inside sparse ones too; what poet does not
// manage is left out. Those of `kind` kBuffer that are torch.nn.Parameters are known as such.
void addKnown(const py::handle& tensors, ValueKind kind, std::vector<KnownStorage>& known) {
  static PyObject* const parameter =
      py::object(py::module_::import("torch.nn").attr("Parameter")).release().ptr();
  for (const py::handle& item : tensors) {
    if (!THPVariable_Check(item.ptr())) continue;
    const at::Tensor& t = THPVariable_Unpack(item.ptr());
    if (!t.defined()) continue;
    const bool is_parameter =
        kind == ValueKind::kBuffer &&
        PyType_IsSubtype(Py_TYPE(item.ptr()), reinterpret_cast<PyTypeObject*>(parameter)) != 0;
    const auto add = [&](const at::Tensor& one) {
      if (!one.defined() || !isManaged(one)) return;
      known.push_back({one.storage().getWeakStorageImpl(),
                       static_cast<int64_t>(one.storage().nbytes()),
                       is_parameter ? ValueKind::kParameter : kind});
    };
    add(t);
    forEachPart(t, add);
  }
}

// (variant, bytes more beside the step, whether its plan keeps the budget, bytes to come)
py::list grownToList(const std::vector<GrownPlan>& plans) {
  py::list result;
  for (const GrownPlan& one : plans)
    result.append(py::make_tuple(one.variant, one.bytes, one.keeps_budget, one.bytes_to_come));
  return result;
}

py::dict reportToDict(const StepReport& report) {
  static constexpr const char* kModes[] = {"traced", "followed", "departed", "failed"};
  py::dict result;
  result["mode"] = kModes[static_cast<size_t>(report.mode)];
  result["variant"] =
      report.variant < 0 ? py::object(py::none()) : py::object(py::int_(report.variant));
  result["newly_stable"] = report.newly_stable;
  result["grown"] = grownToList(report.grown);
  result["num_ops"] = report.num_ops;
  result["over_bytes"] = report.over_bytes;
  result["over_text"] = report.over_text;
  result["budget_error"] = report.budget_error;
  return result;
}

py::dict countersToDict(Session& session) {
  SessionCounters steps;
  ExecutorCounters ops;
  PagingCounters pages;
  OnlineCounters online;
  std::string last_departure;
  int64_t variants = 0;
  {
    // The thread that runs the step may wait for the GIL while it has the session's lock.
    const py::gil_scoped_release release;
    steps = session.counters();
    ops = session.executorCounters();
    pages = session.pagingCounters();
    online = session.onlineCounters();
    last_departure = session.lastDeparture();
    variants = session.numVariants();
  }
  py::dict result;
  result["steps"] = steps.steps;
  result["traced_steps"] = steps.traced_steps;
  result["followed_steps"] = steps.followed_steps;
  result["departures"] = steps.departures;
  result["failed_steps"] = steps.failed_steps;
  result["planned_recomputes"] = ops.planned_recomputes;
  result["unplanned_recomputes"] = ops.unplanned_recomputes;
  result["replayed_ops"] = ops.replayed_ops;
  result["evictions"] = ops.evictions;
  result["skipped_frees"] = ops.skipped_frees;
  result["plan_switches"] = ops.switches;
  result["replay_seconds"] = ops.replay_seconds;
  result["planned_page_outs"] = pages.planned_page_outs;
  result["planned_page_ins"] = pages.planned_page_ins;
  result["unplanned_page_ins"] = pages.unplanned_page_ins;
  result["moved_between_steps"] = pages.moved_between_steps;
  result["skipped_page_outs"] = pages.skipped_page_outs;
  result["shared_page_outs"] = pages.shared_page_outs;
  result["failed_page_outs"] = pages.failed_page_outs;
  result["failed_page_ins"] = pages.failed_page_ins;
  result["paged_out_bytes"] = pages.paged_out_bytes;
  result["paged_in_bytes"] = pages.paged_in_bytes;
  result["read_seconds"] = pages.read_seconds;
  result["write_seconds"] = pages.write_seconds;
  result["waited_seconds"] = pages.waited_seconds;
  result["repaired_chunks"] = pages.repaired_chunks;
  result["paging_trouble"] = pages.trouble;
  result["first_unplanned"] = ops.first_unplanned;
  result["online_steps"] = online.steps;
  result["online_evictions"] = online.evictions;
  result["online_recomputes"] = online.recomputes;
  result["online_replayed_ops"] = online.replayed_ops;
  result["online_page_outs"] = online.page_outs;
  result["online_page_ins"] = online.page_ins;
  result["online_replay_seconds"] = online.replay_seconds;
  result["online_free_share"] = online.freeShare();
  result["steps_over_budget"] = online.steps_over_budget + steps.steps_over_budget;
  result["most_over_bytes"] = std::max(online.most_over_bytes, steps.most_over_bytes);
  result["arena_peak_bytes"] = steps.arena_peak_bytes;
  result["variants"] = variants;
  result["last_departure"] = last_departure;
  return result;
}

void expectBatch(Session& session, const std::vector<py::object>& batch) {
  std::vector<at::Tensor> tensors;
  for (const py::object& item : batch) {
    if (THPVariable_Check(item.ptr())) tensors.push_back(THPVariable_Unpack(item.ptr()));
  }
  const py::gil_scoped_release release;
  session.expectBatch(tensors);
}

void beginStep(Session& session, const py::object& inputs, const py::object& gradients,
               const py::object& existing, bool all_are_known) {
  std::vector<KnownStorage> known;
  addKnown(inputs, ValueKind::kInput,
           known);  // the same storage may be in several: the first counts
  addKnown(gradients, ValueKind::kGradient, known);
  addKnown(existing, ValueKind::kBuffer, known);
  session.beginStep(std::move(known), all_are_known);
}

bool beginUnrecorded(Session& session, const py::object& inputs) {
  std::vector<KnownStorage> known;
  addKnown(inputs, ValueKind::kInput, known);
  return session.beginUnrecorded(known);
}

void setBudget(Session& session, int64_t budget_bytes, bool recompute, bool paging,
               const DeviceProfile& profile, const std::string& strict, const std::string& method) {
  const Strictness strictness = strict == "hard"         ? Strictness::kHard
                                : strict == "always"     ? Strictness::kAlways
                                : strict == "first_call" ? Strictness::kFirstCall
                                                         : Strictness::kNever;
  const py::gil_scoped_release release;
  // Python's raw doors bring back what is away between steps.
  session.setBudget({budget_bytes, recompute, paging, /*away_between_steps=*/paging, profile,
                     methods::livePolicy(method).value()},
                    strictness);
}

// The tensors among these things.
void lendTo(const py::iterable& things) {
  std::vector<at::Tensor> tensors;
  for (const py::handle& item : things) {
    if (THPVariable_Check(item.ptr())) tensors.push_back(THPVariable_Unpack(item.ptr()));
  }
  const py::gil_scoped_release release;
  lend(tensors);
}

// Behind the tensors among these things.
void lendBehind(const py::iterable& outputs) {
  std::vector<torch::autograd::Node*> roots;
  for (const py::handle& item : outputs) {
    if (!THPVariable_Check(item.ptr())) continue;
    const auto& node = THPVariable_Unpack(item.ptr()).grad_fn();
    if (node) roots.push_back(node.get());
  }
  lendToCustomNodes(roots);
}

// A BackwardGuard as a context manager.
class HeardBackward {
 public:
  void enter() { guard_.emplace(); }
  void exit(const py::args& /*error*/) { guard_.reset(); }

 private:
  std::optional<BackwardGuard> guard_;
};

// What the executor can bring back and how, for tests and for whoever makes schedules in Python.
py::list recipesOf(const Graph& graph) {
  py::list result;
  const RecipeTable table(graph);
  for (const Recipe& recipe : table.recipes()) {
    py::dict entry;
    entry["ops"] = indices(recipe.ops);
    entry["outputs"] = indices(recipe.outputs);
    entry["inputs"] = indices(recipe.inputs);
    entry["valid_until"] = recipe.valid_until.index;
    py::list must_end_resident;
    for (ValueId v : recipe.outputs) {
      if (table.mustEndResident(v)) must_end_resident.append(v.index);
    }
    entry["must_end_resident"] = must_end_resident;
    result.append(entry);
  }
  return result;
}

// Those of exactly these types. A program holds a million objects and more, and is asked for its
// tensors whenever a step is recorded.
py::list instancesOf(const py::list& things, const py::set& kinds) {
  std::unordered_set<const PyTypeObject*> wanted;
  for (const py::handle kind : kinds) wanted.insert(reinterpret_cast<PyTypeObject*>(kind.ptr()));
  py::list found;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(things.ptr()); ++i) {
    PyObject* const thing = PyList_GET_ITEM(things.ptr(), i);
    if (wanted.contains(Py_TYPE(thing))) found.append(py::handle(thing));
  }
  return found;
}

// Tensors, without keeping them alive. Python's own weak references to one end when its object is
// made anew around a tensor that C++ kept.
class TensorRefs {
 public:
  explicit TensorRefs(const py::iterable& tensors) {
    for (const py::handle tensor : tensors)
      refs_.emplace_back(THPVariable_Unpack(tensor.ptr()).getIntrusivePtr());
  }

  py::list alive() const {
    py::list found;
    for (const auto& ref : refs_) {
      if (auto impl = ref.lock()) found.append(py::cast(at::Tensor(std::move(impl))));
    }
    return found;
  }

 private:
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> refs_;
};

}  // namespace

void bindRuntime(py::module_& m) {
  try {
    registerListener();
  } catch (const Error& error) {  // the dispatch key is taken or stands elsewhere
    throw py::import_error(error.what());
  }

  py::class_<Session, std::shared_ptr<Session>>(m, "Session")
      .def(py::init(&Session::create), py::arg("verify"))
      .def(
          "set_device",
          [](Session& session, const std::string& device) {
            session.setDevice(c10::Device(device));
          },
          py::arg("device"))
      .def("expect_batch", &expectBatch, py::arg("tensors"))
      .def("next_step_is_traced", &Session::nextStepIsTraced,
           py::call_guard<py::gil_scoped_release>())
      .def("take_grown", [](Session& session) { return grownToList(session.takeGrown()); })
      .def("own_bytes", &Session::ownBytes, py::call_guard<py::gil_scoped_release>())
      .def("wants_known", &Session::wantsKnown, py::call_guard<py::gil_scoped_release>())
      .def("begin_step", &beginStep, py::arg("inputs"), py::arg("gradients"), py::arg("existing"),
           py::arg("all_are_known"))
      .def("may_go_unrecorded", &Session::mayGoUnrecorded, py::call_guard<py::gil_scoped_release>())
      .def("begin_unrecorded", &beginUnrecorded, py::arg("inputs"))
      .def("set_budget", &setBudget, py::arg("budget_bytes"), py::arg("recompute"),
           py::arg("paging"), py::arg("profile"), py::arg("strict"), py::arg("method") = "poet")
      .def("is_policed", &Session::isPoliced)
      .def("set_collectives", &Session::setCollectives, py::arg("on"),
           py::call_guard<py::gil_scoped_release>())
      .def("variants", &Session::variants, py::call_guard<py::gil_scoped_release>())
      .def_property_readonly_static("MOST_VARIANTS",
                                    [](const py::object&) { return VariantSet::kMaxVariants; })
      .def_property_readonly_static(
          "CALLS_THAT_SHOW_A_STEP",
          [](const py::object&) { return VariantSet::kCallsThatShowAStep; })
      .def(
          "end_step",
          [](Session& session, bool failed, const std::string& error) {
            StepReport report;
            {
              const py::gil_scoped_release release;
              report = session.endStep(failed, error);
            }
            return reportToDict(report);
          },
          py::arg("failed"), py::arg("error") = "")
      .def("keep_named", &Session::keepNamed, py::arg("error"),
           py::call_guard<py::gil_scoped_release>())
      .def("enter_optimizer", &Session::enterOptimizer, py::call_guard<py::gil_scoped_release>())
      .def("leave_optimizer", &Session::leaveOptimizer, py::call_guard<py::gil_scoped_release>())
      .def(
          "touch",
          [](Session& session, const py::handle& tensor, bool for_good, bool may_write,
             bool may_keep) {
            if (!THPVariable_Check(tensor.ptr())) return;
            const at::Tensor t = THPVariable_Unpack(tensor.ptr());
            const py::gil_scoped_release release;
            session.touch(t, for_good, may_write, may_keep);
          },
          py::arg("tensor"), py::arg("for_good"), py::arg("may_write") = false,
          py::arg("may_keep") = false)
      .def("wants_touches", &Session::wantsTouches)
      .def(
          "set_store",
          [](Session& session, const std::string& directory) { session.setStore(directory); },
          py::arg("directory"))
      .def("move_out", &Session::moveOut, py::call_guard<py::gil_scoped_release>())
      .def("bring_back", &Session::bringBack, py::call_guard<py::gil_scoped_release>())
      .def(
          "pause",
          [](Session& session, const py::object& leaves) {
            std::vector<at::Tensor> tensors;
            for (const py::handle& item : leaves) {
              if (THPVariable_Check(item.ptr())) tensors.push_back(THPVariable_Unpack(item.ptr()));
            }
            const py::gil_scoped_release release;
            return session.pause(tensors);
          },
          py::arg("leaves"))
      .def("new_trouble", &Session::newTrouble, py::call_guard<py::gil_scoped_release>())
      .def(
          "graph_of",
          [](Session& session, int variant) {
            return std::const_pointer_cast<Graph>(session.graphOf(variant));
          },
          py::arg("variant"), py::call_guard<py::gil_scoped_release>())
      .def("let_go_of_seen_once", &Session::letGoOfSeenOnce, py::arg("except_"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "set_plan",
          [](Session& session, int variant, const Schedule& schedule,
             const DeviceProfile& profile) {
            auto copy = std::make_shared<const Schedule>(schedule);
            const py::gil_scoped_release release;  // the store may have to be filled with zeros
            session.setPlan(variant, std::move(copy), profile);
          },
          py::arg("variant"), py::arg("schedule"), py::arg("profile"))
      .def(
          "move_plan",
          [](Session& session, int variant, const Schedule& schedule,
             const DeviceProfile& profile) {
            auto copy = std::make_shared<const Schedule>(schedule);
            const py::gil_scoped_release release;
            session.movePlan(variant, std::move(copy), profile);
          },
          py::arg("variant"), py::arg("schedule"), py::arg("profile"))
      .def("set_unplannable", &Session::setUnplannable, py::arg("variant"),
           py::call_guard<py::gil_scoped_release>())
      .def(
          "op_seconds",
          [](Session& session, int variant) {
            const Session::OpSeconds least = [&] {
              const py::gil_scoped_release release;
              return session.opSeconds(variant);
            }();
            return py::make_tuple(py::cast(least.ops), py::cast(least.host));
          },
          py::arg("variant"))
      .def("awaited_swaps",
           [](Session& session) {
             const std::vector<AwaitedSwap> swaps = [&] {
               const py::gil_scoped_release release;
               return session.awaitedSwaps();
             }();
             py::list found;
             for (const AwaitedSwap& swap : swaps)
               found.append(py::make_tuple(swap.value.index, swap.op.index, swap.seconds));
             return found;
           })
      .def("counters", &countersToDict);
  py::class_<HeardBackward>(m, "HeardBackward")
      .def(py::init<>())
      .def("__enter__", &HeardBackward::enter)
      .def("__exit__", &HeardBackward::exit);
  m.def("recipes_of", &recipesOf, py::arg("graph"));
  m.def(
      "reads_no_data", [](const Graph& graph, int op) { return graph.op(OpId(op)).reads_no_data; },
      py::arg("graph"), py::arg("op"));
  m.def("is_listening", &isListening);
  m.def("lend", &lendTo, py::arg("tensors"));
  m.def("end_lending", &endLending, py::call_guard<py::gil_scoped_release>());
  m.def("lend_to_custom_nodes", &lendBehind, py::arg("outputs"));
  m.def("hear_this_thread", &hearThisThread);
  py::class_<TensorRefs>(m, "TensorRefs")
      .def(py::init<const py::iterable&>(), py::arg("tensors"))
      .def("alive", &TensorRefs::alive);
  m.def("instances_of", &instancesOf, py::arg("things"), py::arg("kinds"));
  m.def(
      "note_loaded",
      [](const py::handle& tensor) {
        const auto note = [](const at::Tensor& one) {
          if (one.defined() && isManaged(one))
            AllocatorTap::noteLoaded(*one.storage().unsafeGetStorageImpl());
        };
        const at::Tensor t = THPVariable_Unpack(tensor.ptr());
        note(t);
        forEachPart(t, note);
      },
      py::arg("tensor"));
  m.def(
      "keep_storage",
      [](const py::handle& tensor) {
        const at::Tensor t = THPVariable_Unpack(tensor.ptr());
        const auto keep = [](const at::Tensor& one) {
          if (one.defined() && isManaged(one))
            KeptStorages::add(StorageHold::reclaim_copy(one.storage().unsafeGetStorageImpl()));
        };
        keep(t);
        forEachPart(t, keep);
      },
      py::arg("tensor"));
  m.def(
      "while_swapped",
      [](const py::handle& a, const py::handle& b, const py::function& swap) {
        const auto impl = [](const py::handle& tensor) {
          return THPVariable_Unpack(tensor.ptr()).unsafeGetTensorImpl();
        };
        KnownTensor::whileSwapped(impl(a), impl(b), [&] { swap(a, b); });
      },
      py::arg("a"), py::arg("b"), py::arg("swap"));
  m.def("live_bytes", &AllocatorTap::liveBytes);
  m.def("use_arena", &StepArena::useForGood);
  m.def(
      "release_free_memory", [](bool of_malloc) { StepArena::restart(0, of_malloc); },
      py::arg("of_malloc"));
  m.def("arena_counters", [] {
    const PageArena::Counters counters = StepArena::counters();
    py::dict result;
    result["in_use_bytes"] = counters.in_use_bytes;
    result["resident_bytes"] = counters.resident_bytes;
    result["most_in_use"] = counters.most_in_use;
    result["most_resident"] = counters.most_resident;
    result["moved_bytes"] = counters.moved_bytes;
    result["returned_bytes"] = counters.returned_bytes;
    result["fresh_bytes"] = counters.fresh_bytes;
    return result;
  });
  m.def("note_made_elsewhere", &StepArena::noteMadeElsewhere, py::arg("bytes"),
        "A storage was made by PyTorch's own allocator, behind poet's back.");
  m.def("tap_for_good", [] { static AllocatorTap::Guard guard; });
  m.def(
      "count_op_time",
      [](bool on) {
        static std::optional<OpClock::Counted> counted;
        if (on) {
          counted.emplace();
        } else {
          counted.reset();
        }
      },
      py::arg("on"), "For tests: an op takes a number of microseconds that is counted.");
}

}  // namespace poet
