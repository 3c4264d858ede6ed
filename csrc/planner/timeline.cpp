#include "planner/timeline.h"

#include <algorithm>
#include <numeric>

namespace poet::planner {
namespace {

class Builder {
 public:
  Builder(const Problem& problem, const ReplayPlan& plan) : problem_(problem), plan_(plan) {}

  Timeline run() {
    addSteps();
    findResidencies();
    findHoldings();
    findGenerators();
    findPageOuts();
    sumUp();
    return std::move(timeline_);
  }

 private:
  void addSteps() {
    first_step_.resize(problem_.stages.size());
    for (int t = 0; t < problem_.numStages(); ++t) {
      for (const int r : plan_.by_stage[static_cast<size_t>(t)]) {
        timeline_.steps.push_back({.stage = t, .replay = r});
        timeline_.replay_seconds += problem_.replays[static_cast<size_t>(r)].seconds;
        timeline_.replay_cost += problem_.replays[static_cast<size_t>(r)].cost;
      }
      first_step_[static_cast<size_t>(t)] = static_cast<int>(timeline_.steps.size());
      timeline_.steps.push_back({.stage = t, .replay = -1});
    }
    differences_.assign(timeline_.steps.size() + 1, 0);
  }

  // A value stays from each arrival to its last touch before the next arrival.
  void findResidencies() {
    std::vector<std::vector<Residency>> of_value(problem_.values.size());
    const auto arrive = [&](int v, int s) {
      of_value[static_cast<size_t>(v)].push_back({.value = v, .arrival = s, .last = s});
    };
    const auto touch = [&](int v, int s) { of_value[static_cast<size_t>(v)].back().last = s; };
    for (int v = 0; v < problem_.numValues(); ++v) {
      const Evictable& value = problem_.values[static_cast<size_t>(v)];
      if (value.first_stage < 0 && !value.starts_away) arrive(v, -1);
    }
    for (int s = 0; s < static_cast<int>(timeline_.steps.size()); ++s) {
      const TimelineStep& step = timeline_.steps[static_cast<size_t>(s)];
      if (step.replay >= 0) {
        const Replay& replay = problem_.replays[static_cast<size_t>(step.replay)];
        for (const int u : replay.inputs) touch(u, s);
        for (const int v : replay.outputs) arrive(v, s);
      } else {
        const Stage& stage = problem_.stages[static_cast<size_t>(step.stage)];
        for (const int u : stage.needs) touch(u, s);
        for (const int v : stage.born) arrive(v, s);
      }
    }
    for (size_t v = 0; v < of_value.size(); ++v) {
      for (const Residency& residency : of_value[v]) {
        add(residency.arrival + 1, residency.last, problem_.values[v].bytes);
        timeline_.residencies.push_back(residency);
      }
    }
  }

  // The store is woken once for each gap between first executions in which something moves.
  void findPageOuts() {
    if (!problem_.pages()) return;
    std::vector<char> out(problem_.values.size(), 0);
    std::vector<char> awake(problem_.stages.size() + 1, 0);
    for (const int v : problem_.page_outs) {
      out[static_cast<size_t>(v)] = 1;
      const int page = problem_.values[static_cast<size_t>(v)].page;
      awake[static_cast<size_t>(problem_.replays[static_cast<size_t>(page)].out_stage)] = 1;
    }
    timeline_.replay_seconds += problem_.constant_seconds;
    timeline_.replay_cost += problem_.constant_cost;
    for (const TimelineStep& step : timeline_.steps) {
      if (step.replay < 0 || !problem_.replays[static_cast<size_t>(step.replay)].is_page) continue;
      const Replay& page = problem_.replays[static_cast<size_t>(step.replay)];
      awake[static_cast<size_t>(step.stage)] = 1;
      const auto v = static_cast<size_t>(page.outputs.front());
      if (out[v] || problem_.values[v].starts_away) continue;
      out[v] = 1;
      awake[static_cast<size_t>(page.out_stage)] = 1;
      timeline_.replay_seconds += page.once_seconds;
      timeline_.replay_cost += page.once_cost;
    }
    timeline_.replay_cost +=
        problem_.costOfWakeUp() * static_cast<double>(std::count(awake.begin(), awake.end(), 1));
    for (size_t v = 0; v < out.size(); ++v) {
      if (out[v]) timeline_.paged_out.push_back(static_cast<int>(v));
    }
  }

