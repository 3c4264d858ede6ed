#include "planner/prefetch.h"

#include <algorithm>
#include <vector>

#include "graph/error.h"
#include "schedule/simulator.h"

namespace poet::planner {
namespace {

class Prefetch {
 public:
  Prefetch(const Graph& graph, const DeviceProfile& profile, int64_t budget_bytes,
           Schedule& schedule)
      : graph_(graph), profile_(profile), budget_(budget_bytes), schedule_(schedule) {}

  void run() {
    finalize(graph_, profile_, schedule_);
    for (size_t k = 0; k < schedule_.before.size(); ++k) {
      for (const Action& action : std::vector<Action>(schedule_.before[k])) {
        if (action.kind == ActionKind::kPageIn) moveBack(ValueId(action.arg), k);
      }
    }
    if (schedule_.bound && schedule_.objectiveValue() > 0) {
      schedule_.gap = std::max(0.0, 1 - *schedule_.bound / schedule_.objectiveValue());
    }
  }

 private:
  // Halves the distance until a place is found where it can begin.
  void moveBack(ValueId v, size_t k) {
    const size_t earliest = std::max(lastActionOn(v, k), coveredFrom(v, k));
    for (size_t distance = k - earliest; distance > 0; distance /= 2) {
      Schedule moved = schedule_;
      std::erase(moved.before[k], Action{ActionKind::kPageIn, v.index});
      moved.before[k - distance].push_back({ActionKind::kPageIn, v.index});
      if (!improves(moved)) continue;
      schedule_ = std::move(moved);
      return;
    }
  }

  bool improves(Schedule& moved) const {
    try {
      finalize(graph_, profile_, moved);
    } catch (const ScheduleError&) {  // it would die or be in the way on the way
      return false;
    }
    return moved.peak_bytes <= std::max(budget_, schedule_.peak_bytes) &&
           moved.makespan_seconds < schedule_.makespan_seconds;
  }

  // The position of the free that it comes back from.
  size_t lastActionOn(ValueId v, size_t k) const {
    for (size_t at = k; at-- > 0;) {
      for (const Action& action : schedule_.before[at]) {
        if (action.kind != ActionKind::kRecompute && action.arg == v.index) return at;
      }
    }
    return 0;
  }

  // From there on the ops take as long as the transfer.
  size_t coveredFrom(ValueId v, size_t k) const {
    double seconds = profile_.pageInSeconds(graph_.value(v).bytes);
    while (k > 0 && seconds > 0) {
      --k;
      seconds -= graph_.op(OpId(static_cast<int64_t>(k))).seconds;
    }
    return k;
  }

  const Graph& graph_;
  const DeviceProfile& profile_;
  const int64_t budget_;
  Schedule& schedule_;
};

}  // namespace

void prefetch(const Graph& graph, const DeviceProfile& profile, int64_t budget_bytes,
              Schedule& schedule) {
  if (profile.dma_channels == 0 || !schedule.hasPlan()) return;
  Prefetch(graph, profile, budget_bytes, schedule).run();
}

}  // namespace poet::planner
