// What the policy knows of the step so far; online_policy_memory.cpp makes room and brings back.
#include "runtime/online_policy.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/SmallVector.h>

#include <algorithm>

#include "graph/heap_bytes.h"
#include "runtime/executor.h"
#include "trace/op_traits.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

constexpr int64_t kLeastSide = int64_t{64} << 20;  // of the arena, before a step has shown more

int64_t generatorBytes() { return static_cast<int64_t>(sizeof(GeneratorState)); }

}  // namespace

// ------------------------------------------------------------------------------------------------
// a step's ends

void OnlinePolicy::setOptions(OnlineOptions options, OnlineHelp help) {
  options_ = std::move(options);
  help_ = std::move(help);
}

void OnlinePolicy::begin(const Recorder& recorder, int64_t resident_bytes, OverBudget over_budget,
                         RoomMaker* in_kernels) {
  end();
  recorder_ = &recorder;
  in_kernels_ = in_kernels;
  over_budget_ = over_budget;
  base_bytes_ = resident_bytes - AllocatorTap::liveBytes();
  AllocatorTap::resetMostLive();
  over_bytes_ = replays_ = generator_bytes_ = 0;
  clock_ = seconds_ = 0;
  made_room_ = store_failed_ = false;
  budget_error_.clear();
  over_text_.clear();
  scores_.emplace(scored_, options_.policy.cost);
  if (options_.policy.windows) {
    const int64_t most = std::max(kLeastSide, 2 * StepArena::counters().most_in_use);
    boundary_bytes_ = std::max(boundary_bytes_, std::min(options_.budget_bytes, most));
  }
  handed_out_.dropDead();
  if (over_budget_ != OverBudget::kGoOn) undo_.begin();
}

int64_t OnlinePolicy::ownBytes() const {
  constexpr size_t kNode = sizeof(*density_of_.begin()) + 2 * sizeof(void*);
  return heapBytes(entries_) + heapBytes(recipes_) + records_.ownBytes() + heapBytes(fixed_) +
         static_cast<int64_t>(density_of_.size()) * heapBlock(kNode);
}

void OnlinePolicy::end() {
  if (recorder_ != nullptr) {
    counters_.steps += made_room_;
    if (over_bytes_ > 0) ++counters_.steps_over_budget;
    counters_.most_over_bytes = std::max(counters_.most_over_bytes, over_bytes_);
  }
  recorder_ = nullptr;
  // The holds with them. Most calls run without the policy: it keeps no memory for the next one.
  entries_ = std::vector<Entry>();
  recipes_ = std::vector<LiveRecipe>();
  records_ = OpRecords();
  value_of_ = decltype(value_of_)();
  locked_.clear();
  fixed_.clear();
  from_before_.reset();
  scores_.reset();
  undo_.clear();
  side_.reset();
  running_ = kNoOp;
  replaying_ = depth_ = 0;
}

int64_t OnlinePolicy::residentBytes() const {
  return base_bytes_ + AllocatorTap::liveBytes() + generator_bytes_;
}

// ------------------------------------------------------------------------------------------------
// values

void OnlinePolicy::grow() {
  const size_t count = recorder_->numValues();
  if (entries_.size() >= count) return;
  entries_.resize(count);
  scores_->resize(count);
}

void OnlinePolicy::bind(ValueId v, const at::Tensor& t) {
  Entry& entry = at(v);
  if (entry.bound) return;
  c10::StorageImpl* storage = t.storage().unsafeGetStorageImpl();
  AllocatorTap::enroll(*storage);
  entry.ref = t.storage().getWeakStorageImpl();
  entry.address = storage;
  entry.bytes = static_cast<int64_t>(storage->nbytes());
  entry.bound = entry.alive = entry.resident = true;
  entry.pinned = handed_out_.has(storage);
  value_of_[storage] = v;
  scores_->noteTouch(v.index, clock_);
}

// The recorder tells of deaths before the next op only.
void OnlinePolicy::noteDeaths() {
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    if (at(v).alive && at(v).ref.expired()) died(v);
  }
}

void OnlinePolicy::died(ValueId v) {
  if (static_cast<size_t>(v.index) >= entries_.size() || !at(v).alive) return;
  Entry& entry = at(v);
  entry.alive = false;
  value_of_.erase(entry.address);
  entry.ref = noStorage();
  if (entry.resident && !entry.hold && !entry.own) leave(v);
  update(v);
}

