// How the executor leaves a plan: for good, for another plan, or for one value that is touched.
#include <algorithm>
#include <utility>

#include "graph/error.h"
#include "runtime/executor.h"
#include "runtime/plan_join.h"
#include "trace/tensor_args.h"

namespace poet {

// What fails is tried once more: what is not back at a step's end is lost, and memory may have been
// short for a moment only, or for what came back before.
void Executor::restoreAll(bool keep_away_between_steps) {
  std::exception_ptr first;
  const auto restore = [&] {
    first = nullptr;
    const std::vector<ValueId> away = residency_.away();
    for (ValueId v : away) {
      const Residency::Entry& entry = residency_[v];
      if (!entry.away || entry.ref.expired()) continue;
      if (keep_away_between_steps && plan_->isAwayBetweenSteps(v) && pager_.hasCopy(v)) continue;
      try {
        bringBack(v);
        most_restored_ = std::max(most_restored_, bytesThere());
        dropTemporaries();
      } catch (...) {
        dropTemporaries();
        if (!first) first = std::current_exception();
      }
    }
  };
  restore();
  if (first) restore();
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index)
    residency_[v].hold.reset();
  root_holds_.clear();
  if (first) std::rethrow_exception(first);
}

int64_t Executor::restoredExcess(int64_t more) const {
  const std::optional<int64_t> budget = plan_->schedule().ram_budget_bytes;
  return most_restored_ == 0 || !budget ? 0 : most_restored_ + more - *budget;
}

// What the step has in memory by what is known of its values.
int64_t Executor::bytesThere() const {
  const Graph& graph = plan_->graph();
  int64_t bytes = unshownBytes();
  for (ValueId v(0); v.index < graph.numValues(); ++v.index) {
    const auto i = static_cast<size_t>(v.index);
    const OpId from = graph.value(v).producer.valid() ? graph.value(v).producer
                                                      : plan_->recording().first_shown[i];
    const bool is_shown = static_cast<size_t>(from.index) < k_;
    if (is_shown && residency_[v].resident && (residency_.isAvailable(v) || residency_[v].hold))
      bytes += graph.value(v).bytes;
  }
  return bytes;
}

void Executor::touchStorage(c10::StorageImpl* storage) {
  const ValueId v = residency_.valueOf(storage);
  if (!v.valid()) return;
  if (residency_[v].away) {
    bringBackUnplanned(v);
    stayed_.push_back(v);
  }
  residency_[v].pinned = true;
  if (!pager_.hasCopy(v)) return;
  pager_.drop(v);  // it may be written now, and then the copy is of no use
  keepInMemory(v, residency_[v].ref.lock());
}

namespace {

// By recipe: whether it reads one of those, or what is made from one.
std::vector<bool> readersOf(const std::vector<ValueId>& written, const RecipeTable& table) {
  const auto& recipes = table.recipes();
  std::vector<bool> reads(recipes.size(), false);
  const auto is_stale = [&](ValueId input) {
    const int of = table.recipeOf(input);
    return (of >= 0 && reads[static_cast<size_t>(of)]) ||
           std::find(written.begin(), written.end(), input) != written.end();
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < recipes.size(); ++r) {
      if (reads[r]) continue;
      reads[r] = std::any_of(recipes[r].inputs.begin(), recipes[r].inputs.end(), is_stale);
      changed |= reads[r];
    }
  }
  return reads;
}

}  // namespace

// Note [Written elsewhere]
// No replay gives again what was made from a value before it was written where no op of the plan
// says so. What can still be reached, and has no copy in the store, comes back while it can and
// stays for the rest of the step, and so does what is made later: it may be made from what was made
// before the write and has gone. What nobody holds any more is only there for replays of what
// stayed, and neither are needed: recompute() leaves them out, and canRecompute() says no.
void Executor::expectWrite(c10::StorageImpl* storage) {
  const ValueId value = residency_.valueOf(storage);
  if (!value.valid() || isWrittenElsewhere(value)) return;
  std::vector<ValueId> written = written_elsewhere_;
  written.push_back(value);
  const std::vector<bool> reads = readersOf(written, plan_->recipes());
  const std::vector<ValueId> away = residency_.away();
  for (const ValueId v : away) {
    const int recipe = plan_->recipes().recipeOf(v);
    if (recipe < 0 || !reads[static_cast<size_t>(recipe)] || residency_[v].ref.expired() ||
        pager_.hasCopy(v))
      continue;
    bringBackUnplanned(v);
    stayed_.push_back(v);
  }
  written_elsewhere_ = std::move(written);
  reads_written_ = readersOf(written_elsewhere_, plan_->recipes());
}

// Whether the recipe would not give again what it gave.
bool Executor::isStale(int recipe) const {
  return recipe >= 0 && !reads_written_.empty() && reads_written_[static_cast<size_t>(recipe)];
}

bool Executor::isWrittenElsewhere(ValueId v) const {
  return std::find(written_elsewhere_.begin(), written_elsewhere_.end(), v) !=
         written_elsewhere_.end();
}

