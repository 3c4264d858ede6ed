#include "planner/liveness.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace poet::planner {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
constexpr int64_t kWorkOfBlock =
    50;  // to find the need of a block again, against a block of a span
constexpr size_t kLanes = 4;
using Lanes = double __attribute__((vector_size(kLanes * sizeof(double))));

}  // namespace

Liveness::Liveness(const Problem& problem, const ReplayPlan& plan, int64_t budget_bytes)
    : problem_(problem),
      budget_(budget_bytes),
      width_(static_cast<int>(problem.replays.size()) + 2),
      plan_{std::vector<std::vector<int>>(problem.stages.size())},
      events_(problem.values.size()),
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
  for (int v = 0; v < problem_.numValues(); ++v) {
    const Evictable& value = problem_.values[static_cast<size_t>(v)];
    if (value.first_stage >= 0)
      addEvent(v, {.key = keyOf(block_of_[static_cast<size_t>(value.first_stage)], birth()),
                   .kind = Event::kBirth});
    for (const int t : value.use_stages)
      addEvent(v, {.key = keyOf(block_of_[static_cast<size_t>(t)], execution())});
  }
}

// Without any replay.
void Liveness::findPlain() {
  const size_t blocks = stage_of_block_.size();
  live_bytes_.assign(blocks + 1, 0);
  over_.assign(blocks, 0);
  generators_.assign(blocks, 0);
  is_stale_.assign(blocks, 0);
  for (size_t v = 0; v < problem_.values.size(); ++v) {
    const Evictable& value = problem_.values[v];
    if (value.use_stages.empty()) continue;
    const int born = value.first_stage < 0 ? -1 : block_of_[static_cast<size_t>(value.first_stage)];
    const int last = block_of_[static_cast<size_t>(value.use_stages.back())];
    live_bytes_[static_cast<size_t>(born + 1)] += static_cast<double>(value.bytes);
    live_bytes_[static_cast<size_t>(last + 1)] -= static_cast<double>(value.bytes);
    if (value.starts_away) wrong_start_ += value.bytes;
  }
  for (size_t b = 0; b < blocks; ++b) live_bytes_[b + 1] += live_bytes_[b];
  seconds_ = problem_.constant_seconds;
  cost_ = problem_.constant_cost;
  sumExcess();
  for (size_t b = 0; b < blocks; ++b) markStale(static_cast<int>(b));
}

// ---- events
// --------------------------------------------------------------------------------------------------------

bool Liveness::isTouchedNext(int v, Key after) const {
  const auto& events = events_[static_cast<size_t>(v)];
  const auto next = std::partition_point(events.begin(), events.end(),
                                         [&](const Event& event) { return event.key <= after; });
  return next != events.end() && next->kind == Event::kTouch;
}

Liveness::Previous Liveness::previousEvent(int v, Key before) const {
  const auto& events = events_[static_cast<size_t>(v)];
  const auto next = std::partition_point(events.begin(), events.end(),
                                         [&](const Event& event) { return event.key < before; });
  if (next == events.begin()) return {};
  const Event& event = *(next - 1);
  return {.block = static_cast<int>(event.key / width_), .maker = std::max(event.kind, -1)};
}

void Liveness::addEvent(int v, const Event& event) {
  auto& events = events_[static_cast<size_t>(v)];
  events.insert(std::partition_point(events.begin(), events.end(),
                                     [&](const Event& other) { return other.key < event.key; }),
                event);
}

void Liveness::dropEvent(int v, Key key) {
  auto& events = events_[static_cast<size_t>(v)];
  events.erase(std::partition_point(events.begin(), events.end(),
                                    [&](const Event& other) { return other.key < key; }));
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
    if (!isTouchedNext(v, key)) continue;
    const Previous previous = previousEvent(v, key);
    addSpan(v, previous, b, -1);
    if (previous.maker >= 0) suspects_.push_back({previous.block, previous.maker});
  }
  for (const int u : replay.inputs) {
    if (!isTouchedNext(u, key)) addSpan(u, previousEvent(u, key), b, 1);
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
    if (isTouchedNext(v, key)) addSpan(v, previousEvent(v, key), b, 1);
  }
  for (const int u : replay.inputs) {
    if (isTouchedNext(u, key)) continue;
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
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  for (const int v : replay.outputs) addEvent(v, {.key = keyOf(b, r), .kind = r});
  for (const int u : replay.inputs) addEvent(u, {.key = keyOf(b, r)});
}

