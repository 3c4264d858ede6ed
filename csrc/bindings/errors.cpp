#include <torch/csrc/Exceptions.h>

#include <cstring>
#include <exception>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "graph/error.h"
#include "store/page_store.h"
#include "trace/listener.h"

namespace poet {
namespace {

// A message may quote a damaged file: what is no UTF-8 is shown with replacement characters.
void raise(const char* python_class, const std::exception& error) {
  const char* text = error.what();
  const auto size = static_cast<Py_ssize_t>(std::strlen(text));
  const auto message =
      py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(text, size, "replace"));
  if (!message) throw py::error_already_set();
  PyErr_SetObject(fromPackage("poet._errors", python_class).ptr(), message.ptr());
}

// The Python classes live in poet/_errors.py, so that they can derive from both PoetError and a
// built-in class.
void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const ArgumentError& error) {
    raise("ArgumentError", error);
  } catch (const FormatError& error) {
    raise("FormatError", error);
  } catch (const ScheduleError& error) {
    raise("ScheduleError", error);
  } catch (const BudgetError& error) {
    raise("BudgetError", error);
  } catch (const StoreError& error) {
    raise("StoreError", error);
  } catch (const Error& error) {
    raise("PoetRuntimeError", error);
  }
}

// Through PyTorch's bindings, on whatever thread an operator runs, with or without the GIL.
void throwForPyTorch() {
  if (Py_IsInitialized() == 0) return;
  python_error carried;
  {
    const py::gil_scoped_acquire gil;
    translate(std::current_exception());
    carried.persist();
  }
  throw carried;
}

}  // namespace

void bindErrors(py::module_&) {
  py::register_local_exception_translator(translate);
  setForeignErrorHandler(&throwForPyTorch);
}

}  // namespace poet