bool Executor::countsOn(c10::StorageImpl* storage) const {
  const ValueId value = residency_.valueOf(storage);
  if (!value.valid()) return false;
  const std::vector<bool> reads = readersOf({value}, plan_->recipes());
  const auto is_concerned = [&](ValueId v) {
    const int recipe = plan_->recipes().recipeOf(v);
    return v == value || (recipe >= 0 && reads[static_cast<size_t>(recipe)]);
  };
  for (ValueId v(0); v.index < plan_->graph().numValues(); ++v.index) {
    if (residency_[v].away && !pager_.hasCopy(v) && is_concerned(v)) return true;
  }
  const auto& before = plan_->schedule().before;
  return std::any_of(before.begin() + static_cast<std::ptrdiff_t>(k_), before.end(),
                     [&](const std::vector<Action>& actions) {
                       return std::any_of(actions.begin(), actions.end(), [&](const Action& one) {
                         return one.kind == ActionKind::kFree && is_concerned(ValueId(one.arg));
                       });
                     });
}

void Executor::touch(const c10::IValue* args, size_t count) {
  forEachTensor(args, count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t)) touchStorage(t.storage().unsafeGetStorageImpl());
    return true;
  });
}

// ------------------------------------------------------------------------------------------------
// for whoever takes over

void Executor::settleTransfers() {
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index) {
    settleCopy(v);
    pager_.cancelRead(v);
  }
}

std::vector<bool> Executor::heldOnly() const {
  std::vector<bool> result(residency_.size(), false);
  for (size_t v = 0; v < result.size(); ++v) {
    const Residency::Entry& entry = residency_[ValueId(static_cast<int64_t>(v))];
    const StorageHold storage = entry.ref.lock();
    if (!storage) continue;
    const bool as_root = root_holds_.holdsStorage(ValueId(static_cast<int64_t>(v)));
    result[v] = storage.use_count() == size_t{1} + static_cast<bool>(entry.hold) + as_root;
  }
  return result;
}

std::vector<int64_t> Executor::shifts() const {
  std::vector<int64_t> result(plan_->graph().values().size(), 0);
  for (size_t v = 0; v < std::min(result.size(), residency_.size()); ++v)
    result[v] = shiftOf(ValueId(static_cast<int64_t>(v)));
  return result;
}

OpRecords Executor::takeRecords(size_t done) {
  OpRecords taken = std::exchange(records_, OpRecords());
  taken.resize(done);
  return taken;
}

OpRecords Executor::exchangeRecords(OpRecords records) {
  return std::exchange(records_, std::move(records));
}

// Gradients that the plan takes to be there may have been set to None: that is how steps that begin
// alike come to differ.
int64_t Executor::unshownBytes() const {
  const Graph& graph = plan_->graph();
  const Recording& recording = plan_->recording();
  std::vector<bool> is_none(graph.values().size(), false);
  for (const OutsideValue& outside : recording.outside) {
    if (!outside.is_gradient) continue;
    const auto parameter = outside.parameter.lock();
    is_none[static_cast<size_t>(outside.value.index)] =
        !parameter || !at::Tensor(parameter).grad().defined();
  }
  int64_t bytes = graph.baseBytes();
  for (ValueId v(0); v.index < graph.numValues(); ++v.index) {
    const auto i = static_cast<size_t>(v.index);
    if (static_cast<size_t>(recording.first_shown[i].index) < k_ || graph.value(v).producer.valid())
      continue;
    const bool gone = graph.value(v).death < OpId(static_cast<int64_t>(k_)) || is_none[i];
    if (!gone && !residency_[v].away) bytes += graph.value(v).bytes;
  }
  return bytes;
}

// What comes now numbers such values anew. The op at which the plan is left may have been found to
// be the next one: what it is the first to show is known then, and not shown.
void Executor::handOverUnshown() {
  const std::vector<OpId>& first_shown = plan_->recording().first_shown;
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index) {
    const auto i = static_cast<size_t>(v.index);
    const bool is_to_come =
        i < first_shown.size() && static_cast<size_t>(first_shown[i].index) >= k_;
    if (residency_[v].presumed || (residency_[v].bound && is_to_come)) disown(v);
  }
}

namespace {

// Where a plan has its values just before the actions of op k.
PlannedState stateBefore(const CompiledPlan& plan, size_t k) {
  PlannedState state(plan.recording(), plan.schedule());
  state.runTo(k);
  return state;
}

}  // namespace

bool Executor::isReadyFor(const CompiledPlan& plan) const {
  const PlannedState planned = stateBefore(plan, k_);
  const Graph& graph = plan.graph();
  const size_t both = std::min(planned.size(), residency_.size());
  for (size_t v = 0; v < both; ++v) {
    const ValueId id(static_cast<int64_t>(v));
    const OpId producer = graph.values()[v].producer;
    if (!producer.valid() ? residency_[id].away
                          : static_cast<size_t>(producer.index) < k_ && planned.isResident(id) &&
                                !residency_.isAvailable(id) &&
                                (planned.isRetained(id) || !residency_[id].ref.expired()))
      return false;
  }
  return true;
}

