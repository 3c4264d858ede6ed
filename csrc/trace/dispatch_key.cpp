#include "trace/dispatch_key.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>
#include <torch/version.h>

#include <mutex>
#include <string>

#include "graph/error.h"
#include "trace/listener.h"

namespace poet {
namespace {

using c10::DispatchKey;

bool isBelow(DispatchKey lower, DispatchKey upper) {
  return static_cast<uint16_t>(lower) < static_cast<uint16_t>(upper);
}

void checkOrder() {
  const bool below_autograd = isBelow(kListeningKey, DispatchKey::ADInplaceOrView);
  const bool above_backends = isBelow(DispatchKey::BackendSelect, kListeningKey);
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 12
  const bool beside_python = isBelow(DispatchKey::Python, kListeningKey);
  const char* place = "above Python";
#else
  const bool beside_python = isBelow(kListeningKey, DispatchKey::Python);
  const char* place = "below Python";
#endif
  POET_CHECK_AS(Error, below_autograd && above_backends && beside_python,
                "poet listens on the dispatch key ", c10::toString(kListeningKey),
                " and expects it above BackendSelect, ", place,
                " and below ADInplaceOrView, but this PyTorch (", TORCH_VERSION,
                ") orders its keys differently. Install a PyTorch that this poet was tested with.");
}

void checkFree() {
  POET_CHECK_AS(
      Error, !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kListeningKey),
      "poet listens on the dispatch key ", c10::toString(kListeningKey),
      " and expects it to be unused, but something in this process (PyTorch ", TORCH_VERSION,
      " itself or another extension) has registered a fallback on it already. Import poet without "
      "that "
      "extension, or install a PyTorch that this poet was tested with.");
}

}  // namespace

void checkListeningKey() {
  checkOrder();
  checkFree();
}

void registerListener() {
  static std::mutex mutex;
  static torch::Library* library =
      nullptr;  // lives as long as the process, like the ops it listens to
  const std::lock_guard<std::mutex> lock(mutex);
  if (library != nullptr) return;
  checkListeningKey();
  auto made = std::make_unique<torch::Library>(torch::Library::IMPL, "_", kListeningKey, __FILE__,
                                               __LINE__);
  made->fallback(torch::CppFunction::makeFromBoxedFunction<&onOperator>());
  library = made.release();
}

}  // namespace poet
