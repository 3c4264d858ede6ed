// Tensors whose memory native code may read for a while.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

#include "graph/export.h"

namespace poet {

// Note [Lending]
// What a custom autograd Function has saved, and the gradients that its backward gets, it may hand
// to native code that reads them through a pointer; so may a compiled kernel do with what it is
// given. So these are lent for as long as that runs: `aten::detach` is called on each, which is a
// read of its memory (Note [Raw reads behind a view]), and all operators inside count as reads of
// them, so that plans have them in memory. What is from before the step stays in memory.
//
// Of the step that runs on this thread; without one nothing happens. Calls nest, and each is ended
// by one endLending() on the same thread.
POET_API void lend(const std::vector<at::Tensor>& tensors);
POET_API void endLending();

// Lends to the C++ Functions (torch::autograd::Function) in the graph behind these nodes, while
// each of them runs backward, for good: they are given hooks. A step that follows a plan looks for
// them only where its session has met one before.
POET_API void lendToCustomNodes(const std::vector<torch::autograd::Node*>& roots);

}  // namespace poet
