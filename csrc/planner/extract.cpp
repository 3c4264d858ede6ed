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
    page_outs_.resize(static_cast<size_t>(n) + 1);
    for (const Residency& residency : timeline_.residencies) addResidency(residency);
    for (const int v : timeline_.paged_out) addPageOut(v);
    schedule_.away_between_steps = problem_.away;
    for (const Holding& holding : timeline_.holdings) addHolding(holding);
    freeSmallOutputs();
    emit();
    schedule_.believed_peak_bytes = timeline_.peak_bytes;
    schedule_.believed_seconds = problem_.plain_seconds + timeline_.replay_seconds;
  }

 private:
  bool isPage(int r) const { return problem_.replays[static_cast<size_t>(r)].is_page; }
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
    if (residency.last < 0) {  // nothing touches it before it comes back, or it is away for good
      frees_at_start_.push_back(value.id);
      return;
    }
    if (value.goes_on && step(residency.last).replay < 0 &&
        step(residency.last).stage == value.use_stages.back())
      return;  // the next segment takes over
    const bool stays = value.at_end && step(residency.last).stage == problem_.endStage() &&
                       step(residency.last).replay < 0;
    if (stays) return;
    const OpId death = graph.value(value.id).death;
    // It comes back after the last op that shows it: nothing but the plan holds it.
    const bool comes_back_held = residency.arrival >= 0 && step(residency.arrival).replay >= 0 &&
                                 opOf(residency.arrival) > graph.lastShown(value.id);
    const bool outlives = death < opOf(residency.last);
    if (!comes_back_held && outlives) retain(value.id);
    if (comes_back_held || outlives || death.index >= freePosition(residency.last)) {
      frees_[static_cast<size_t>(residency.last)].push_back(value.id);
    }
  }

  // Right after the last write, before anything is freed there.
  void addPageOut(int v) {
    const Evictable& value = problem_.values[static_cast<size_t>(v)];
    const int stage = problem_.replays[static_cast<size_t>(value.page)].out_stage;
    page_outs_[static_cast<size_t>(stage)].push_back(value.id);
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
      if (s.replay >= 0 && !isPage(s.replay)) recipe_index.emplace(s.replay, 0);
    }
    for (auto& [replay, index] : recipe_index) {
      index = static_cast<int32_t>(schedule_.recipes.size());
      schedule_.recipes.push_back(problem_.replays[static_cast<size_t>(replay)].ops);
    }
    for (size_t k = 0; k < page_outs_.size(); ++k) {
      std::sort(page_outs_[k].begin(), page_outs_[k].end());
      for (const ValueId v : page_outs_[k])
        schedule_.before[k].push_back({ActionKind::kPageOut, v.index});
    }
    std::sort(frees_at_start_.begin(), frees_at_start_.end());
    for (const ValueId v : frees_at_start_)
      schedule_.before[0].push_back({ActionKind::kFree, v.index});
    for (int s = 0; s < static_cast<int>(timeline_.steps.size()); ++s) {
      if (const int r = step(s).replay; r >= 0) {
        auto& before = schedule_.before[static_cast<size_t>(opOf(s).index)];
        if (isPage(r)) {
          const int v = problem_.replays[static_cast<size_t>(r)].outputs.front();
          before.push_back({ActionKind::kPageIn, problem_.values[static_cast<size_t>(v)].id.index});
        } else {
          before.push_back({ActionKind::kRecompute, recipe_index[r]});
        }
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
  std::vector<std::vector<ValueId>> frees_;      // by step
  std::vector<std::vector<ValueId>> page_outs_;  // by op that they stand before
  std::vector<ValueId> frees_at_start_;
  std::map<ValueId, int> held_until_;
};

}  // namespace

void writeActions(const Problem& problem, const ReplayPlan& plan, Schedule& schedule) {
  Extraction(problem, plan, schedule).run();
}

std::optional<ReplayPlan> readActions(const Problem& problem, const Schedule& schedule) {
  if (!schedule.hasPlan() || schedule.away_between_steps != problem.away) return std::nullopt;
  std::map<std::vector<OpId>, int> recipes;
  std::map<ValueId, std::vector<int>> pages;
  for (size_t r = 0; r < problem.replays.size(); ++r) {
    const Replay& replay = problem.replays[r];
    if (replay.is_page) {
      const int v = replay.outputs.front();
      pages[problem.values[static_cast<size_t>(v)].id].push_back(static_cast<int>(r));
    } else {
      recipes[replay.ops] = static_cast<int>(r);
    }
  }
  const auto replayOf = [&](const Action& action, int t) {
    if (action.kind == ActionKind::kRecompute) {
      const auto found = recipes.find(schedule.recipes[static_cast<size_t>(action.arg)]);
      const bool runs = found != recipes.end() && problem.runnable(found->second, t);
      return runs ? found->second : -1;
    }
    for (const int r : pages[ValueId(action.arg)]) {
      if (problem.runnable(r, t)) return r;
    }
    return -1;
  };
  ReplayPlan plan;
  plan.by_stage.resize(problem.stages.size());
  for (int t = 0; t < problem.numStages(); ++t) {
    for (const Action& action : schedule.before[static_cast<size_t>(t)]) {
      if (action.kind != ActionKind::kRecompute && action.kind != ActionKind::kPageIn) continue;
      const int r = replayOf(action, t);
      if (r < 0) return std::nullopt;
      plan.by_stage[static_cast<size_t>(t)].push_back(r);
    }
  }
  return plan;
}

}  // namespace poet::planner
