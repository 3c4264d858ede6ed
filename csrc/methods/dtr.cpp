// dtr, dtr_eq, dtr_local, dtr_banish: dynamic tensor rematerialization.
//
// Paper: Kirisame, Lyubomirsky, Haan, Brennan, He, Roesch, Chen, Tatlock, "Dynamic Tensor
// Rematerialization", ICLR 2021 (arXiv 2006.09616): run the step, and when memory is short evict
// the value with the least h = cost / (bytes x staleness) (section 4.1). The cost is the value's
// own (h_DTR-local), that of its evicted neighbourhood e* (h_DTR), or that of the union-find
// components of evicted values around it (h_DTR-eq), from which a value that comes back takes its
// own cost without splitting them.
//
// Chosen: the policy runs over the recorded step, sees nothing of what is to come, and what it does
// is the schedule; so the step follows it exactly, and at no cost for scores. Staleness is seconds
// since the last touch on the policy's own clock, replays included. A value that plain training
// lets go is evicted at once ("eager eviction") and can come back to the end of the step;
// dtr_banish, with the cost of h_DTR, lets it go for good instead (LettingGo). All resident values
// are scored, without the paper's sampling. Where generator states or such make the plan exceed its
// budget, it runs again with that much less.
//
// Bound: the paper proves O(n) operations for a chain of n links on a budget of Omega(sqrt(n)). By
// test dtr and dtr_eq replay at most n in 2 sqrt(n) + 1 values, and dtr_local more than O(n).
// Weakness: it evicts what will be wanted next, and at tight budgets it thrashes or fails where
// plans exist.
#include <limits>
#include <memory>

#include "methods/every_method.h"
#include "methods/policy_run.h"

namespace poet::methods {
namespace {

using planner::Asked;
using planner::Problem;
using planner::Replay;

class Dtr : public PolicyRun {
 public:
  Dtr(const Problem& problem, const Asked& asked, int64_t budget_bytes, DtrCost cost,
      LettingGo letting_go)
      : PolicyRun(problem, asked, cost, letting_go), budget_(budget_bytes) {}

 private:
  bool makeRoomForOp() override { return makeRoom(stage().fixed_during_bytes); }
  bool makeRoomForReplay(const Replay& replay) override {
    return makeRoom(stage().fixed_before_bytes + replay.replay_bytes);
  }
  void arrived(int v) override { used_ += value(v).bytes; }
  void departed(int v) override { used_ -= value(v).bytes; }

  bool makeRoom(int64_t bytes) {
    while (used_ + bytes > budget_) {
      int best = -1;
      double least = std::numeric_limits<double>::infinity();
      for (int v = 0; v < problem().numValues(); ++v) {
        if (!mayBeEvicted(v) || value(v).bytes == 0) continue;
        const double h = scores().scoreOf(v, value(v).bytes, clock());
        if (h >= least) continue;
        least = h;
        best = v;
      }
      if (best < 0) return false;
      evict(best);
    }
    return true;
  }

  const int64_t budget_;
  int64_t used_ = 0;
};

Schedule planWithScore(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options, const char* name, DtrCost cost,
                       LettingGo letting_go = LettingGo::kEvict) {
  const auto make = [=](const Problem& problem, const Asked& asked, int64_t budget) {
    return std::make_unique<Dtr>(problem, asked, budget, cost, letting_go);
  };
  return planByPolicy(graph, profile, options, name, {make});
}

}  // namespace

Schedule planDtr(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr", DtrCost::kNeighbourhood);
}

Schedule planDtrEq(const Graph& graph, const DeviceProfile& profile, const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_eq", DtrCost::kComponents);
}

Schedule planDtrLocal(const Graph& graph, const DeviceProfile& profile,
                      const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_local", DtrCost::kLocal);
}

Schedule planDtrBanish(const Graph& graph, const DeviceProfile& profile,
                       const SolveOptions& options) {
  return planWithScore(graph, profile, options, "dtr_banish", DtrCost::kNeighbourhood,
                       LettingGo::kBanish);
}

}  // namespace poet::methods
