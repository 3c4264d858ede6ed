#include "runtime/variants.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph/heap_bytes.h"
#include "runtime/plan_join.h"
#include "trace/allocator_tap.h"
#include "trace/recorder.h"

namespace poet {
namespace {

constexpr size_t kHistory = 64;
constexpr size_t kMaxJoined = 16;

// The newer recording with the least seconds and the greatest workspace of both. What one of them
// showed to be read or written past the operators the other may not have.
std::unique_ptr<Recording> merged(std::unique_ptr<Recording> newer, const Recording& older) {
  std::vector<Op> ops = newer->graph->ops();
  for (size_t k = 0; k < ops.size(); ++k) {
    const Op& before = older.graph->ops()[k];
    ops[k].seconds = std::min(ops[k].seconds, before.seconds);
    ops[k].host_seconds = std::min(ops[k].host_seconds, before.host_seconds);
    ops[k].workspace_bytes = std::max(ops[k].workspace_bytes, before.workspace_bytes);
    ops[k].replayable = ops[k].replayable && before.replayable;
  }
  std::vector<Value> values = newer->graph->values();
  const std::vector<Value>& before = older.graph->values();
  // What no op shows comes last, and has other numbers.
  const auto shown = [](const Recording& recording, size_t v) {
    return v < recording.first_shown.size() &&
           recording.first_shown[v] != recording.graph->endOfStep();
  };
  for (size_t v = 0; shown(*newer, v) && shown(older, v); ++v)
    values[v].evictable = values[v].evictable && before[v].evictable;
  newer->graph = std::make_shared<const Graph>(
      std::move(ops), std::move(values), newer->graph->baseBytes(), newer->graph->signature());
  return newer;
}

size_t commonPrefix(const Recording& a, const Recording& b) {
  size_t low = 0, high = std::min(a.ops.size(), b.ops.size());
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (a.prefix_hash[middle] == b.prefix_hash[middle]) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Where the newer call has the values from before the step. What a call that had departed could not
// tell of one (that it is an argument, say) the older one may have told.
std::vector<OutsideValue> found(std::vector<OutsideValue> newer,
                                const std::vector<OutsideValue>& older) {
  auto known = older.begin();
  for (OutsideValue& one : newer) {
    while (known != older.end() && known->value < one.value) ++known;
    if (known == older.end() || known->value != one.value) continue;
    if (one.input_position < 0) one.input_position = known->input_position;
    if (one.is_gradient || !known->is_gradient) continue;
    one.is_gradient = true;
    one.parameter = known->parameter;
  }
  return newer;
}

}  // namespace

int VariantSet::add(std::unique_ptr<Recording> recording, bool& newly_stable) {
  newly_stable = false;
  for (auto& [id, variant] : variants_) {
    if (variant.signature != recording->signature()) continue;
    variant.outside = found(recording->outside, variant.outside);
    if (variant.state == VariantState::kSeenOnce || variant.state == VariantState::kStable) {
      variant.recording = variant.recording == nullptr
                              ? std::move(recording)
                              : merged(std::move(recording), *variant.recording);
      newly_stable = variant.state == VariantState::kSeenOnce;
      variant.state = VariantState::kStable;
    }
    return id;
  }
  const int id = next_id_++;
  variants_[id].outside = recording->outside;
  variants_[id].signature = recording->signature();
  variants_[id].recording = std::move(recording);
  variants_[id].last_used = ++clock_;
  if (variants_.size() > kMaxVariants) dropLeastUsed(id);
  return id;
}

void VariantSet::dropLeastUsed(int keep) {
  auto least = variants_.end();
  for (auto it = variants_.begin(); it != variants_.end(); ++it) {
    if (it->first != keep &&
        (least == variants_.end() || it->second.last_used < least->second.last_used))
      least = it;
  }
  variants_.erase(least);
}

void VariantSet::noteStep(int id) {
  history_.push_back(id);
  if (history_.size() > kHistory) history_.erase(history_.begin());
  if (Variant* variant = find(id)) {
    variant->last_used = ++clock_;
    if (batch_) variant->batch = batch_;
  }
  batch_.reset();
}

// Any variant does where nothing is known of the batch, or none ran with such a one.
bool VariantSet::fitsBatch(int id) const {
  const auto found = variants_.find(id);
  if (found == variants_.end()) return false;
  if (!batch_ || found->second.batch == batch_) return true;
  return std::none_of(variants_.begin(), variants_.end(),
                      [this](const auto& one) { return one.second.batch == batch_; });
}

// The last step's variant, or better one that has a plan: variants usually start alike, and within
// a plan the budget holds.
int VariantSet::likeliestWithoutHistory() const {
  if (history_.empty()) return -1;
  int best = -1;
  std::pair<bool, int64_t> most{false, 0};
  for (const auto& [id, variant] : variants_) {
    const bool is_planned = variant.state == VariantState::kPlanned;
    const std::pair<bool, int64_t> worth{is_planned, variant.last_used};
    if (!fitsBatch(id) || (!is_planned && id != history_.back()) || worth <= most) continue;
    best = id;
    most = worth;
  }
  return best;
}

// By what most often followed the longest history that matches the present one; the latest of
// equals. By the latest alone a single stray step would be expected again and again, because what
// follows it looks just like what came before it.
int VariantSet::predict() const {
  struct Votes {
    int id;
    int count;
  };
  std::vector<Votes> votes;  // the latest first
  size_t best_length = 1;
  for (size_t end = history_.size(); end-- > 1;) {  // history_[end] followed history_[..end - 1]
    if (!fitsBatch(history_[end])) continue;
    size_t length = 0;
    while (length < end && history_[end - 1 - length] == history_[history_.size() - 1 - length])
      ++length;
    if (length < best_length) continue;
    if (length > best_length) votes.clear();
    best_length = length;
    const auto known = std::find_if(votes.begin(), votes.end(),
                                    [&](const Votes& one) { return one.id == history_[end]; });
    if (known == votes.end()) {
      votes.push_back({history_[end], 1});
    } else {
      ++known->count;
    }
  }
  if (votes.empty()) return likeliestWithoutHistory();
  return std::max_element(votes.begin(), votes.end(),
                          [](const Votes& a, const Votes& b) { return a.count < b.count; })
      ->id;
}

Variant* VariantSet::find(int id) {
  const auto found = variants_.find(id);
  return found == variants_.end() ? nullptr : &found->second;
}

bool VariantSet::keepValue(int id, ValueId value, uint64_t key) {
  Variant& variant = variants_.at(id);
  if (variant.recording == nullptr) return false;
  const Recording& old = *variant.recording;
  const auto v = static_cast<size_t>(value.index);
  if (v >= old.first_shown.size()) return false;
  const OpId shown = old.first_shown[v];
  if (Recorder::keyOf(old.prefix_hash[static_cast<size_t>(shown.index)], value) != key)
    return false;
  if (variant.plan) variant.plan->pin(value);
  std::vector<Value> values = old.graph->values();
  if (!values[v].evictable) return false;
  values[v].evictable = false;
  auto kept = std::make_shared<Recording>(old);
  kept->graph = std::make_shared<const Graph>(old.graph->ops(), std::move(values),
                                              old.graph->baseBytes(), old.graph->signature());
  variant.recording = std::move(kept);
  return variant.state == VariantState::kStable || variant.state == VariantState::kPlanned;
}

void VariantSet::letGoOfSeenOnce(const std::vector<int>& except) {
  for (auto& [id, variant] : variants_) {
    if (variant.state != VariantState::kSeenOnce ||
        std::find(except.begin(), except.end(), id) != except.end())
      continue;
    variant.recording.reset();
    variant.outside = std::vector<OutsideValue>();
  }
}

bool Variant::noteMore(int64_t bytes) {
  const bool grew_before = growth_per_step > 0;
  const int64_t steps = std::max<int64_t>(1, followed - followed_then);
  growth_per_step = (std::max<int64_t>(0, bytes - more_bytes) + steps - 1) / steps;
  more_bytes = bytes;
  followed_then = followed;
  return grew_before && growth_per_step > 0;
}

void VariantSet::setUnplannable(int id) {
  if (Variant* variant = find(id)) variant->state = VariantState::kUnplannable;
}

void VariantSet::setPlan(int id, std::shared_ptr<CompiledPlan> plan) {
  Variant* variant = find(id);
  if (variant == nullptr) return;  // dropped meanwhile
  movePlan(id, std::move(plan));
  variant->state = VariantState::kPlanned;
  variant->has_unchecked_base = true;
  variant->followed = variant->arena_bytes_then = variant->arena_peak_bytes = 0;
  variant->in_use_first_op = variant->in_use_end = variant->late_bytes = 0;
  variant->more_bytes = variant->followed_then = variant->growth_per_step = 0;
}

void VariantSet::movePlan(int id, std::shared_ptr<CompiledPlan> plan) {
  Variant* variant = find(id);
  if (variant == nullptr) return;
  shareRecordFlags(*plan);
  variant->plan = std::move(plan);
  variant->joined.clear();
  variant->script = std::make_shared<BlockScript>();
}

std::shared_ptr<CompiledPlan> VariantSet::joinedPlan(
    int to, const std::shared_ptr<const CompiledPlan>& from, size_t at) {
  Variant& variant = *find(to);
  std::erase_if(variant.joined, [](const auto& one) { return one.from.expired(); });
  for (const Variant::Joined& one : variant.joined) {
    if (one.from.lock() == from && one.at == at) return one.plan;
  }
  if (variant.joined.size() >= kMaxJoined) variant.joined.erase(variant.joined.begin());
  std::shared_ptr<CompiledPlan> plan = joinPlans(*from, *variant.plan, at);
  if (plan) shareRecordFlags(*plan);
  variant.joined.push_back({from, at, plan});
  return plan;
}

void VariantSet::checkBases() {
  for (auto& [id, variant] : variants_) variant.has_unchecked_base = true;
}

// A step may change over between plans that start alike: each then records what the other may have
// to replay.
void VariantSet::shareRecordFlags(CompiledPlan& plan) {
  for (auto& [id, variant] : variants_) {
    if (variant.state != VariantState::kPlanned) continue;
    const size_t common = commonPrefix(plan.recording(), *variant.recording);
    for (size_t k = 0; k < common; ++k) {
      if (plan.hot(k).record) variant.plan->recordAlso(k);
      if (variant.plan->hot(k).record) plan.recordAlso(k);
    }
  }
}

// Some have a recording, a graph or a schedule in common.
int64_t VariantSet::ownBytes() const {
  int64_t bytes = 0;
  std::set<const void*> counted;
  const auto add = [&](const auto* one) {
    if (one != nullptr && counted.insert(one).second) bytes += one->ownBytes();
  };
  const auto addRecording = [&](const Recording* recording) {
    add(recording);
    if (recording != nullptr) add(recording->graph.get());
  };
  const auto addPlan = [&](const CompiledPlan* plan) {
    if (plan == nullptr) return;
    add(plan);
    add(&plan->schedule());
    addRecording(&plan->recording());
  };
  for (const auto& [id, variant] : variants_) {
    addRecording(variant.recording.get());
    addPlan(variant.plan.get());
    for (const Variant::Joined& joined : variant.joined) addPlan(joined.plan.get());
    bytes += heapBytes(variant.outside) + heapBytes(variant.op_seconds) +
             heapBytes(variant.host_seconds);
    if (variant.script) bytes += StepArena::bytesOf(*variant.script);
  }
  return bytes;
}

}  // namespace poet
