// A thread that no signal of the process reaches. Internal to the store.
#pragma once

#include <functional>
#include <memory>
#include <thread>

namespace poet::store {

// Null where the system starts none. `name`: at most 15 characters.
std::unique_ptr<std::thread> startMaskedThread(const char* name, std::function<void()> work);

}  // namespace poet::store
