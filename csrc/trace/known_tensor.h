// KnownTensor: a tensor that a recording speaks of, not kept alive.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

#include "graph/export.h"

namespace poet {

// Note [Tensors that are swapped]
// torch.utils.swap_tensors, and with it Module.to and load_state_dict where they swap parameters,
// refuses tensors that anybody has a weak reference to. So what is known of a tensor lies in one
// cell that all its KnownTensors share, and while two tensors are swapped theirs let go. After it
// each has what the other one knew: to the program a parameter is the Python object.

// A weak reference. Thread-safe; copies are cheap.
class POET_API KnownTensor {
 public:
  struct Cell;

  KnownTensor() = default;  // refers to none
  explicit KnownTensor(const at::Tensor& tensor);

  // Null once the tensor has died.
  c10::intrusive_ptr<c10::TensorImpl> lock() const;

  // `swap` exchanges what the Python objects of `a` and `b` hold; its error goes on, and then they
  // are known as before.
  static void whileSwapped(c10::TensorImpl* a, c10::TensorImpl* b,
                           const std::function<void()>& swap);

 private:
  std::shared_ptr<Cell> cell_;
};

}  // namespace poet
