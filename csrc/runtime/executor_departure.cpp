// How the executor leaves a plan: for good, for another plan, or for one value that is touched.
#include <algorithm>

#include "graph/error.h"
#include "runtime/executor.h"
#include "trace/tensor_args.h"

namespace poet {

void Executor::restoreAll() {
  std::exception_ptr first;
  const std::vector<ValueId> away = residency_.away();
  for (ValueId v : away) {
    const Residency::Entry& entry = residency_[v];
    if (!entry.away || entry.ref.expired()) continue;
    try {
      bringBackUnplanned(v);
    } catch (...) {
      temporaries_.clear();
      if (!first) first = std::current_exception();
    }
  }
  for (ValueId v(0); static_cast<size_t>(v.index) < residency_.size(); ++v.index)
    residency_[v].hold.reset();
  for (auto& [count, hold] : root_holds_) {
    count = 0;
    hold.reset();
  }
  if (first) std::rethrow_exception(first);
}

void Executor::touchStorage(c10::StorageImpl* storage) {
  const ValueId v = residency_.valueOf(storage);
  if (!v.valid()) return;
  if (residency_[v].away) bringBackUnplanned(v);
  residency_[v].pinned = true;
}

void Executor::touch(const c10::IValue* args, size_t count) {
  forEachTensor(args, count, [&](const at::Tensor& t, int, int) {
    if (isManaged(t)) touchStorage(t.storage().unsafeGetStorageImpl());
    return true;
  });
}

// Where the plan has its values just before the actions of op k.
void Executor::expectedState(size_t k, std::vector<bool>& resident,
                             std::vector<bool>& retained) const {
  const Graph& graph = plan_->graph();
  const Recording& recording = plan_->recording();
  resident.assign(graph.values().size(), false);
  retained.assign(graph.values().size(), false);
  const auto apply = [&](const Action& action, size_t at) {
    const auto arg = static_cast<size_t>(action.arg);
    if (action.kind == ActionKind::kFree) resident[arg] = retained[arg] = false;
    if (action.kind == ActionKind::kRetain) retained[arg] = true;
    if (action.kind != ActionKind::kRecompute) return;
    for (ValueId v : plan_->recipes()
                         .recipes()[static_cast<size_t>(plan_->recipeOfAction(action.arg))]
                         .outputs) {
      resident[static_cast<size_t>(v.index)] = true;
      if (at > static_cast<size_t>(graph.lastShown(v).index))
        retained[static_cast<size_t>(v.index)] = true;
    }
  };
  for (size_t op = 0; op < k; ++op) {
    for (const Action& action : plan_->schedule().before[op]) apply(action, op);
    for (ValueId v : graph.madeBy(OpId(static_cast<int64_t>(op))))
      resident[static_cast<size_t>(v.index)] = true;
    for (const Action& action : plan_->schedule().after[op]) apply(action, op);
    for (auto i = recording.dead_begin[op]; i < recording.dead_begin[op + 1]; ++i) {
      const auto v = static_cast<size_t>(recording.dead_after[static_cast<size_t>(i)].index);
      if (!retained[v]) resident[v] = false;
    }
  }
}

void Executor::switchTo(std::shared_ptr<const CompiledPlan> plan) {
  plan_ = std::move(plan);
  ++counters_.switches;
  const Graph& graph = plan_->graph();
  // Values are numbered in the order in which they are shown, so those shown so far have the same
  // numbers.
  residency_.resize(graph.values().size());
  records_.resize(std::max(records_.size(), plan_->numOps()));
  root_holds_.resize(std::max(root_holds_.size(), graph.values().size()));
  std::vector<bool> resident, retained;
  expectedState(k_, resident, retained);
  const auto in_step = [&](size_t v) {
    return graph.values()[v].producer.valid() &&
           static_cast<size_t>(graph.values()[v].producer.index) < k_;
  };
  for (size_t v = 0; v < resident.size(); ++v) {
    const ValueId id(static_cast<int64_t>(v));
    if (in_step(v) && !resident[v] && residency_.isAvailable(id)) free(id);
  }
  for (size_t v = 0; v < resident.size(); ++v) {
    const ValueId id(static_cast<int64_t>(v));
    if (!in_step(v) || !resident[v]) continue;
    if (!residency_.isAvailable(id) && (retained[v] || !residency_[id].ref.expired())) {
      bringBack(id);
      std::erase(temporaries_, id);
    }
    if (retained[v] && !residency_[id].hold) residency_[id].hold = residency_[id].ref.lock();
  }
  dropTemporaries();
}

}  // namespace poet
