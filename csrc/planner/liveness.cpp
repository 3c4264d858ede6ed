#include "planner/liveness.h"

#include <algorithm>
#include <limits>

namespace poet::planner {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kWorkOfBlock =
    50;  // to find the need of a block again, against a block of a span

}  // namespace

Liveness::Liveness(const Problem& problem, const ReplayPlan& plan, int64_t budget_bytes)
    : problem_(problem),
      budget_(budget_bytes),
      width_(static_cast<int>(problem.replays.size()) + 2),
      plan_{std::vector<std::vector<int>>(problem.stages.size())},
      readers_(problem.values.size()),
      touched_(problem.values.size()),
      born_(problem.values.size(), -1),
      at_(problem.replays.size()),
      seen_(problem.values.size(), 0),
      resident_(problem.values.size(), 0) {
  findBlocks(plan);
  findEvents();
  findPlain();
  for (size_t t = 0; t < plan.by_stage.size(); ++t) {
    for (const int r : plan.by_stage[t]) insert(static_cast<int>(t), r);
  }
  settle();
  keep();
}

void Liveness::findBlocks(const ReplayPlan& plan) {
  std::vector<char> last(problem_.stages.size(), 0);  // of a block
  last.back() = 1;
  for (const Replay& replay : problem_.replays) last[static_cast<size_t>(replay.until_stage)] = 1;
  int64_t quiet = 0;
  for (size_t t = 0; t < problem_.stages.size(); ++t) {
    const Stage& stage = problem_.stages[t];
    block_of_.push_back(static_cast<int>(stage_of_block_.size()));
    if (!last[t] && stage.needs.empty() && stage.born.empty() && plan.by_stage[t].empty()) {
      quiet = std::max(quiet, stage.fixed_during_bytes);
      continue;
    }
    stage_of_block_.push_back(static_cast<int>(t));
    quiet_.push_back(quiet);
    quiet = 0;
  }
}

void Liveness::findEvents() {
  for (size_t r = 0; r < problem_.replays.size(); ++r) {
    for (const int u : problem_.replays[r].inputs)
      readers_[static_cast<size_t>(u)].push_back(static_cast<int>(r));
  }
  for (size_t v = 0; v < problem_.values.size(); ++v) {
    const Evictable& value = problem_.values[v];
    if (value.first_stage >= 0) born_[v] = block_of_[static_cast<size_t>(value.first_stage)];
    for (const int t : value.use_stages) touched_[v].push_back(block_of_[static_cast<size_t>(t)]);
  }
}

// Without any replay.
void Liveness::findPlain() {
  const size_t blocks = stage_of_block_.size();
  live_bytes_.assign(blocks + 1, 0);
  need_.assign(blocks, 0);
  generators_.assign(blocks, 0);
  is_stale_.assign(blocks, 0);
  for (size_t v = 0; v < problem_.values.size(); ++v) {
    if (touched_[v].empty()) continue;
    const Evictable& value = problem_.values[v];
    live_bytes_[static_cast<size_t>(born_[v] + 1)] += value.bytes;
    live_bytes_[static_cast<size_t>(touched_[v].back() + 1)] -= value.bytes;
    if (value.starts_away) wrong_start_ += value.bytes;
  }
  for (size_t b = 0; b < blocks; ++b) live_bytes_[b + 1] += live_bytes_[b];
  seconds_ = problem_.constant_seconds;
  cost_ = problem_.constant_cost;
  for (size_t b = 0; b < blocks; ++b) markStale(static_cast<int>(b));
}

// ---- events
// --------------------------------------------------------------------------------------------------------

Liveness::Next Liveness::nextEvent(int v, Key after) const {
  const auto index = static_cast<size_t>(v);
  Next next{.key = kNever};
  const auto offer = [&](Key key, bool touches) {
    if (key < next.key) next = {.key = key, .touches = touches};
  };
  if (born_[index] >= 0 && keyOf(born_[index], birth()) > after)
    offer(keyOf(born_[index], birth()), false);
  const auto first = [&](const std::vector<int>& blocks, int where) {
    const auto found = std::partition_point(blocks.begin(), blocks.end(),
                                            [&](int b) { return keyOf(b, where) <= after; });
    return found == blocks.end() ? kNever : keyOf(*found, where);
  };
  offer(first(touched_[index], execution()), true);
  for (const int r : readers_[index]) {
    if (!at_[static_cast<size_t>(r)].empty()) offer(first(at_[static_cast<size_t>(r)], r), true);
  }
  const Evictable& value = problem_.values[index];
  for (const int r : {value.recipe, value.page}) {
    if (r >= 0 && !at_[static_cast<size_t>(r)].empty())
      offer(first(at_[static_cast<size_t>(r)], r), false);
  }
  return next;
}

