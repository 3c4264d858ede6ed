// Walking the tensors on an operator's stack, and the geometry that identifies them.
#pragma once

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <torch/csrc/utils/torch_dispatch_mode.h>

#include <cstdint>

#include "trace/accelerator.h"

namespace poet {

// The answer of question(), which asks what `t` is. A subclass may answer in Python, and the
// program's dispatch modes shall see the program's ops, not our questions.
template <class F>
auto unobserved(const at::Tensor& t, F&& question) {
  if (!t.unsafeGetTensorImpl()->is_python_dispatch()) return question();
  const torch::torch_dispatch_mode::StashTorchDispatchStackGuard without_modes;
  return question();
}

// Note [Which tensors poet manages]
// Managed: strided tensors on the CPU or a CUDA device with a storage of their own (views
// included). Everything else (sparse, mkldnn, nested, quantized, other devices, meta) is passed
// through: the op that touches it is recorded but never replayed, and what it holds is never
// evicted. A quantized tensor has a storage, but more than geometry to it: its quantizer. Of the
// managed ones only those on the device that a session budgets take bytes and may be evicted: Note
// [Steps on an accelerator].
inline bool isManaged(const at::Tensor& t) {
  return unobserved(t, [&] {
    return t.layout() == at::kStrided && t.has_storage() &&
           Accelerator::isKnown(t.device().type()) && !t.is_nested() && !t.is_quantized();
  });
}

// Calls f(part) for the tensors that a sparse tensor is made of; for no other tensor.
template <class F>
void forEachPart(const at::Tensor& t, F&& f) {
  const at::Layout layout = unobserved(
      t, [&] { return Accelerator::isKnown(t.device().type()) ? t.layout() : at::kStrided; });
  if (layout == at::kSparse) {
    const auto* impl = static_cast<const at::SparseTensorImpl*>(t.unsafeGetTensorImpl());
    f(impl->indices());
    f(impl->values());
  } else if (at::sparse_csr::is_sparse_compressed(layout)) {
    const auto* impl = static_cast<const at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
    f(impl->compressed_indices());
    f(impl->plain_indices());
    f(impl->values());
  }
}

inline uint64_t mixHash(uint64_t hash, uint64_t x) {
  hash ^= x + 0x9e3779b97f4a7c15ULL + (hash << 6) + (hash >> 2);
  return hash;
}

// Of the whole numbers and lists of them among an op's arguments, which say how much it makes where
// no tensor does; 0 where there are none.
inline uint64_t numbersHash(const c10::IValue* args, size_t count) {
  uint64_t hash = 0;
  for (size_t i = 0; i < count; ++i) {
    if (args[i].isInt()) {
      hash = mixHash(hash + i + 1, static_cast<uint64_t>(args[i].toInt()));
    } else if (args[i].isIntList()) {
      hash += i + 1;
      for (const c10::IValue& number : args[i].toListRef())  // copies nothing
        hash = mixHash(hash, static_cast<uint64_t>(number.toInt()));
    }
  }
  return hash;
}

// dtype, sizes, strides, device and offset (from `first_offset` on) of a managed tensor; dtype and
// layout of any other.
inline uint64_t geometryHash(const at::Tensor& t, int64_t first_offset = 0) {
  uint64_t hash = static_cast<uint64_t>(t.scalar_type());
  if (!isManaged(t)) {
    const at::Layout layout = unobserved(t, [&] { return t.layout(); });
    return mixHash(hash, 0x517cc1b7ULL + static_cast<uint64_t>(layout));
  }
  if (!t.device().is_cpu()) {
    hash = mixHash(hash, (static_cast<uint64_t>(t.device().type()) << 8) |
                             static_cast<uint8_t>(t.device().index()));
  }
  for (int64_t size : t.sizes()) hash = mixHash(hash, static_cast<uint64_t>(size));
  for (int64_t stride : t.strides()) hash = mixHash(hash, static_cast<uint64_t>(stride));
  return mixHash(hash, static_cast<uint64_t>(t.storage_offset() - first_offset));
}

// Calls f(tensor, argument, element) for every defined tensor among `count` stack entries, in
// order; element is -1 outside lists. f returns false to stop; so does forEachTensor.
template <class F>
bool forEachTensor(const c10::IValue* entries, size_t count, F&& f) {
  for (size_t a = 0; a < count; ++a) {
    if (entries[a].isTensor()) {
      const at::Tensor& t = entries[a].toTensor();
      if (t.defined() && !f(t, static_cast<int>(a), -1)) return false;
    } else if (entries[a].isTensorList() || entries[a].isOptionalTensorList() ||
               entries[a].isList()) {
      const auto list = entries[a].toListRef();
      for (size_t e = 0; e < list.size(); ++e) {
        if (!list[e].isTensor()) {
          if (list[e].isNone()) continue;
          break;  // a list of numbers
        }
        const at::Tensor& t = list[e].toTensor();
        if (t.defined() && !f(t, static_cast<int>(a), static_cast<int>(e))) return false;
      }
    }
  }
  return true;
}

}  // namespace poet