// What is wanted because of v, and whether v's own memory is. What follows for what it needs may go
// back through a chain as long as the step.
void OnlinePolicy::update(ValueId changed) {
  c10::SmallVector<ValueId, 16> todo{changed};
  while (!todo.empty()) {
    const ValueId v = todo.pop_back_val();
    Entry& entry = at(v);
    if (!entry.bound) continue;
    if (!entry.alive && entry.wanted == 0) {
      if (!entry.resident && hasCopy(v)) pager_.drop(v);
      entry.own.reset();
      entry.banished = isBanished(entry);
    }
    const bool wanted = entry.wanted > 0 && entry.resident;
    if (wanted && !entry.hold && !entry.own && !entry.foreign) {
      if (const StorageHold storage = entry.ref.lock()) {
        entry.hold = AllocatorTap::BlockHold::of(storage->_mutable_data_ptr_no_checks().get());
        if (!entry.hold) entry.foreign = storage;
      }
    } else if (!wanted) {
      entry.hold = AllocatorTap::BlockHold();
      entry.foreign.reset();
    }
    if (entry.resident && !entry.alive && !entry.hold && !entry.own) leave(v);
    const bool active = (!entry.resident || entry.passing > 0) && entry.recipe >= 0 &&
                        !hasCopy(v) && (entry.alive || entry.wanted > 0);
    if (active == entry.active) continue;
    entry.active = active;
    for (const Need& need : recipes_[static_cast<size_t>(entry.recipe)].needs) {
      at(need.value).wanted += active ? 1 : -1;
      todo.push_back(need.value);
    }
  }
}

// Its data is no longer there.
void OnlinePolicy::leave(ValueId v) {
  at(v).resident = false;
  if (at(v).recipe >= 0 && !hasCopy(v) && !isBanished(at(v))) scores_->noteEviction(v.index);
}

void OnlinePolicy::lock(ValueId v) {
  ++at(v).locks;
  locked_.push_back(v);
}

void OnlinePolicy::unlockAll() {
  for (const ValueId v : locked_) {
    --at(v).locks;
    scores_->noteTouch(v.index, clock_);
  }
  locked_.clear();
  side_.reset();
  running_ = kNoOp;
}

// ------------------------------------------------------------------------------------------------
// ops

void OnlinePolicy::beforeKernel(OpId id, const c10::IValue* args, size_t count,
                                c10::DispatchKeySet below) {
  const AllocatorTap::HiddenGuard hidden;
  const RecordedOp& op = recorder_->op(id);
  const Op& node = recorder_->node(id);
  const OpTraits& traits = traitsOf(op.handle);
  grow();
  std::vector<ValueId> shown;
  size_t i = 0;
  forEachTensor(args, count, [&](const at::Tensor& t, int, int) {
    const ValueId v = op.in()[i++].value;
    if (!v.valid()) return true;
    bind(v, t);
    shown.push_back(v);
    return true;
  });
  // A view, too: nothing foretells what its memory is read by. See Note [Raw reads behind a view].
  const bool reads = !node.reads_no_data;
  std::vector<ValueId> read;
  if (reads) read = shown;
  for (const ValueId v : node.inputs) {  // those that are lent are not among its arguments
    if (at(v).bound && std::find(shown.begin(), shown.end(), v) == shown.end()) read.push_back(v);
  }
  if (!reads) {
    for (const ValueId v : shown) lock(v);
  }
  if (over_budget_ != OverBudget::kGoOn) guardUndo(id, args, count);
  {
    const auto no_more = c10::make_scope_exit([this] { bringing_for_ = kNoOp; });
    bringing_for_ = id;
    bringTogether(read);
    locked_.insert(locked_.end(), read.begin(), read.end());
    for (const ValueId x : node.mutates) beforeWrite(x);
  }
  records_.resize(static_cast<size_t>(id.index) + 1);
  if (node.replayable && options_.recompute) {
    OpRecord& record = records_.forCapture(static_cast<size_t>(id.index));
    const auto held = [this](ValueId v) { return recorder_->isHeldByRecords(v); };
    record.capture(op, held, traits.random, args, count, below);
    if (record.generatorState() != nullptr) generator_bytes_ += generatorBytes();
  }
  running_ = id;
  if (options_.policy.windows) side_.emplace(sideOf(op.handle));
  kernel_start_bytes_ = AllocatorTap::shownBytes();
}

void OnlinePolicy::afterKernel(OpId id, const c10::IValue* results, size_t count) {
  const RecordedOp& op = recorder_->op(id);
  clock_ += recorder_->node(id).seconds;
  grow();
  size_t i = 0;
  forEachTensor(results, count, [&](const at::Tensor& t, int, int) {
    const ValueId v = op.out()[i++].value;
    if (v.valid()) bind(v, t);
    return true;
  });
  unlockAll();
  noteRecipes(id);
}

