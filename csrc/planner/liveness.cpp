#include "planner/liveness.h"

#include <algorithm>
#include <limits>

namespace poet::planner {

Liveness::Liveness(const Problem& problem, const ReplayPlan& plan, int64_t budget_bytes)
    : problem_(problem),
      budget_(budget_bytes),
      words_(problem.values.size() / 64 + 1),  // one even where all values are too small to count
      plan_(plan),
      used_(problem.replays.size(), 0),
      scratch_(words_, 0) {
  findBlocks();
  seconds_ = problem.constant_seconds;
  cost_ = problem.constant_cost;
  for (int v = 0; v < problem.numValues(); ++v) {
    if (problem.values[static_cast<size_t>(v)].starts_away) starts_away_.push_back(v);
  }
  const size_t blocks = stage_of_block_.size();
  live_.assign((blocks + 1) * words_, 0);
  live_bytes_.assign(blocks + 1, 0);
  need_.assign(blocks, 0);
  generators_.assign(blocks, 0);
  saved_mark_.assign(blocks, 0);
  dirty_.assign(blocks, 0);
  for (const auto& stage : plan_.by_stage) {
    for (const int r : stage) count(r, 1);
  }
  for (size_t b = 0; b < blocks; ++b) markDirty(static_cast<int>(b));
  settle();
  sumExcess();
  keep();
}

void Liveness::findBlocks() {
  std::vector<char> last(problem_.stages.size(), 0);  // of a block
  last.back() = 1;
  for (const Replay& replay : problem_.replays) last[static_cast<size_t>(replay.until_stage)] = 1;
  int64_t quiet = 0;
  for (size_t t = 0; t < problem_.stages.size(); ++t) {
    const Stage& stage = problem_.stages[t];
    block_of_.push_back(static_cast<int>(stage_of_block_.size()));
    if (!last[t] && stage.needs.empty() && stage.born.empty() && plan_.by_stage[t].empty()) {
      quiet = std::max(quiet, stage.fixed_during_bytes);
      continue;
    }
    stage_of_block_.push_back(static_cast<int>(t));
    quiet_.push_back(quiet);
    quiet = 0;
  }
}

int64_t Liveness::excessAt(int b) const {
  return std::max<int64_t>(
      0, need_[static_cast<size_t>(b)] + generators_[static_cast<size_t>(b)] - budget_);
}

void Liveness::sumExcess() {
  excess_ = 0;
  for (size_t b = 0; b < need_.size(); ++b)
    excess_ += static_cast<double>(excessAt(static_cast<int>(b)));
}

int64_t Liveness::peakBytes() const {
  int64_t peak = problem_.start_bytes;
  for (size_t t = 0; t < need_.size(); ++t) peak = std::max(peak, need_[t] + generators_[t]);
  return wrong_start_ > 0 ? std::numeric_limits<int64_t>::max() : peak;
}

void Liveness::count(int r, int by) {
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  seconds_ += by * replay.seconds;
  cost_ += by * (replay.cost + (replay.is_page ? problem_.costOfWakeUp() : 0));
  int& used = used_[static_cast<size_t>(r)];
  const bool before = used > 0;
  used += by;
  if (before != (used > 0) && replay.once_cost > 0) {
    const int once = before ? -1 : 1;
    seconds_ += once * replay.once_seconds;
    cost_ += once * (replay.once_cost + problem_.costOfWakeUp());
  }
  if (replay.random_stages.empty() || before == (used > 0)) return;
  if (!generators_changed_) {
    saved_generators_ = generators_;
    generators_changed_ = true;
  }
  for (const int p : replay.random_stages) {
    for (auto b = static_cast<size_t>(block_of_[static_cast<size_t>(p)]); b < generators_.size();
         ++b) {
      generators_[b] += before ? -problem_.generator_bytes : problem_.generator_bytes;
    }
  }
}

void Liveness::save(int b) {
  const auto index = static_cast<size_t>(b);
  if (saved_mark_[index]) return;
  saved_mark_[index] = 1;
  if (num_saved_ == saved_.size()) saved_.emplace_back();
  Saved& saved = saved_[num_saved_++];
  saved.block = b;
  saved.replays = replaysAt(stage_of_block_[index]);
  const auto row = live_.begin() + static_cast<std::ptrdiff_t>(index * words_);
  saved.live.assign(row, row + static_cast<std::ptrdiff_t>(words_));
  saved.live_bytes = live_bytes_[index];
  saved.need = need_[index];
}

void Liveness::markDirty(int b) {
  if (dirty_[static_cast<size_t>(b)]) return;
  dirty_[static_cast<size_t>(b)] = 1;
  ++num_dirty_;
  highest_dirty_ = std::max(highest_dirty_, b);
}

void Liveness::insert(int t, int r) {
  auto& stage = plan_.by_stage[static_cast<size_t>(t)];
  const auto place = std::lower_bound(stage.begin(), stage.end(), r);
  if (place != stage.end() && *place == r) return;
  const int block = block_of_[static_cast<size_t>(t)];
  save(block);
  stage.insert(place, r);
  count(r, 1);
  markDirty(block);
}

void Liveness::remove(int t, int r) {
  auto& stage = plan_.by_stage[static_cast<size_t>(t)];
  const auto place = std::find(stage.begin(), stage.end(), r);
  if (place == stage.end()) return;
  const int block = block_of_[static_cast<size_t>(t)];
  save(block);
  stage.erase(place);
  count(r, -1);
  markDirty(block);
}

void Liveness::settle() {
  for (int b = highest_dirty_; b >= 0 && num_dirty_ > 0; --b) {
    if (!dirty_[static_cast<size_t>(b)]) continue;
    dirty_[static_cast<size_t>(b)] = 0;
    --num_dirty_;
    if (sweep(b) && b > 0) markDirty(b - 1);
  }
  highest_dirty_ = -1;
  if (generators_changed_) sumExcess();
}

bool Liveness::sweep(int b) {
  save(b);
  const auto index = static_cast<size_t>(b);
  const int t = stage_of_block_[index];
  const Stage& stage = problem_.stages[static_cast<size_t>(t)];
  const uint64_t* after = &live_[(index + 1) * words_];
  std::copy(after, after + words_, scratch_.begin());
  int64_t bytes = live_bytes_[index + 1];
  const auto clear = [&](int v) {
    uint64_t& bits = scratch_[static_cast<size_t>(v >> 6)];
    const uint64_t bit = uint64_t{1} << (v & 63);
    if (!(bits & bit)) return false;
    bits &= ~bit;
    bytes -= problem_.values[static_cast<size_t>(v)].bytes;
    return true;
  };
  const auto set = [&](int v) {
    uint64_t& bits = scratch_[static_cast<size_t>(v >> 6)];
    const uint64_t bit = uint64_t{1} << (v & 63);
    if (bits & bit) return;
    bits |= bit;
    bytes += problem_.values[static_cast<size_t>(v)].bytes;
  };
  for (const int v : stage.born) clear(v);
  for (const int u : stage.needs) set(u);
  int64_t need = stage.fixed_during_bytes + bytes;
  auto& replays = plan_.by_stage[static_cast<size_t>(t)];
  for (size_t i = replays.size(); i-- > 0;) {
    const Replay& replay = problem_.replays[static_cast<size_t>(replays[i])];
    bool useful = false;
    for (const int v : replay.outputs) useful = clear(v) || useful;
    if (!useful) {
      count(replays[i], -1);
      replays.erase(replays.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    for (const int u : replay.inputs) set(u);
    need = std::max(need, stage.fixed_before_bytes + replay.replay_bytes + bytes);
  }
  if (quiet_[index] > 0) need = std::max(need, quiet_[index] + bytes);
  excess_ -= static_cast<double>(excessAt(b));
  need_[index] = need;
  excess_ += static_cast<double>(excessAt(b));
  live_bytes_[index] = bytes;
  if (b == 0) {
    wrong_start_ = 0;
    for (const int v : starts_away_) {
      if ((scratch_[static_cast<size_t>(v >> 6)] >> (v & 63)) & 1)
        wrong_start_ += static_cast<double>(problem_.values[static_cast<size_t>(v)].bytes);
    }
  }
  uint64_t* before = &live_[index * words_];
  if (std::equal(before, before + words_, scratch_.begin())) return false;
  std::copy(scratch_.begin(), scratch_.end(), before);
  return true;
}

void Liveness::keep() {
  for (size_t i = 0; i < num_saved_; ++i) saved_mark_[static_cast<size_t>(saved_[i].block)] = 0;
  num_saved_ = 0;
  generators_changed_ = false;
  saved_seconds_ = seconds_;
  saved_cost_ = cost_;
  saved_wrong_start_ = wrong_start_;
  saved_excess_ = excess_;
}

void Liveness::undo() {
  for (size_t i = 0; i < num_saved_; ++i) {
    Saved& saved = saved_[i];
    const auto b = static_cast<size_t>(saved.block);
    auto& replays = plan_.by_stage[static_cast<size_t>(stage_of_block_[b])];
    for (const int r : replays) --used_[static_cast<size_t>(r)];
    for (const int r : saved.replays) ++used_[static_cast<size_t>(r)];
    replays.swap(saved.replays);
    std::copy(saved.live.begin(), saved.live.end(),
              live_.begin() + static_cast<std::ptrdiff_t>(b * words_));
    live_bytes_[b] = saved.live_bytes;
    need_[b] = saved.need;
  }
  if (generators_changed_) generators_ = saved_generators_;
  seconds_ = saved_seconds_;
  cost_ = saved_cost_;
  wrong_start_ = saved_wrong_start_;
  excess_ = saved_excess_;
  keep();
}

}  // namespace poet::planner
