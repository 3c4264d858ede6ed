#include "planner/between_moments.h"

#include <algorithm>

namespace poet::planner {
namespace {

constexpr double kLeastShare = 1e-6;  // of a replay; less is the solver's rounding
constexpr double kHalf = 0.5;

}  // namespace

PointAtMoments::PointAtMoments(const Program& program, const std::vector<double>& x)
    : program_(program), x_(x) {
  const Problem& coarse = program.problem();
  replayed_.resize(coarse.values.size());
  replays_.resize(coarse.stages.size());
  for (const MicroStep& step : program.steps()) {
    if (step.replay < 0) continue;
    const double share = x[static_cast<size_t>(step.column)];
    if (share <= kLeastShare) continue;
    replays_[static_cast<size_t>(step.stage)].emplace_back(step.replay, share);
    for (const int v : coarse.replays[static_cast<size_t>(step.replay)].outputs)
      replayed_[static_cast<size_t>(v)].emplace_back(step.stage, share);
  }
  for (auto& replays : replays_) std::sort(replays.begin(), replays.end());
}

double PointAtMoments::replayed(int v, int stage) const {
  double sum = 0;
  for (const auto& [at, share] : replayed_[static_cast<size_t>(v)]) {
    if (at == stage) sum += share;
  }
  return std::min(1.0, sum);
}

double PointAtMoments::resident(int v, int stage) const {
  const auto& events = program_.events()[static_cast<size_t>(v)];
  const int step = program_.executionOf(stage);
  const auto next = std::lower_bound(events.begin(), events.end(), step,
                                     [](const TouchEvent& e, int s) { return e.step < s; });
  if (next == events.begin() || next == events.end()) return 0;
  return x_[static_cast<size_t>((next - 1)->gap_column)];
}

NeedsOfReplays::NeedsOfReplays(const Problem& fine, const Problem& coarse,
                               const PointAtMoments& point)
    : fine_(fine),
      coarse_(coarse),
      point_(point),
      first_(fine.values.size(), kNever),
      last_(fine.values.size(), -1),
      share_(fine.values.size(), 0) {}

void NeedsOfReplays::look(int stage, int first, int last) {
  forget();
  const auto& replays = point_.replaysOf(stage);
  for (auto it = replays.rbegin(); it != replays.rend(); ++it) {
    const auto& [replay, share] = *it;
    const Replay& about = coarse_.replays[static_cast<size_t>(replay)];
    int at = last;
    for (const int v : about.outputs) {
      const int touched = fine_.plainTouchFrom(v, first);
      if (touched >= first) at = std::min(at, touched);
      at = std::min(at, first_[static_cast<size_t>(v)]);
    }
    for (const int v : about.outputs) need(v, at, share);
    for (const int u : about.inputs) need(u, at, share);
  }
}

void NeedsOfReplays::forget() {
  for (const int v : seen_) {
    first_[static_cast<size_t>(v)] = kNever;
    last_[static_cast<size_t>(v)] = -1;
    share_[static_cast<size_t>(v)] = 0;
  }
  seen_.clear();
}

void NeedsOfReplays::need(int v, int at, double share) {
  int& first = first_[static_cast<size_t>(v)];
  if (first == kNever) seen_.push_back(v);
  first = std::min(first, at);
  last_[static_cast<size_t>(v)] = std::max(last_[static_cast<size_t>(v)], at);
  share_[static_cast<size_t>(v)] = std::max(share_[static_cast<size_t>(v)], share);
}

namespace {

struct Block {
  int stage = 0;            // of the problem at moments
  int first = 0, last = 0;  // fine stages
  bool is_last = false;     // no moment after it

  // In which it may replay: before the moment's op too.
  int latest() const { return is_last ? last : last + 1; }
};

std::vector<Block> blocksOf(const Problem& fine, const std::vector<int>& moments) {
  std::vector<Block> blocks;
  for (size_t k = 0; k <= moments.size(); ++k) {
    blocks.push_back({.stage = 2 * static_cast<int>(k),
                      .first = k == 0 ? 0 : moments[k - 1] + 1,
                      .last = (k < moments.size() ? moments[k] : fine.numStages()) - 1,
                      .is_last = k == moments.size()});
  }
  return blocks;
}

// Bytes by fine stage, as differences.
class ResidentBytes {
 public:
  explicit ResidentBytes(const Problem& fine) : change_(fine.stages.size() + 1, 0) {}

  void add(int first, int last, double bytes) {
    if (first > last || bytes <= 0) return;
    change_[static_cast<size_t>(first)] += bytes;
    change_[static_cast<size_t>(last) + 1] -= bytes;
  }
  double change(size_t stage) const { return change_[stage]; }

 private:
  std::vector<double> change_;
};

class ResidentBytesBetween {
 public:
  ResidentBytesBetween(const Problem& fine, const Program& program, const std::vector<double>& x)
      : fine_(fine),
        point_(program, x),
        needs_(fine, program.problem(), point_),
        residency_(fine) {}

