#include "planner/extract.h"

#include <algorithm>
#include <map>

#include "planner/timeline.h"

namespace poet::planner {
namespace {

class Extraction {
 public:
  Extraction(const Problem& problem, const ReplayPlan& plan, Schedule& schedule)
      : problem_(problem), timeline_(makeTimeline(problem, plan)), schedule_(schedule) {}

  void run() {
    const auto n = static_cast<size_t>(problem_.graph().numOps());
    schedule_.before.assign(n + 1, {});
    schedule_.after.assign(n, {});
    schedule_.recipes.clear();
    frees_.resize(timeline_.steps.size());
    for (const Residency& residency : timeline_.residencies) addResidency(residency);
    for (const Holding& holding : timeline_.holdings) addHolding(holding);
    freeSmallOutputs();
    emit();
    schedule_.believed_peak_bytes = timeline_.peak_bytes;
    schedule_.believed_seconds = problem_.plain_seconds + timeline_.replay_seconds;
  }

 private:
  const TimelineStep& step(int s) const { return timeline_.steps[static_cast<size_t>(s)]; }
  OpId opOf(int s) const { return problem_.stages[static_cast<size_t>(step(s).stage)].op; }
  // Where what step s no longer needs is freed: right after a replay, but only before the op that
  // follows a first execution (its caller may still read the memory).
  int64_t freePosition(int s) const { return opOf(s).index + (step(s).replay < 0 ? 1 : 0); }

  void retain(ValueId v) {
    const OpId shown = problem_.graph().lastShown(v);
    schedule_.after[static_cast<size_t>(shown.index)].push_back({ActionKind::kRetain, v.index});
  }

  void addResidency(const Residency& residency) {
    const Graph& graph = problem_.graph();
    const Evictable& value = problem_.values[static_cast<size_t>(residency.value)];
    const bool stays = value.at_end && step(residency.last).stage == problem_.endStage() &&
                       step(residency.last).replay < 0;
    if (stays) return;
    const OpId death = graph.value(value.id).death;
    // It comes back after the last op that shows it: nothing but the plan holds it.
    const bool comes_back_held =
        step(residency.arrival).replay >= 0 && opOf(residency.arrival) > graph.lastShown(value.id);
    const bool outlives = death < opOf(residency.last);
    if (!comes_back_held && outlives) retain(value.id);
    if (comes_back_held || outlives || death.index >= freePosition(residency.last)) {
      frees_[static_cast<size_t>(residency.last)].push_back(value.id);
    }
  }

  void addHolding(const Holding& holding) {
    retain(holding.id);
    frees_[static_cast<size_t>(holding.last)].push_back(holding.id);
    held_until_[holding.id] = holding.last;
  }

  // Small values that a replay makes again after plain training has dropped them, and that nobody
  // reads any more.
  void freeSmallOutputs() {
    const Graph& graph = problem_.graph();
    for (int s = 0; s < static_cast<int>(timeline_.steps.size()); ++s) {
      if (step(s).replay < 0) continue;
      for (const ValueId v : problem_.replays[static_cast<size_t>(step(s).replay)].small_outputs) {
        const auto held = held_until_.find(v);
        const bool resident =
            graph.value(v).death >= opOf(s) || (held != held_until_.end() && held->second > s);
        if (!resident) frees_[static_cast<size_t>(s)].push_back(v);
      }
    }
  }

  void emit() {
    std::map<int, int32_t> recipe_index;
    for (const TimelineStep& s : timeline_.steps) {
      if (s.replay >= 0) recipe_index.emplace(s.replay, 0);
    }
    for (auto& [replay, index] : recipe_index) {
      index = static_cast<int32_t>(schedule_.recipes.size());
      schedule_.recipes.push_back(problem_.replays[static_cast<size_t>(replay)].ops);
    }
    for (int s = 0; s < static_cast<int>(timeline_.steps.size()); ++s) {
      if (step(s).replay >= 0) {
        auto& before = schedule_.before[static_cast<size_t>(opOf(s).index)];
        before.push_back({ActionKind::kRecompute, recipe_index[step(s).replay]});
      }
      auto& frees = frees_[static_cast<size_t>(s)];
      if (frees.empty()) continue;
      std::sort(frees.begin(), frees.end());
      auto& before = schedule_.before[static_cast<size_t>(freePosition(s))];
      for (const ValueId v : frees) before.push_back({ActionKind::kFree, v.index});
    }
    for (auto& after : schedule_.after) {
      std::sort(after.begin(), after.end(),
                [](const Action& a, const Action& b) { return a.arg < b.arg; });
    }
  }

  const Problem& problem_;
  const Timeline timeline_;
  Schedule& schedule_;
  std::vector<std::vector<ValueId>> frees_;  // by step
  std::map<ValueId, int> held_until_;
};

}  // namespace

void writeActions(const Problem& problem, const ReplayPlan& plan, Schedule& schedule) {
  Extraction(problem, plan, schedule).run();
}

}  // namespace poet::planner