Liveness::Previous Liveness::previousEvent(int v, Key before) const {
  const auto index = static_cast<size_t>(v);
  Previous previous;
  Key latest = -1;
  const auto offer = [&](const std::vector<int>& blocks, int where, int maker) {
    const auto found = std::partition_point(blocks.begin(), blocks.end(),
                                            [&](int b) { return keyOf(b, where) < before; });
    if (found == blocks.begin() || keyOf(*(found - 1), where) <= latest) return;
    latest = keyOf(*(found - 1), where);
    previous = {.block = *(found - 1), .maker = maker};
  };
  if (born_[index] >= 0) {
    latest = keyOf(born_[index], birth());
    previous.block = born_[index];
  }
  offer(touched_[index], execution(), -1);
  for (const int r : readers_[index]) {
    if (!at_[static_cast<size_t>(r)].empty()) offer(at_[static_cast<size_t>(r)], r, -1);
  }
  const Evictable& value = problem_.values[index];
  for (const int r : {value.recipe, value.page}) {
    if (r >= 0 && !at_[static_cast<size_t>(r)].empty()) offer(at_[static_cast<size_t>(r)], r, r);
  }
  return previous;
}

// ---- changes
// --------------------------------------------------------------------------------------------------------

void Liveness::insert(int t, int r) {
  const int b = block_of_[static_cast<size_t>(t)];
  const auto& blocks = at_[static_cast<size_t>(r)];
  if (std::binary_search(blocks.begin(), blocks.end(), b)) return;
  const Key key = keyOf(b, r);
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  for (const int v : replay.outputs) {
    if (!nextEvent(v, key).touches) continue;
    const Previous previous = previousEvent(v, key);
    addSpan(v, previous, b, -1);
    if (previous.maker >= 0) suspects_.push_back({previous.block, previous.maker});
  }
  for (const int u : replay.inputs) {
    if (!nextEvent(u, key).touches) addSpan(u, previousEvent(u, key), b, 1);
  }
  place(r, b);
  changes_.push_back({.kind = Change::kInsert, .first = r, .last = b});
  count(r, 1);
  markStale(b);
  suspects_.push_back({b, r});
}

void Liveness::remove(int t, int r) {
  const int b = block_of_[static_cast<size_t>(t)];
  const auto& blocks = at_[static_cast<size_t>(r)];
  if (!std::binary_search(blocks.begin(), blocks.end(), b)) return;
  displace(r, b);
  changes_.push_back({.kind = Change::kRemove, .first = r, .last = b});
  count(r, -1);
  markStale(b);
  const Key key = keyOf(b, r);
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  for (const int v : replay.outputs) {
    if (nextEvent(v, key).touches) addSpan(v, previousEvent(v, key), b, 1);
  }
  for (const int u : replay.inputs) {
    if (nextEvent(u, key).touches) continue;
    const Previous previous = previousEvent(u, key);
    addSpan(u, previous, b, -1);
    if (previous.maker >= 0) suspects_.push_back({previous.block, previous.maker});
  }
}

void Liveness::place(int r, int b) {
  auto& blocks = at_[static_cast<size_t>(r)];
  blocks.insert(std::lower_bound(blocks.begin(), blocks.end(), b), b);
  auto& stage = plan_.by_stage[static_cast<size_t>(stage_of_block_[static_cast<size_t>(b)])];
  stage.insert(std::lower_bound(stage.begin(), stage.end(), r), r);
}

void Liveness::displace(int r, int b) {
  auto& blocks = at_[static_cast<size_t>(r)];
  blocks.erase(std::lower_bound(blocks.begin(), blocks.end(), b));
  auto& stage = plan_.by_stage[static_cast<size_t>(stage_of_block_[static_cast<size_t>(b)])];
  stage.erase(std::lower_bound(stage.begin(), stage.end(), r));
}

// v is resident (sign 1) or no longer (-1) from one event up to another, in block `to`.
void Liveness::addSpan(int v, const Previous& from, int to, int sign) {
  const Evictable& value = problem_.values[static_cast<size_t>(v)];
  const int64_t bytes = sign * value.bytes;
  if (from.block < 0 && value.starts_away) wrong_start_ += bytes;
  if (from.block >= 0) markStale(from.block);
  markStale(to);
  if (from.block == to) return;
  const auto first = static_cast<size_t>(from.block + 1), last = static_cast<size_t>(to);
  for (size_t b = first; b < last; ++b) {
    live_bytes_[b] += bytes;
    excess_ -= excessAt(b);
    need_[b] += bytes;
    excess_ += excessAt(b);
  }
  live_bytes_[last] += bytes;
  changes_.push_back({.kind = Change::kSpan, .first = from.block + 1, .last = to, .bytes = bytes});
  work_ += to - from.block;
}

void Liveness::markStale(int b) {
  if (is_stale_[static_cast<size_t>(b)]) return;
  is_stale_[static_cast<size_t>(b)] = 1;
  stale_.push_back(b);
}

void Liveness::settle() {
  while (!suspects_.empty()) {
    const auto [block, r] = suspects_.back();
    suspects_.pop_back();
    const auto& blocks = at_[static_cast<size_t>(r)];
    if (!std::binary_search(blocks.begin(), blocks.end(), block)) continue;
    const auto& outputs = problem_.replays[static_cast<size_t>(r)].outputs;
    const bool useful =
        std::any_of(outputs.begin(), outputs.end(),
                    [&, at = keyOf(block, r)](int v) { return nextEvent(v, at).touches; });
    if (!useful) remove(stage_of_block_[static_cast<size_t>(block)], r);
  }
  for (const int b : stale_) {
    is_stale_[static_cast<size_t>(b)] = 0;
    refresh(b);
  }
  stale_.clear();
  if (generators_changed_) sumExcess();
}

