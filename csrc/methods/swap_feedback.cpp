#include "methods/swap_feedback.h"

#include <algorithm>

#include "graph/error.h"
#include "schedule/simulator.h"

namespace poet {
namespace {

using Position = size_t;  // before the op of that index

// When each position is reached, transfers left out.
std::vector<double> timesOf(const Schedule& schedule, const Graph& graph,
                            const DeviceProfile& profile) {
  std::vector<double> times;
  double now = 0;
  for (Position k = 0; k < schedule.before.size(); ++k) {
    times.push_back(now);
    for (const Action& action : schedule.before[k]) {
      if (action.kind != ActionKind::kRecompute) continue;
      for (const OpId op : schedule.recipes[static_cast<size_t>(action.arg)])
        now += graph.op(op).seconds;
    }
    if (k < graph.ops().size()) now += profile.firstSeconds(graph.ops()[k]);
  }
  return times;
}

// The last one of that kind on the value, at this position or before it; none: kNowhere.
constexpr Position kNowhere = static_cast<Position>(-1);
Position lastBy(const Schedule& schedule, Action action, Position position) {
  for (Position k = position + 1; k-- > 0;) {
    const auto& here = schedule.before[k];
    if (std::find(here.begin(), here.end(), action) != here.end()) return k;
  }
  return kNowhere;
}

bool keepsItsBudgets(const Schedule& schedule) {
  return (!schedule.ram_budget_bytes || schedule.peak_bytes <= *schedule.ram_budget_bytes) &&
         (!schedule.runtime_budget_seconds ||
          schedule.makespan_seconds <= *schedule.runtime_budget_seconds);
}

}  // namespace

std::optional<Schedule> withEarlierSwaps(const Schedule& schedule, const Graph& graph,
                                         const DeviceProfile& profile,
                                         const std::vector<AwaitedSwap>& awaited) {
  schedule.checkAgainst(graph);
  if (!schedule.hasPlan() || profile.dma_channels == 0) return std::nullopt;
  // What moves takes no time of these.
  const std::vector<double> times = timesOf(schedule, graph, profile);
  Schedule moved = schedule;
  bool any = false;
  for (const AwaitedSwap& swap : awaited) {
    POET_CHECK(
        swap.value.index >= 0 && swap.value.index < static_cast<int>(graph.values().size()) &&
            swap.op.index >= 0 && swap.op.index < static_cast<int>(moved.before.size()),
        "expected a value and an op of the step; got ", swap.value.index, " and ", swap.op.index);
    const double swap_seconds = profile.pageInSeconds(graph.value(swap.value).bytes);
    if (swap.seconds <= kSwapFeedback * swap_seconds) continue;
    const Action page_in{ActionKind::kPageIn, swap.value.index};
    const Position from = lastBy(moved, page_in, static_cast<Position>(swap.op.index));
    if (from == kNowhere || from == 0) continue;
    const Position left = lastBy(moved, Action{ActionKind::kFree, swap.value.index}, from);
    const double wanted = times[from] - kSwapFeedback * swap_seconds;
    const auto later =
        std::upper_bound(times.begin(), times.begin() + static_cast<long>(from), wanted);
    if (later == times.begin()) continue;
    const Position to = std::min(static_cast<Position>(later - times.begin()) - 1, from - 1);
    if (left != kNowhere && to <= left) continue;
    Schedule trial = moved;
    std::erase(trial.before[from], page_in);
    trial.before[to].push_back(page_in);
    try {
      finalize(graph, profile, trial);
    } catch (const ScheduleError&) {
      continue;
    }
    if (!keepsItsBudgets(trial)) continue;
    moved = std::move(trial);
    any = true;
  }
  if (!any) return std::nullopt;
  moved.believed_peak_bytes = moved.peak_bytes;
  moved.believed_seconds = moved.makespan_seconds;
  const double value = moved.objectiveValue();
  if (moved.bound && value > 0) moved.gap = std::max(0.0, 1 - *moved.bound / value);
  return moved;
}

}  // namespace poet