void OnlinePolicy::afterRaise(OpId id) {
  records_.resize(static_cast<size_t>(id.index) + 1);
  const bool ran = running_ == id;
  unlockAll();
  if (ran) {
    noteRecipes(id);  // it is not replayable: what it may have written cannot be computed again
    return;
  }
  // Something did not come back for it: it has written nothing, and what needs the versions that
  // there are is still away.
  for (const ValueId x : recorder_->node(id).mutates) at(x).being_written = false;
}

// A state is 5 KB: what is smaller saves nothing by leaving.
void OnlinePolicy::dropUselessState(OpId id) {
  const Op& node = recorder_->node(id);
  OpRecord& record = records_.forCapture(static_cast<size_t>(id.index));
  if (!record.isSet() || record.generatorState() == nullptr) return;
  int64_t bytes = 0;
  for (const auto* values : {&node.outputs, &node.mutates}) {
    for (const ValueId v : *values) bytes += at(v).bytes;
  }
  if (bytes >= generatorBytes()) return;
  record.dropGeneratorState();
  generator_bytes_ -= generatorBytes();
}

void OnlinePolicy::noteRecipes(OpId id) {
  const Op& node = recorder_->node(id);
  if (node.random && node.replayable && options_.recompute) dropUselessState(id);
  std::vector<ValueId> made;
  for (const ValueId v : node.outputs) {
    if (recorder_->value(v).producer == id && at(v).bound) made.push_back(v);
  }
  std::sort(made.begin(), made.end());
  made.erase(std::unique(made.begin(), made.end()), made.end());
  if (!node.mutates.empty()) noteWrites(id, made.empty());
  if (!made.empty()) noteMade(id, made);
}

// Whether the op, once more, would do the same again.
bool OnlinePolicy::mayRunAgain(OpId id) const {
  const Op& node = recorder_->node(id);
  const OpRecord& record = records_[static_cast<size_t>(id.index)];
  return options_.recompute && node.replayable && record.isSet() &&
         !recorder_->readsWhatIsTrusted(node) &&
         (!node.random || record.generatorState() != nullptr);
}

void OnlinePolicy::noteMade(OpId id, const std::vector<ValueId>& made) {
  if (options_.policy.windows) noteDensity(id, made);
  const Op& node = recorder_->node(id);
  const auto recipe = static_cast<int32_t>(recipes_.size());
  LiveRecipe& fresh = recipes_.emplace_back();
  fresh.ops = {id};
  fresh.outputs = made;
  fresh.seconds = node.seconds;
  fresh.ok = mayRunAgain(id) && node.mutates == node.statistics;
  for (const ValueId v : made) at(v).recipe = recipe;
  if (fresh.ok) addNeeds(recipe, id);
  for (const ValueId v : made) scores_->noteChange(v.index);
}

// In-place ops belong to the recipe of what they write, if that is all that they do.
void OnlinePolicy::noteWrites(OpId id, bool makes_nothing) {
  const Op& node = recorder_->node(id);
  const int32_t recipe = at(node.mutates.front()).recipe;
  const bool chains = recipe >= 0 && makes_nothing && node.statistics.empty() && mayRunAgain(id) &&
                      std::all_of(node.mutates.begin(), node.mutates.end(),
                                  [&](ValueId v) { return at(v).recipe == recipe; });
  for (const ValueId v : node.mutates) {
    if (!chains && at(v).recipe >= 0) recipes_[static_cast<size_t>(at(v).recipe)].ok = false;
  }
  if (chains && recipes_[static_cast<size_t>(recipe)].ok) {
    recipes_[static_cast<size_t>(recipe)].ops.push_back(id);
    recipes_[static_cast<size_t>(recipe)].seconds += node.seconds;
    addNeeds(recipe, id);
    for (const ValueId v : recipes_[static_cast<size_t>(recipe)].outputs)
      scores_->noteChange(v.index);
  }
  for (const ValueId v : node.mutates) {
    ++at(v).version;
    at(v).being_written = false;
  }
}

// What an op of the recipe reads beside what the recipe makes; each once.
std::vector<ValueId> OnlinePolicy::readBy(OpId id, const LiveRecipe& recipe) const {
  std::vector<ValueId> read;
  if (recorder_->node(id).reads_no_data) return read;
  for (const Slot& slot : recorder_->op(id).in()) {
    const ValueId v = slot.value;
    if (v.valid() && !slot.statistic &&
        !std::binary_search(recipe.outputs.begin(), recipe.outputs.end(), v) &&
        std::find(read.begin(), read.end(), v) == read.end())
      read.push_back(v);
  }
  return read;
}

