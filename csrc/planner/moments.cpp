#include "planner/moments.h"

#include <algorithm>

#include "planner/clock.h"
#include "planner/lp_loop.h"
#include "planner/program.h"
#include "planner/program_search.h"
#include "planner/timeline.h"

namespace poet::planner {
namespace {

constexpr double kHalf = 0.5;
constexpr int kMostColumns = 150000;
constexpr double kShareOfRound = 0.3;   // of the time left: the next one takes longer
constexpr double kShareOfSearch = 0.3;  // likewise, kept for branch and cut
constexpr int kMostFreeColumns = 8000;
constexpr double kProofGap = 1e-4;
// Rounds that add less than this share of what lies between bound and best plan, in a row.
constexpr double kLeastProgress = 0.01;
constexpr int kMostIdleRounds = 2;
constexpr double kCloseEnough = 2e-5;  // of the plain step's seconds, to the best plan

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
  coarse.stages.push_back({.op = fine.stages.back().op, .fixed_during_bytes = Stage::kNoMemoryRow});
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
    if (replay.out_stage >= 0) replay.out_stage = places.blockOf(replay.out_stage);
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

namespace {

// What a point of the program has of each value, by block.
class Shares {
 public:
  Shares(const Program& program, const std::vector<double>& x) : program_(program), x_(x) {
    const Problem& coarse = program.problem();
    replayed_.resize(coarse.values.size());
    for (const MicroStep& step : program.steps()) {
      if (step.replay < 0 || x[static_cast<size_t>(step.column)] <= 0) continue;
      for (const int v : coarse.replays[static_cast<size_t>(step.replay)].outputs)
        replayed_[static_cast<size_t>(v)].emplace_back(step.stage,
                                                       x[static_cast<size_t>(step.column)]);
    }
  }

  // Of v in the block at `stage`, at most 1.
  double replayed(int v, int stage) const {
    double sum = 0;
    for (const auto& [at, share] : replayed_[static_cast<size_t>(v)]) {
      if (at == stage) sum += share;
    }
    return std::min(1.0, sum);
  }
  // Of v during the moment at `stage`.
  double resident(int v, int stage) const {
    const auto& events = program_.events()[static_cast<size_t>(v)];
    const int step = program_.executionOf(stage);
    const auto next = std::lower_bound(events.begin(), events.end(), step,
                                       [](const TouchEvent& e, int s) { return e.step < s; });
    if (next == events.begin() || next == events.end()) return 0;
    return x_[static_cast<size_t>((next - 1)->gap_column)];
  }

 private:
  const Program& program_;
  const std::vector<double>& x_;
  std::vector<std::vector<std::pair<int, double>>> replayed_;  // by value: (stage, share)
};

}  // namespace

std::vector<Excess> excessBetween(const Problem& fine, const std::vector<int>& moments,
                                  int64_t free_bytes, const Program& program,
                                  const std::vector<double>& x) {
  const Shares shares(program, x);
  const auto stages = static_cast<size_t>(fine.numStages());
  std::vector<double> bytes(stages + 1, 0), touched(stages, 0);
  const auto add = [&](int first, int last, double amount) {
    if (first > last || amount <= 0) return;
    bytes[static_cast<size_t>(first)] += amount;
    bytes[static_cast<size_t>(last) + 1] -= amount;
  };
  for (int v = 0; v < fine.numValues(); ++v) {
    const Evictable& value = fine.values[static_cast<size_t>(v)];
    if (value.bytes <= free_bytes || value.use_stages.empty()) continue;
    const auto size = static_cast<double>(value.bytes);
    auto use = value.use_stages.begin();
    for (size_t k = 0; k <= moments.size(); ++k) {
      const int first = k == 0 ? 0 : moments[k - 1] + 1;
      const int last = (k < moments.size() ? moments[k] : fine.numStages()) - 1;
      if (value.first_stage > last) continue;
      if (value.use_stages.back() < first) break;
      const bool is_new = value.first_stage >= first;
      const int block = 2 * static_cast<int>(k);
      const double replayed = is_new ? 0 : shares.replayed(v, block);
      const double kept =
          k < moments.size() ? std::max(0.0, shares.resident(v, block + 1) - replayed) : 0;
      int until = is_new ? value.first_stage : first - 1;  // its last touch in the block
      while (use != value.use_stages.end() && *use <= last) {
        if (*use >= first) {
          until = *use;
          touched[static_cast<size_t>(*use)] += std::min(1.0, replayed) * size;
        }
        ++use;
      }
      add(is_new ? value.first_stage + 1 : first, until, std::max(kept, 1 - replayed) * size);
      add(until + 1, last, kept * size);
    }
  }
  std::vector<Excess> worst;
  const auto budget = static_cast<double>(program.options().budget_bytes);
  double resident = 0;
  size_t block = moments.size() + 1;  // of the last of `worst`
  for (size_t t = 0; t < stages; ++t) {
    resident += bytes[t];
    const double excess =
        resident + touched[t] + static_cast<double>(fine.stages[t].fixed_during_bytes) - budget;
    const auto k = static_cast<size_t>(
        std::lower_bound(moments.begin(), moments.end(), static_cast<int>(t)) - moments.begin());
    if (k < moments.size() && moments[k] == static_cast<int>(t)) continue;
    if (worst.empty() || block != k) {
      worst.push_back({.stage = static_cast<int>(t), .bytes = excess});
      block = k;
    } else if (excess > worst.back().bytes) {
      worst.back() = {.stage = static_cast<int>(t), .bytes = excess};
    }
  }
  std::sort(worst.begin(), worst.end(), [](const Excess& a, const Excess& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.stage < b.stage;
  });
  return worst;
}

namespace {

int plainPeak(const Problem& fine) {
  const Timeline plain = makeTimeline(fine, fine.leastPlan());
  return std::max_element(
             plain.steps.begin(), plain.steps.end(),
             [](const TimelineStep& a, const TimelineStep& b) { return a.bytes < b.bytes; })
      ->stage;
}

class BoundAtMoments {
 public:
  BoundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes, double best_cost,
                 const ExactOptions& options)
      : fine_(fine),
        free_bytes_(free_bytes),
        budget_bytes_(budget_bytes),
        best_cost_(best_cost),
        options_(options),
        deadline_(options.time_limit_seconds) {}

