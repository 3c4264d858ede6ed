#include <exception>

#include "bindings/bindings.h"
#include "bindings/conversions.h"
#include "graph/error.h"

namespace poet {
namespace {

void raise(const char* python_class, const std::exception& error) {
  py::set_error(fromPackage("poet._errors", python_class), error.what());
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
  } catch (const Error& error) {
    raise("PoetRuntimeError", error);
  }
}

}  // namespace

void bindErrors(py::module_&) { py::register_local_exception_translator(translate); }

}  // namespace poet
