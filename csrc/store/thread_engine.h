// Requests on a small pool of threads: where there is no io_uring, and for files without O_DIRECT.
// Internal to the store.
#pragma once

#include <memory>

#include "store/io_engine.h"

namespace poet::store {

// Null where no thread can be started.
std::unique_ptr<IoEngine> openThreadEngine(int depth);

}  // namespace poet::store
