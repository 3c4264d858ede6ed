// Where the versions of torch that poet is built with differ; the dispatch key's order stands in
// dispatch_key.cpp.
#pragma once

#include <c10/core/StorageImpl.h>
#include <torch/version.h>

#include <optional>
#include <string>

namespace poet {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR <= 12

// Before 2.13 a storage that throws on access does so for good: nothing public takes that back.
// An explicit instantiation may name private members, which is how this one is reached.
namespace compat {
bool& throwsOnAccess(c10::StorageImpl& storage);
template <bool c10::StorageImpl::*kMember>
struct Opener {
  friend bool& throwsOnAccess(c10::StorageImpl& storage) { return storage.*kMember; }
};
template struct Opener<&c10::StorageImpl::throw_on_immutable_data_ptr_>;
}  // namespace compat

// Until data comes, which must be by set_data_ptr_noswap(): that looks at the flag again.
inline void clearAccessMessage(c10::StorageImpl& storage) {
  compat::throwsOnAccess(storage) = false;
  storage.get_extra_meta().custom_data_ptr_error_msg_ = std::nullopt;
}

#else

inline void clearAccessMessage(c10::StorageImpl& storage) {
  storage.clear_data_ptr_access_error_msg_();
}

#endif

}  // namespace poet
