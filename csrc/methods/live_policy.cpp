#include "methods/live_policy.h"

namespace poet::methods {

std::optional<LivePolicy> livePolicy(std::string_view method) {
  if (method == "poet" || method == "dtr") return LivePolicy{};
  if (method == "dtr_eq") return LivePolicy{.cost = DtrCost::kComponents};
  if (method == "dtr_local") return LivePolicy{.cost = DtrCost::kLocal};
  if (method == "dtr_banish") return LivePolicy{.letting_go = LettingGo::kBanish};
  if (method == "coop") return LivePolicy{.cost = DtrCost::kComponents, .windows = true};
  return std::nullopt;
}

}  // namespace poet::methods