// The steps of a block from its last to its first, from what is resident behind it.
void Liveness::refresh(int b) {
  const auto index = static_cast<size_t>(b);
  const int t = stage_of_block_[index];
  const Stage& stage = problem_.stages[static_cast<size_t>(t)];
  ++round_;
  int64_t bytes = live_bytes_[index + 1];
  const Key end = keyOf(b, birth());
  const auto resident = [&](int v) -> char& {
    const auto place = static_cast<size_t>(v);
    if (seen_[place] != round_) {
      seen_[place] = round_;
      resident_[place] = nextEvent(v, end).touches;
    }
    return resident_[place];
  };
  const auto leave = [&](int v) {
    if (resident(v)) bytes -= problem_.values[static_cast<size_t>(v)].bytes;
    resident(v) = 0;
  };
  const auto stay = [&](int v) {
    if (!resident(v)) bytes += problem_.values[static_cast<size_t>(v)].bytes;
    resident(v) = 1;
  };
  for (const int v : stage.born) leave(v);
  for (const int u : stage.needs) stay(u);
  int64_t need = stage.fixed_during_bytes + bytes;
  const auto& replays = plan_.by_stage[static_cast<size_t>(t)];
  for (size_t i = replays.size(); i-- > 0;) {
    const Replay& replay = problem_.replays[static_cast<size_t>(replays[i])];
    for (const int v : replay.outputs) leave(v);
    for (const int u : replay.inputs) stay(u);
    need = std::max(need, stage.fixed_before_bytes + replay.replay_bytes + bytes);
  }
  if (quiet_[index] > 0) need = std::max(need, quiet_[index] + bytes);
  work_ += kWorkOfBlock * static_cast<int64_t>(1 + replays.size());
  if (need == need_[index]) return;
  changes_.push_back({.kind = Change::kNeed, .first = b, .bytes = need_[index]});
  excess_ -= excessAt(index);
  need_[index] = need;
  excess_ += excessAt(index);
}

// ---- totals
// --------------------------------------------------------------------------------------------------------

int64_t Liveness::excessAt(size_t b) const {
  return std::max<int64_t>(0, need_[b] + generators_[b] - budget_);
}

void Liveness::sumExcess() {
  excess_ = 0;
  for (size_t b = 0; b < need_.size(); ++b) excess_ += excessAt(b);
}

int64_t Liveness::peakBytes() const {
  int64_t peak = problem_.start_bytes;
  for (size_t b = 0; b < need_.size(); ++b) peak = std::max(peak, need_[b] + generators_[b]);
  return wrong_start_ > 0 ? kNever : peak;
}

void Liveness::count(int r, int by) {
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  seconds_ += by * replay.seconds;
  cost_ += by * (replay.cost + (replay.is_page ? problem_.costOfWakeUp() : 0));
  const size_t used = at_[static_cast<size_t>(r)].size();
  const bool first_or_last = used == (by > 0 ? 1 : 0);
  if (!first_or_last) return;
  if (replay.once_cost > 0) {
    seconds_ += by * replay.once_seconds;
    cost_ += by * (replay.once_cost + problem_.costOfWakeUp());
  }
  if (replay.random_stages.empty()) return;
  if (!generators_changed_) {
    saved_generators_ = generators_;
    generators_changed_ = true;
  }
  for (const int p : replay.random_stages) {
    for (auto b = static_cast<size_t>(block_of_[static_cast<size_t>(p)]); b < generators_.size();
         ++b) {
      generators_[b] += by * problem_.generator_bytes;
    }
  }
}

void Liveness::keep() {
  changes_.clear();
  generators_changed_ = false;
  saved_seconds_ = seconds_;
  saved_cost_ = cost_;
  saved_wrong_start_ = wrong_start_;
  saved_excess_ = excess_;
}

void Liveness::undo() {
  for (size_t i = changes_.size(); i-- > 0;) {
    const Change& change = changes_[i];
    switch (change.kind) {
      case Change::kInsert:
        displace(change.first, change.last);
        break;
      case Change::kRemove:
        place(change.first, change.last);
        break;
      case Change::kSpan:
        for (int b = change.first; b < change.last; ++b) {
          live_bytes_[static_cast<size_t>(b)] -= change.bytes;
          need_[static_cast<size_t>(b)] -= change.bytes;
        }
        live_bytes_[static_cast<size_t>(change.last)] -= change.bytes;
        break;
      case Change::kNeed:
        need_[static_cast<size_t>(change.first)] = change.bytes;
        break;
    }
  }
  if (generators_changed_) generators_ = saved_generators_;
  seconds_ = saved_seconds_;
  cost_ = saved_cost_;
  wrong_start_ = saved_wrong_start_;
  excess_ = saved_excess_;
  keep();
}

}  // namespace poet::planner