bool Executor::canSwitchTo(const CompiledPlan& plan) const {
  const PlannedState planned = stateBefore(plan, k_);
  std::vector<bool> asked(plan.recipes().recipes().size(), false);
  const size_t both = std::min(planned.size(), residency_.size());
  for (size_t v = 0; v < both; ++v) {
    const ValueId id(static_cast<int64_t>(v));
    const OpId producer = plan.graph().values()[v].producer;
    if (!producer.valid() || static_cast<size_t>(producer.index) >= k_) continue;
    const bool is_wanted =
        (planned.isResident(id) && planned.isRetained(id)) || !residency_[id].ref.expired();
    const bool is_there =
        residency_.isAvailable(id) || pager_.hasCopy(id) || pager_.isBeingWritten(id);
    if (is_wanted && !is_there && !canRecompute(plan, id, asked)) return false;
  }
  return true;
}

// Values that no op has shown yet have other numbers in another plan: what was presumed of them is
// presumed anew. What the plan does not page is as if it had not been presumed.
void Executor::renumberPresumed(const std::vector<Presumed>& values) {
  std::vector<std::pair<StorageHold, PageCopy>> away;
  std::vector<c10::StorageImpl*> written;
  std::erase_if(written_elsewhere_, [&](ValueId v) {
    if (!residency_[v].presumed) return false;
    written.push_back(residency_[v].address);
    return true;
  });
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index) {
    const Residency::Entry& entry = residency_[v];
    if (!entry.bound || !entry.presumed) continue;
    StorageHold storage = entry.ref.lock();
    if (storage && entry.away) {
      away.emplace_back(std::move(storage), pager_.give(v));
    } else {
      pager_.drop(v);
    }
    residency_.unbind(v);
  }
  residency_.resize(std::max(residency_.size(), plan_->graph().values().size()));
  for (auto& [storage, copy] : away) {
    const auto found = std::find_if(values.begin(), values.end(), [&](const Presumed& one) {
      return one.storage == storage && plan_->pagesValue(one.value);
    });
    if (found != values.end() && residency_.presume(found->value, storage, true)) {
      pager_.adopt(found->value, copy);
      continue;
    }
    between_->add(storage, copy);
  }
  for (const Presumed& one : values) residency_.presume(one.value, one.storage, false);
  for (c10::StorageImpl* storage : written) {
    if (const ValueId v = residency_.valueOf(storage); v.valid()) written_elsewhere_.push_back(v);
  }
}

void Executor::switchTo(std::shared_ptr<const CompiledPlan> plan,
                        const std::vector<Presumed>& values) {
  plan_ = std::move(plan);
  ++counters_.switches;
  verify_.noteSwitch();  // the two count different things as the base
  const Graph& graph = plan_->graph();
  // Values are numbered in the order in which they are shown, so those shown so far have the same
  // numbers.
  renumberPresumed(values);
  if (!written_elsewhere_.empty()) reads_written_ = readersOf(written_elsewhere_, plan_->recipes());
  records_.resize(std::max(records_.size(), plan_->numOps()));
  root_holds_.switchTo(*plan_);
  const PlannedState planned = stateBefore(*plan_, k_);
  const auto known = [&](size_t v) {
    const OpId producer = graph.values()[v].producer;
    return producer.valid() ? static_cast<size_t>(producer.index) < k_
                            : residency_[ValueId(static_cast<int64_t>(v))].bound;
  };
  const auto free_unwanted = [&] {
    for (size_t v = 0; v < planned.size(); ++v) {
      const ValueId id(static_cast<int64_t>(v));
      if (!known(v) || planned.isResident(id) || !residency_.isAvailable(id)) continue;
      if (plan_->pagesValue(id)) pageOut(id);
      free(id);
    }
  };
  free_unwanted();
  for (size_t v = 0; v < planned.size(); ++v) {
    const ValueId id(static_cast<int64_t>(v));
    if (!known(v) || !planned.isResident(id)) continue;
    const bool wanted = planned.isRetained(id) || !residency_[id].ref.expired();
    const bool in_step = graph.values()[v].producer.valid();
    const bool comes_back = in_step ? wanted && !residency_.isAvailable(id) : residency_[id].away;
    if (comes_back) {
      bringBack(id);
      std::erase(temporaries_, id);
    }
    if (planned.isRetained(id)) {
      if (!residency_[id].hold) residency_[id].hold = residency_[id].ref.lock();
    } else if (in_step && !pager_.isBeingWritten(id)) {
      residency_[id].hold.reset();  // the program goes on to show it
    }
    if (comes_back) {  // what it was computed from goes before the next one comes
      dropTemporaries();
      free_unwanted();
    }
  }
}

}  // namespace poet