  void findHoldings() {
    const Graph& graph = problem_.graph();
    for (const Fixed& fixed : problem_.fixed) {
      if (fixed.hold_stage < 0) continue;
      last_read_.resize(static_cast<size_t>(graph.numValues()), -1);
    }
    if (last_read_.empty()) return;
    for (int s = 0; s < static_cast<int>(timeline_.steps.size()); ++s) {
      const int r = timeline_.steps[static_cast<size_t>(s)].replay;
      if (r < 0) continue;
      for (const ValueId u : problem_.replays[static_cast<size_t>(r)].held)
        last_read_[static_cast<size_t>(u.index)] = s;
    }
    for (const Fixed& fixed : problem_.fixed) {
      const int last = last_read_[static_cast<size_t>(fixed.id.index)];
      if (last < 0) continue;
      const OpId death = graph.value(fixed.id).death;
      const OpId position =
          problem_.stages[static_cast<size_t>(timeline_.steps[static_cast<size_t>(last)].stage)].op;
      if (death >= position)
        continue;  // plain training still holds it when it is read for the last time
      timeline_.holdings.push_back({.id = fixed.id, .last = last});
      // The first step after its death.
      const int stage = death.index + 1;
      const int from = stage == 0 ? 0 : first_step_[static_cast<size_t>(stage) - 1] + 1;
      add(from, last, fixed.bytes);
    }
  }

  void findGenerators() {
    std::vector<char> seen(problem_.replays.size(), 0);
    for (const TimelineStep& step : timeline_.steps) {
      if (step.replay < 0 || seen[static_cast<size_t>(step.replay)]) continue;
      seen[static_cast<size_t>(step.replay)] = 1;
      for (const int t : problem_.replays[static_cast<size_t>(step.replay)].random_stages) {
        timeline_.random_stages.push_back(t);
        add(first_step_[static_cast<size_t>(t)], static_cast<int>(timeline_.steps.size()) - 1,
            problem_.generator_bytes);
      }
    }
    std::sort(timeline_.random_stages.begin(), timeline_.random_stages.end());
  }

  void sumUp() {
    int64_t resident = 0;
    timeline_.peak_bytes = problem_.start_bytes;
    timeline_.peak_op = problem_.stages.front().op;
    for (size_t s = 0; s < timeline_.steps.size(); ++s) {
      TimelineStep& step = timeline_.steps[s];
      const Stage& stage = problem_.stages[static_cast<size_t>(step.stage)];
      resident += differences_[s];
      step.bytes = resident - stage.held_bytes;  // what is really held was added above
      step.bytes += step.replay < 0
                        ? stage.fixed_during_bytes
                        : stage.fixed_before_bytes +
                              problem_.replays[static_cast<size_t>(step.replay)].replay_bytes;
      if (step.bytes > timeline_.peak_bytes) {
        timeline_.peak_bytes = step.bytes;
        timeline_.peak_op = stage.op;
      }
    }
  }

  void add(int first, int last, int64_t bytes) {
    if (first > last) return;
    differences_[static_cast<size_t>(first)] += bytes;
    differences_[static_cast<size_t>(last) + 1] -= bytes;
  }

  const Problem& problem_;
  const ReplayPlan& plan_;
  Timeline timeline_;
  std::vector<int> first_step_;
  std::vector<int64_t> differences_;
  std::vector<int> last_read_;
};

}  // namespace

Timeline makeTimeline(const Problem& problem, const ReplayPlan& plan) {
  return Builder(problem, plan).run();
}

void dropUselessReplays(const Problem& problem, ReplayPlan& plan) {
  // Backwards: a value is wanted from a touch down to the arrival that serves it.
  std::vector<char> wanted(problem.values.size(), 0);
  for (int t = problem.endStage(); t >= 0; --t) {
    const Stage& stage = problem.stages[static_cast<size_t>(t)];
    for (const int v : stage.born) wanted[static_cast<size_t>(v)] = 0;
    for (const int u : stage.needs) wanted[static_cast<size_t>(u)] = 1;
    auto& replays = plan.by_stage[static_cast<size_t>(t)];
    for (size_t i = replays.size(); i-- > 0;) {
      const Replay& replay = problem.replays[static_cast<size_t>(replays[i])];
      const bool useful = std::any_of(replay.outputs.begin(), replay.outputs.end(),
                                      [&](int v) { return wanted[static_cast<size_t>(v)]; });
      if (!useful) {
        replays.erase(replays.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
      for (const int v : replay.outputs) wanted[static_cast<size_t>(v)] = 0;
      for (const int u : replay.inputs) wanted[static_cast<size_t>(u)] = 1;
    }
  }
}

}  // namespace poet::planner
