// Requests by io_uring. Internal to the store.
#pragma once

#include <memory>

#include "store/io_engine.h"

namespace poet::store {

// Null where poet was built without liburing, or where the kernel has no io_uring, or refuses it:
// containers often do.
std::unique_ptr<IoEngine> openUringEngine(int depth);

}  // namespace poet::store