  BoundOverAll run() {
    moments_ = {plainPeak(fine_)};
    while (!deadline_.over()) {
      const Problem coarse = atMoments(fine_, moments_, free_bytes_);
      const Program program(coarse, momentCandidates(coarse),
                            {.budget_bytes = budget_bytes_,
                             .replay_seconds_limit = options_.replay_seconds_limit,
                             .relaxed = true,
                             .rows_at_replays = false});
      if (result_.any && program.numColumns() > kMostColumns) break;
      const double begin = deadline_.elapsed();
      Relaxation root =
          relax(program, {.time_limit_seconds = deadline_.left(), .solver = options_.solver});
      if (!root.has_bound) break;
      const double known = result_.bound_cost;
      take(root.bound);
      if (root.status != SolverStatus::kOptimal || isClose()) break;
      const bool is_last = deadline_.elapsed() - begin > kShareOfRound * deadline_.left();
      const std::vector<Excess> worst =
          excessBetween(fine_, moments_, free_bytes_, program, root.x);
      const bool keeps_budget = worst.empty() || worst.front().bytes <= 0;
      if (keeps_budget || is_last) search(program, root, is_last ? 1 : kShareOfSearch);
      if (worst.empty() || is_last || isClose()) break;
      if (keeps_budget && best_cost_ >= kInfinity) break;  // a first look: no plan to compare with
      const bool progressed = result_.bound_cost - known > kLeastProgress * (best_cost_ - known);
      idle_rounds_ = progressed || !keeps_budget ? 0 : idle_rounds_ + 1;
      if (idle_rounds_ == kMostIdleRounds) break;
      addMoments(worst, keeps_budget ? moments_.size() : moments_.size() / 2);
    }
    return std::move(result_);
  }

 private:
  void take(double scaled) {
    const double cost = fine_.constant_cost + std::max(0.0, scaled / costPerSecond(fine_));
    result_.any = true;
    result_.bound_cost = std::max(result_.bound_cost, std::min(best_cost_, cost));
  }

  bool isClose() const {
    return best_cost_ - result_.bound_cost <= kCloseEnough * fine_.plain_seconds;
  }

  void addMoments(const std::vector<Excess>& worst, size_t most) {
    const size_t count = std::min(worst.size(), std::max<size_t>(1, most));
    for (size_t i = 0; i < count; ++i) moments_.push_back(worst[i].stage);
    std::sort(moments_.begin(), moments_.end());
  }

  void search(const Program& program, Relaxation& root, double share) {
    if (deadline_.over() || root.x.empty() || best_cost_ >= kInfinity) return;
    const double cutoff = (best_cost_ - fine_.constant_cost) * costPerSecond(fine_);
    const int free_columns = fixByReducedCost(cutoff, root);
    if (free_columns > kMostFreeColumns ||
        !isWorthSearching(free_columns, share * deadline_.left()))
      return;
    const SearchResult found = searchProgram(program, root,
                                             {.time_limit_seconds = share * deadline_.left(),
                                              .relative_gap = kProofGap,
                                              .threads = options_.threads,
                                              .solver = options_.solver});
    // Nothing below the best plan.
    take(found.status == SolverStatus::kInfeasible ? cutoff : found.bound);
  }

  const Problem& fine_;
  const int64_t free_bytes_;
  const int64_t budget_bytes_;
  const double best_cost_;
  const ExactOptions& options_;
  const Deadline deadline_;
  std::vector<int> moments_;
  int idle_rounds_ = 0;
  BoundOverAll result_;
};

}  // namespace

std::vector<char> keptAtPeak(const Problem& fine, const KeptOptions& options) {
  const int peak = plainPeak(fine);
  const Problem coarse = atMoments(fine, {peak});
  const Program program(coarse, momentCandidates(coarse),
                        {.budget_bytes = options.budget_bytes,
                         .replay_seconds_limit = options.replay_seconds_limit,
                         .relaxed = true,
                         .rows_at_replays = false});
  const Relaxation found =
      relax(program, {.time_limit_seconds = options.time_limit_seconds, .solver = options.solver});
  std::vector<char> kept;
  if (found.x.empty()) return kept;
  const Shares shares(program, found.x);
  for (int v = 0; v < fine.numValues(); ++v) {
    const Evictable& value = fine.values[static_cast<size_t>(v)];
    const bool crosses =
        value.first_stage < peak && !value.use_stages.empty() && value.use_stages.back() > peak;
    kept.push_back(!crosses || shares.resident(v, 1) > kHalf);
  }
  return kept;
}

BoundOverAll boundAtMoments(const Problem& fine, int64_t free_bytes, int64_t budget_bytes,
                            double best_cost, const ExactOptions& options) {
  return BoundAtMoments(fine, free_bytes, budget_bytes, best_cost, options).run();
}

}  // namespace poet::planner
