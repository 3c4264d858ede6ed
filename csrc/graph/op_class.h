// What bounds an op on a machine: the key under which devices state their rates.
#pragma once

#include <cstdint>
#include <string_view>

#include "graph/export.h"

namespace poet {

// kConvolution and kMatmul do many flops a byte and run at a rate of their own; kElementwise is all
// the rest: pointwise ops, reductions, normalization, copies, lookups.
enum class OpClass : uint8_t { kConvolution, kMatmul, kElementwise };
POET_API std::string_view toString(OpClass);  // "convolution", "matmul", "elementwise"

// Of an ATen operator by its name ("aten::addmm", overload or not); of a layer of POET's graphs
// likewise ("Conv2dLayer"). What is unknown is elementwise.
POET_API OpClass opClassOf(std::string_view name);
// Whether each number of the result of an ATen operator needs only the numbers at the same place of
// its arguments, which are broadcast otherwise; in-place forms too. What is unknown is not.
POET_API bool isPointwise(std::string_view name);

}  // namespace poet