void Liveness::displace(int r, int b) {
  auto& blocks = at_[static_cast<size_t>(r)];
  blocks.erase(std::lower_bound(blocks.begin(), blocks.end(), b));
  auto& stage = plan_.by_stage[static_cast<size_t>(stage_of_block_[static_cast<size_t>(b)])];
  stage.erase(std::lower_bound(stage.begin(), stage.end(), r));
  const Replay& replay = problem_.replays[static_cast<size_t>(r)];
  for (const int v : replay.outputs) dropEvent(v, keyOf(b, r));
  for (const int u : replay.inputs) dropEvent(u, keyOf(b, r));
}

// v is resident (sign 1) or no longer (-1) from one event up to another, in block `to`.
void Liveness::addSpan(int v, const Previous& from, int to, int sign) {
  const Evictable& value = problem_.values[static_cast<size_t>(v)];
  const int64_t added = sign * value.bytes;
  if (from.block < 0 && value.starts_away) wrong_start_ += added;
  if (from.block >= 0) markStale(from.block);
  markStale(to);
  if (from.block == to) return;
  const auto bytes = static_cast<double>(added);
  excess_ += addToLive(from.block + 1, to, bytes);
  live_bytes_[static_cast<size_t>(to)] += bytes;
  changes_.push_back({.kind = Change::kSpan, .first = from.block + 1, .last = to, .bytes = bytes});
  over_[static_cast<size_t>(to)] -= bytes;  // what the last block needs is found again
  work_ += to - from.block;
}

// To the live bytes of blocks [first, last), whose needs rise alike: what that adds to the excess.
double Liveness::addToLive(int first, int last, double bytes) {
  const auto end = static_cast<size_t>(std::max(first, last));
  auto b = static_cast<size_t>(first);
  const Lanes none{};
  Lanes sum{};
  for (; b + kLanes <= end; b += kLanes) {
    Lanes live, over;
    std::memcpy(&live, &live_bytes_[b], sizeof(live));
    std::memcpy(&over, &over_[b], sizeof(over));
    const Lanes before = live + over, after = before + bytes;
    live += bytes;
    std::memcpy(&live_bytes_[b], &live, sizeof(live));
    sum += (after > none ? after : none) - (before > none ? before : none);
  }
  double added = 0;
  for (size_t i = 0; i < kLanes; ++i) added += sum[i];
  for (; b < end; ++b) {
    const double before = live_bytes_[b] + over_[b];
    live_bytes_[b] += bytes;
    added += std::max(0.0, before + bytes) - std::max(0.0, before);
  }
  return added;
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
                    [&, at = keyOf(block, r)](int v) { return isTouchedNext(v, at); });
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
  auto bytes = static_cast<int64_t>(live_bytes_[index + 1]);
  const Key end = keyOf(b, birth());
  const auto resident = [&](int v) -> char& {
    const auto place = static_cast<size_t>(v);
    if (seen_[place] != round_) {
      seen_[place] = round_;
      resident_[place] = isTouchedNext(v, end);
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
  const double above = static_cast<double>(need - budget_) + generators_[index];
  const double live = live_bytes_[index];
  if (above - live == over_[index]) return;
  changes_.push_back({.kind = Change::kNeed, .first = b, .bytes = over_[index]});
  excess_ += std::max(0.0, above) - std::max(0.0, live + over_[index]);
  over_[index] = above - live;
}

// ---- totals
// --------------------------------------------------------------------------------------------------------

void Liveness::sumExcess() {
  excess_ = 0;
  for (size_t b = 0; b < over_.size(); ++b) excess_ += std::max(0.0, live_bytes_[b] + over_[b]);
}

int64_t Liveness::peakBytes() const {
  int64_t peak = problem_.start_bytes;
  for (size_t b = 0; b < over_.size(); ++b)
    peak = std::max(peak, budget_ + static_cast<int64_t>(live_bytes_[b] + over_[b]));
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
      const double bytes = by * static_cast<double>(problem_.generator_bytes);
      generators_[b] += bytes;
      over_[b] += bytes;
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
        for (int b = change.first; b <= change.last; ++b)
          live_bytes_[static_cast<size_t>(b)] -= change.bytes;
        over_[static_cast<size_t>(change.last)] += change.bytes;
        break;
      case Change::kNeed:
        over_[static_cast<size_t>(change.first)] = change.bytes;
        break;
    }
  }
  if (generators_changed_) {
    for (size_t b = 0; b < over_.size(); ++b) over_[b] += saved_generators_[b] - generators_[b];
    generators_ = saved_generators_;
  }
  seconds_ = saved_seconds_;
  cost_ = saved_cost_;
  wrong_start_ = saved_wrong_start_;
  excess_ = saved_excess_;
  keep();
}

}  // namespace poet::planner
