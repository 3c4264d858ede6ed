#include "planner/backends/highs_api.h"

#include <dlfcn.h>

#include <cstdlib>
#include <vector>

namespace poet::planner {
namespace {

std::vector<std::string> candidates(const std::string& path) {
  if (!path.empty()) return {path};
  if (const char* named = std::getenv("POET_HIGHS_LIBRARY"); named != nullptr && *named != '\0')
    return {named};
  return {"libhighs.so.1", "libhighs.so"};
}

// Reads one function after another; remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <class F>
  void read(const char* name, F*& function) {
    function = reinterpret_cast<F*>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

std::optional<HighsApi> readApi(void* library, std::string& why_not) {
  HighsApi api{};
  Symbols symbols(library);
  symbols.read("Highs_create", api.create);
  symbols.read("Highs_destroy", api.destroy);
  symbols.read("Highs_version", api.version);
  symbols.read("Highs_getSizeofHighsInt", api.getSizeofHighsInt);
  symbols.read("Highs_setBoolOptionValue", api.setBoolOptionValue);
  symbols.read("Highs_setIntOptionValue", api.setIntOptionValue);
  symbols.read("Highs_setDoubleOptionValue", api.setDoubleOptionValue);
  symbols.read("Highs_setStringOptionValue", api.setStringOptionValue);
  symbols.read("Highs_passLp", api.passLp);
  symbols.read("Highs_passMip", api.passMip);
  symbols.read("Highs_addRows", api.addRows);
  symbols.read("Highs_setSolution", api.setSolution);
  symbols.read("Highs_zeroAllClocks", api.zeroAllClocks);
  symbols.read("Highs_run", api.run);
  symbols.read("Highs_getModelStatus", api.getModelStatus);
  symbols.read("Highs_getIntInfoValue", api.getIntInfoValue);
  symbols.read("Highs_getInt64InfoValue", api.getInt64InfoValue);
  symbols.read("Highs_getDoubleInfoValue", api.getDoubleInfoValue);
  symbols.read("Highs_getObjectiveValue", api.getObjectiveValue);
  symbols.read("Highs_getSolution", api.getSolution);
  if (!symbols.missing().empty()) {
    why_not = "the library has no function " + symbols.missing();
    return std::nullopt;
  }
  void* highs = api.create();
  const int bytes = api.getSizeofHighsInt(highs);
  api.destroy(highs);
  if (bytes != sizeof(int)) {
    why_not =
        "the library was built with integers of " + std::to_string(bytes) + " bytes; poet needs 4";
    return std::nullopt;
  }
  return api;
}

}  // namespace

std::optional<HighsApi> loadHighs(const std::string& path, std::string& why_not) {
  why_not.clear();
  for (const std::string& candidate : candidates(path)) {
    // Its own copies of what it needs (OpenBLAS) must not replace anybody else's: RTLD_LOCAL.
    if (void* library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL))
      return readApi(library, why_not);
    const char* said = dlerror();
    if (why_not.empty()) why_not = said != nullptr ? said : candidate + " cannot be opened";
  }
  return std::nullopt;
}

}  // namespace poet::planner