  ResidentBytes of(const std::vector<Block>& blocks, int64_t free_bytes) {
    for (const Block& block : blocks) {
      needs_.look(block.stage, block.first, block.latest());
      for (int v = 0; v < fine_.numValues(); ++v) {
        const Evictable& value = fine_.values[static_cast<size_t>(v)];
        if (value.bytes <= free_bytes || value.use_stages.empty()) continue;
        if (value.first_stage > block.last || value.use_stages.back() < block.first) continue;
        addValue(block, v);
      }
    }
    return std::move(residency_);
  }

 private:
  void addValue(const Block& block, int v) {
    const Evictable& value = fine_.values[static_cast<size_t>(v)];
    const auto size = static_cast<double>(value.bytes);
    const bool is_new = value.first_stage >= block.first;
    const double replayed = is_new ? 0 : point_.replayed(v, block.stage);
    const double resident = block.is_last ? 0 : point_.resident(v, block.stage + 1);
    const double kept = std::max(0.0, resident - replayed);
    const int begin = is_new ? value.first_stage + 1 : block.first;
    const int touched = lastTouch(value, block);
    residency_.add(begin, touched, std::max(kept, 1 - replayed) * size);
    residency_.add(std::max(begin, touched + 1), block.last, kept * size);
    if (replayed > 0) {
      const int from = needs_.first(v);
      const int until = std::max(touched, needs_.last(v));
      residency_.add(from, until, replayed * size);
      residency_.add(std::max(from, until + 1), block.last, (resident - kept) * size);
    } else {  // it stays for the replays that read it
      const double there = is_new ? 1 : residentBefore(value, v, block);
      residency_.add(std::max(begin, touched + 1), needs_.last(v),
                     (std::min(there, needs_.share(v)) - kept) * size);
    }
  }

  double residentBefore(const Evictable& value, int v, const Block& block) const {
    if (block.stage == 0) return value.starts_away ? 0 : 1;
    return point_.resident(v, block.stage - 1);
  }

  static int lastTouch(const Evictable& value, const Block& block) {
    const auto after =
        std::upper_bound(value.use_stages.begin(), value.use_stages.end(), block.last);
    if (after == value.use_stages.begin() || *(after - 1) < block.first) return -1;
    return *(after - 1);
  }

  const Problem& fine_;
  const PointAtMoments point_;
  NeedsOfReplays needs_;
  ResidentBytes residency_;
};

}  // namespace

std::vector<Excess> excessBetween(const Problem& fine, const std::vector<int>& moments,
                                  int64_t free_bytes, const Program& program,
                                  const std::vector<double>& x) {
  const std::vector<Block> blocks = blocksOf(fine, moments);
  const ResidentBytes residency = ResidentBytesBetween(fine, program, x).of(blocks, free_bytes);
  const auto budget = static_cast<double>(program.options().budget_bytes);
  std::vector<Excess> worst;
  double resident = 0;
  size_t stage = 0;
  for (const Block& block : blocks) {
    bool any = false;
    for (; static_cast<int>(stage) <= block.last; ++stage) {
      resident += residency.change(stage);
      const double excess =
          resident + static_cast<double>(fine.stages[stage].fixed_during_bytes) - budget;
      if (!any) {
        worst.push_back({.stage = static_cast<int>(stage), .bytes = excess});
      } else if (excess > worst.back().bytes) {
        worst.back() = {.stage = static_cast<int>(stage), .bytes = excess};
      }
      any = true;
    }
    if (!block.is_last) resident += residency.change(stage++);  // the moment itself
  }
  std::sort(worst.begin(), worst.end(), [](const Excess& a, const Excess& b) {
    return a.bytes != b.bytes ? a.bytes > b.bytes : a.stage < b.stage;
  });
  return worst;
}

ReplayPlan planBetween(const Problem& fine, const std::vector<int>& moments, const Program& program,
                       const std::vector<double>& x) {
  std::vector<double> rounded = x;
  for (const MicroStep& step : program.steps()) {
    if (step.replay < 0) continue;
    double& share = rounded[static_cast<size_t>(step.column)];
    share = share >= kHalf ? 1 : 0;
  }
  const PointAtMoments point(program, rounded);
  NeedsOfReplays needs(fine, program.problem(), point);
  ReplayPlan plan;
  plan.by_stage.resize(fine.stages.size());
  for (const Block& block : blocksOf(fine, moments)) {
    needs.look(block.stage, block.first, block.latest());
    for (const auto& [replay, share] : point.replaysOf(block.stage)) {
      int at = block.latest();
      for (const int v : fine.replays[static_cast<size_t>(replay)].outputs)
        at = std::min(at, needs.first(v));
      // A block allows more than its stages do.
      if (fine.runnable(replay, at)) plan.by_stage[static_cast<size_t>(at)].push_back(replay);
    }
  }
  return plan;
}

}  // namespace poet::planner
