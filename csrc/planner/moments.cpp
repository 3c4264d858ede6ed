#include "planner/moments.h"

#include <algorithm>

#include "planner/clock.h"
#include "planner/lp_loop.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

constexpr double kTight = 0.95;  // of the budget
constexpr int kGrowth = 3;       // of the number of moments
constexpr int kMostColumns = 150000;
constexpr double kShareOfRound = 0.2;  // of the time left: the next one takes several times as long

// Where each stage of the fine problem lies: blocks and moments take turns.
class Places {
 public:
  explicit Places(const std::vector<int>& moments) : moments_(moments) {}

  int numStages() const { return 2 * static_cast<int>(moments_.size()) + 1; }
  // Of replays before the op of fine stage t.
  int blockOf(int t) const {
    return 2 * static_cast<int>(std::lower_bound(moments_.begin(), moments_.end(), t) -
                                moments_.begin());
  }
  // Of the op itself; -1 for what is before the step.
  int placeOf(int t) const {
    if (t < 0) return -1;
    return blockOf(t) + (std::binary_search(moments_.begin(), moments_.end(), t) ? 1 : 0);
  }

 private:
  const std::vector<int>& moments_;
};

// The use at its death that findUses adds: with a store it may be away then.
bool isHeldAtDeathOnly(const Problem& fine, const Evictable& value) {
  if (value.page < 0 || value.at_end || value.goes_on || value.use_stages.empty()) return false;
  const auto& uses = fine.graph().usesOf(value.id);
  return uses.empty() || uses.back().index < value.use_stages.back();
}

// A constant between two writes, which a schedule may page all the same.
bool isBetweenWrites(const Graph& graph, const Evictable& value, int t) {
  const auto& writers = graph.writersOf(value.id);
  return value.goes_on && writers.front().index < t && t < writers.back().index;
}

}  // namespace

Problem atMoments(const Problem& fine, const std::vector<int>& moments, int64_t free_bytes) {
  const Places places(moments);
  Problem coarse = fine;
  coarse.generator_bytes = 0;
  coarse.stages.clear();
  for (const int m : moments) {
    coarse.stages.push_back(
        {.op = fine.stages[static_cast<size_t>(m)].op, .fixed_during_bytes = Stage::kNoMemoryRow});
    Stage moment{.op = fine.stages[static_cast<size_t>(m)].op,
                 .fixed_during_bytes = fine.stages[static_cast<size_t>(m)].fixed_during_bytes};
    for (const Evictable& value : fine.values) {
      if (isBetweenWrites(fine.graph(), value, m)) moment.fixed_during_bytes -= value.bytes;
    }
    coarse.stages.push_back(std::move(moment));
  }
  coarse.stages.push_back(
      {.op = fine.stages.back().op, .fixed_during_bytes = Stage::kNoMemoryRow});
  for (int v = 0; v < coarse.numValues(); ++v) {
    Evictable& value = coarse.values[static_cast<size_t>(v)];
    std::vector<int> uses = value.use_stages;
    if (isHeldAtDeathOnly(fine, value)) uses.pop_back();
    if (value.bytes <= free_bytes) uses.clear();
    value.first_stage = places.placeOf(value.first_stage);
    value.pin_stage = value.first_stage;
    value.use_stages.clear();
    for (const int t : uses) {
      const int place = places.placeOf(t);
      if (place <= value.first_stage) continue;
      if (!value.use_stages.empty() && value.use_stages.back() == place) continue;
      value.use_stages.push_back(place);
      coarse.stages[static_cast<size_t>(place)].needs.push_back(v);
    }
    if (value.first_stage >= 0)
      coarse.stages[static_cast<size_t>(value.first_stage)].born.push_back(v);
  }
  for (Replay& replay : coarse.replays) {
    replay.last_stage = -1;
    for (const int v : replay.outputs)
      replay.last_stage =
          std::max(replay.last_stage, coarse.values[static_cast<size_t>(v)].first_stage);
    replay.until_stage = places.blockOf(replay.until_stage);
    replay.random_stages.clear();
    std::erase_if(replay.inputs, [&](int u) {
      const Evictable& input = coarse.values[static_cast<size_t>(u)];
      return input.first_stage > replay.last_stage || input.bytes <= free_bytes;
    });
  }
  return coarse;
}

Candidates momentCandidates(const Problem& coarse) {
  Candidates candidates = allCandidates(coarse, 1);
  for (size_t t = 1; t < candidates.size(); t += 2) candidates[t].clear();
  return candidates;
}

std::vector<int> chooseMoments(const Problem& fine, const std::vector<int64_t>& bytes_by_stage,
                               int64_t budget_bytes, int count) {
  const Timeline plain = makeTimeline(fine, fine.leastPlan());
  const auto peak = std::max_element(
      plain.steps.begin(), plain.steps.end(),
      [](const TimelineStep& a, const TimelineStep& b) { return a.bytes < b.bytes; });
  std::vector<int> moments = {peak->stage};
  std::vector<int> tight;
  for (int t = 0; t < fine.numStages(); ++t) {
    if (static_cast<double>(bytes_by_stage[static_cast<size_t>(t)]) >=
        kTight * static_cast<double>(budget_bytes))
      tight.push_back(t);
  }
  // As many tight stages in each part; of a part the tightest.
  const auto parts = std::min(static_cast<size_t>(std::max(0, count - 1)), tight.size());
  for (size_t i = 0; i < parts; ++i) {
    const auto begin = tight.begin() + static_cast<std::ptrdiff_t>(i * tight.size() / parts);
    const auto end = tight.begin() + static_cast<std::ptrdiff_t>((i + 1) * tight.size() / parts);
    moments.push_back(*std::max_element(begin, end, [&](int a, int b) {
      return bytes_by_stage[static_cast<size_t>(a)] < bytes_by_stage[static_cast<size_t>(b)];
    }));
  }
  std::sort(moments.begin(), moments.end());
  moments.erase(std::unique(moments.begin(), moments.end()), moments.end());
  return moments;
}

BoundOverAll boundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes,
                            const std::vector<int64_t>& bytes_by_stage, double best_cost,
                            const ExactOptions& options) {
  const Deadline deadline(options.time_limit_seconds);
  BoundOverAll result;
  std::vector<int> last;
  for (int count = 1; !deadline.over(); count *= kGrowth) {
    const std::vector<int> moments = chooseMoments(fine, bytes_by_stage, budget_bytes, count);
    if (moments == last) break;  // no more of them
    last = moments;
    const Problem coarse = atMoments(fine, moments, free_bytes);
    const Program program(coarse, momentCandidates(coarse),
                          {.budget_bytes = budget_bytes,
                           .replay_seconds_limit = options.replay_seconds_limit,
                           .relaxed = true,
                           .rows_at_replays = false});
    if (result.any && program.numColumns() > kMostColumns) break;
    const double begin = deadline.elapsed();
    Relaxation root =
        relax(program, {.time_limit_seconds = deadline.left(), .solver = options.solver});
    const double took = deadline.elapsed() - begin;
    if (root.status == SolverStatus::kInfeasible) break;  // no plan keeps the budget: not for us
    if (!root.has_bound) break;
    result.any = true;
    const auto costOf = [&](double scaled) {
      return std::min(best_cost,
                      fine.constant_cost + std::max(0.0, scaled / costPerSecond(fine)));
    };
    result.bound_cost = std::max(result.bound_cost, costOf(root.bound));
    if (root.status != SolverStatus::kOptimal || took > kShareOfRound * deadline.left()) break;
  }
  return result;
}

}  // namespace poet::planner
