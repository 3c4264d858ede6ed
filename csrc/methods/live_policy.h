// Methods that decide in running order need no plan: what each of them does in a live step, which
// runtime/online_policy.h carries out.
#pragma once

#include <optional>
#include <string_view>

#include "graph/export.h"
#include "methods/dtr_score.h"

namespace poet::methods {

// What becomes of a value that the program lets go of (Kirisame et al. 2021, on deallocation): it
// is evicted at once and can come back; or it is banished, gone for good as soon as no evicted
// value needs it, and what was made from it and is there can be made no more: it stays to its own
// end.
enum class LettingGo { kEvict, kBanish };

// The default is that of a step without a plan, whatever plans it.
struct LivePolicy {
  DtrCost cost = DtrCost::kNeighbourhood;
  bool windows = false;  // coop's: what goes lies side by side in memory
  LettingGo letting_go = LettingGo::kEvict;
};

// Nothing for a method that trains with plans alone. "poet" has the default, for calls that no plan
// fits.
POET_API std::optional<LivePolicy> livePolicy(std::string_view method);

}  // namespace poet::methods