void OnlinePolicy::addNeeds(int32_t recipe, OpId id) {
  LiveRecipe& into = recipes_[static_cast<size_t>(recipe)];
  for (const ValueId v : readBy(id, into)) {
    const bool known = std::any_of(into.needs.begin(), into.needs.end(), [&](const Need& need) {
      return need.value == v && need.version == at(v).version;
    });
    if (known) continue;
    into.needs.push_back({v, at(v).version});
    std::vector<int32_t>& readers = at(v).readers;
    if (readers.empty() || readers.back() != recipe) readers.push_back(recipe);
  }
}

OnlinePolicy::LiveRecipe* OnlinePolicy::recipeOf(ValueId v) {
  const int32_t recipe = at(v).recipe;
  return recipe < 0 ? nullptr : &recipes_[static_cast<size_t>(recipe)];
}

// ------------------------------------------------------------------------------------------------
// BudgetError

// Whether the step can still be undone after this op, and what that takes.
void OnlinePolicy::guardUndo(OpId id, const c10::IValue* args, size_t count) {
  const RecordedOp& op = recorder_->op(id);
  const Op& node = recorder_->node(id);
  const OpTraits& traits = traitsOf(op.handle);
  bool possible = node.phase != Phase::kOptimizer && traits.known_pure;
  if (traits.rebinds_storage) possible = false;
  for (const Slot& slot : op.in()) {
    if (!slot.value.valid() && traits.writes_arg[static_cast<size_t>(slot.arg)]) possible = false;
  }
  for (const ValueId v : node.mutates) {
    if (recorder_->value(v).producer.valid()) continue;
    const StorageHold storage = at(v).ref.lock();
    possible = possible && storage && at(v).resident && undo_.noteWrite(storage);
  }
  if (traits.random) {
    const torch::jit::Stack stack(args, args + count);
    if (at::CPUGeneratorImpl* generator = generatorOf(stack)) undo_.noteGenerator(*generator);
  }
  if (possible) return;
  over_budget_ = OverBudget::kGoOn;
  undo_.clear();
}

// ------------------------------------------------------------------------------------------------
// departures

// Values of the executor, where they are now. dead[v]: only the executor holds it.
void OnlinePolicy::syncWith(Executor& executor, const std::vector<bool>& dead) {
  const Residency& residency = executor.residency();
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    if (static_cast<size_t>(v.index) >= residency.size() || !residency[v].bound) continue;
    const Residency::Entry& there = residency[v];
    Entry& entry = at(v);
    const StorageHold storage = there.ref.lock();
    entry.bound = true;
    entry.bytes = recorder_->value(v).bytes;
    entry.resident = storage && there.resident && !there.away;
    entry.pinned = there.pinned || there.kept;
    entry.alive = storage && !dead[static_cast<size_t>(v.index)];
    entry.content_hash = there.content_hash;
    if (!storage) continue;
    if (entry.alive) {
      entry.ref = WeakStorage(storage);
      entry.address = storage.get();
      value_of_[storage.get()] = v;
    }
    if (!entry.resident) continue;
    AllocatorTap::enroll(*storage);
    entry.own.reset();
    if (!entry.alive) entry.own = storage;
  }
}

void OnlinePolicy::takeOver(Executor& executor, size_t done) {
  const AllocatorTap::HiddenGuard hidden;
  const std::vector<bool> dead = executor.heldOnly();
  int64_t resident = base_bytes_ + AllocatorTap::liveBytes();  // of what has not been shown
  grow();
  records_ = executor.takeRecords(done);
  syncWith(executor, dead);
  for (const Entry& entry : entries_) resident += entry.resident ? entry.bytes : 0;
  base_bytes_ = resident - AllocatorTap::liveBytes();
  for (OpId id(0); static_cast<size_t>(id.index) < done; ++id.index) {
    for (const ValueId v : recorder_->node(id).inputs) scores_->noteTouch(v.index, clock_);
    clock_ += recorder_->node(id).seconds;
    noteRecipes(id);
  }
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    const Entry& entry = at(v);
    if (!entry.bound || entry.resident || !entry.alive || hasCopy(v) || recoverable(v)) continue;
    records_ = executor.exchangeRecords(std::move(records_));
    executor.bringBackNow(v);
    records_ = executor.exchangeRecords(std::move(records_));
    syncWith(executor, dead);
  }
  for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
    if (!at(v).bound || at(v).resident) continue;
    if (at(v).recipe >= 0 && !hasCopy(v)) scores_->noteEviction(v.index);
  }
  // What the program can reach first: of the rest, data and copies go where nothing wants them.
  for (const bool alive : {true, false}) {
    for (ValueId v(0); static_cast<size_t>(v.index) < entries_.size(); ++v.index) {
      if (at(v).bound && at(v).alive == alive) update(v);
    }
  }
}

}  // namespace poet
