// Floating-point operations of an op, from the shapes of its arguments and results.
#pragma once

#include <span>
#include <string_view>

#include "trace/recording.h"

namespace poet {

// Two flops a multiply-add for convolutions, matrix products, fused attention and recurrent layers,
// as torch.utils.flop_counter counts them; one flop a number of the largest argument or result for
// everything else (tables that are looked up in do not count as arguments). 0 for nothing.
// Kernels that PyTorch fuses behind names of their own and that do matrix products there are
// counted as everything else.
double flopsOf(std::string_view name, std::span<const Slot> in, std::span<const Slot> out);

}  // namespace poet
