#include "runtime/compiled_plan.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "graph/heap_bytes.h"
#include "schedule/simulator.h"
#include "trace/op_traits.h"

namespace poet {
namespace {

// Only bytes are asked of the simulator here: a profile that knows no store will do.
DeviceProfile withStore(DeviceProfile profile) {
  if (!profile.hasStore()) profile.store_read_rate = profile.store_write_rate = 1e9;
  return profile;
}

}  // namespace

CompiledPlan::CompiledPlan(std::shared_ptr<const Recording> recording,
                           std::shared_ptr<const Schedule> schedule, const DeviceProfile& profile)
    : recording_(std::move(recording)),
      schedule_(std::move(schedule)),
      profile_(profile),
      recipes_(*recording_->graph) {
  schedule_->checkAgainst(graph());
  POET_CHECK_AS(ScheduleError, schedule_->hasPlan(), "expected a schedule with a plan, got status ",
                toString(schedule_->status), ": ", schedule_->message);
  resident_bytes_ = simulate(graph(), *schedule_, withStore(profile)).resident_bytes;
  findPaged();
  matchRecipes();
  packOps();
  markRecorded();
  findRecoverability();
}

void CompiledPlan::packOps() {
  const Graph& g = graph();
  hot_.reserve(recording_->ops.size());
  for (size_t k = 0; k < recording_->ops.size(); ++k) {
    const RecordedOp& op = recording_->ops[k];
    const Op& node = g.ops()[k];
    const c10::FunctionSchema& schema = op.handle.schema();
    HotOp hot{};
    hot.schema = &schema;
    hot.slots = op.slots;
    hot.n_in = op.n_in;
    hot.n_out = op.n_out;
    hot.n_args = static_cast<uint16_t>(schema.arguments().size());
    hot.n_returns = static_cast<uint16_t>(schema.returns().size());
    hot.metadata_only = node.metadata_only && g.dataInputs(OpId(static_cast<int64_t>(k))).empty();
    hot.reads_no_data = node.reads_no_data;
    hot.has_before = !schedule_->before[k].empty();
    hot.has_after = !schedule_->after[k].empty();
    hot.mutates = !node.mutates.empty();
    hot.raises = op.raises;
    const OpTraits& traits = traitsOf(op.handle);
    hot.shaped_by_data = traits.shaped_by_data;
    hot.numbers = traits.repeatable && !hot.metadata_only ? op.numbers : 0;
    hot.has_dead = recording_->dead_begin[k] != recording_->dead_begin[k + 1];
    hot_.push_back(hot);
  }
}

void CompiledPlan::matchRecipes() {
  keeps_generator_.assign(graph().ops().size(), false);
  for (const std::vector<OpId>& chain : schedule_->recipes) {
    POET_CHECK_AS(ScheduleError, !chain.empty(), "the schedule has a recompute of no op");
    int found = -1;
    for (ValueId made : graph().madeBy(chain.front())) found = recipes_.recipeOf(made);
    POET_CHECK_AS(ScheduleError,
                  found >= 0 && recipes_.recipes()[static_cast<size_t>(found)].ops == chain,
                  "the schedule recomputes from op ", chain.front().index, " (",
                  graph().op(chain.front()).name, ") a chain that cannot be replayed as one");
    action_recipe_.push_back(found);
    for (OpId op : chain) {
      if (graph().op(op).random) keeps_generator_[static_cast<size_t>(op.index)] = true;
    }
  }
}

// Everything that could be needed to bring back what the plan frees.
void CompiledPlan::markRecorded() {
  const auto is_empty = [](const auto& actions) { return actions.empty(); };
  moves_nothing_ = std::all_of(schedule_->before.begin(), schedule_->before.end(), is_empty) &&
                   std::all_of(schedule_->after.begin(), schedule_->after.end(), is_empty);
  std::vector<bool> wanted(recipes_.recipes().size(), false);
  std::vector<int> todo;
  const auto want = [&](ValueId v) {
    const int r = recipes_.recipeOf(v);
    if (r < 0 || wanted[static_cast<size_t>(r)]) return;
    wanted[static_cast<size_t>(r)] = true;
    todo.push_back(r);
  };
  for (const auto& actions : schedule_->before) {
    for (const Action& action : actions) {
      if (action.kind == ActionKind::kFree) want(ValueId(action.arg));
    }
  }
  while (!todo.empty()) {
    const Recipe& recipe = recipes_.recipes()[static_cast<size_t>(todo.back())];
    todo.pop_back();
    for (OpId op : recipe.ops) hot_[static_cast<size_t>(op.index)].record = true;
    for (ValueId input : recipe.inputs) want(input);
  }
}

// See Note [Recoverability] in graph/recipes.h.
void CompiledPlan::findRecoverability() {
  const Graph& g = graph();
  std::vector<std::vector<ValueId>> rescue(g.ops().size() + 1);
  roots_ = IdLists(findRoots());
  const std::vector<bool> freed = findReturns();
  for (size_t v = 0; v < g.values().size(); ++v) {
    const int r = recipes_.recipeOf(ValueId(static_cast<int64_t>(v)));
    if (r < 0) continue;
    const OpId last_chance = recipes_.recipes()[static_cast<size_t>(r)].recoverable_until;
    const bool returns = last_return_[v] >= last_chance;
    if (!freed[v] || returns || last_chance >= g.endOfStep()) continue;
    rescue[static_cast<size_t>(last_chance.index)].emplace_back(static_cast<int64_t>(v));
    hot_[static_cast<size_t>(last_chance.index)].has_rescue = true;
  }
  rescue_ = IdLists(rescue);
}

// By recipe: values of the step that bringing its outputs back may need and that cannot be
// recomputed by then. They are held while such an output is away.
std::vector<std::vector<ValueId>> CompiledPlan::findRoots() const {
  const auto& recipes = recipes_.recipes();
  std::vector<std::vector<ValueId>> roots(recipes.size());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < recipes.size(); ++r) {
      for (ValueId input : recipes[r].inputs) {
        const auto from = static_cast<size_t>(recipes_.recipeOf(input));
        std::vector<ValueId> more;
        if (recipes_.recipeOf(input) >= 0 && recipes[r].isFedBy(recipes[from])) {
          more = roots[from];
        } else if (!isHeldByRecords(input)) {
          more = {input};
        }
        for (ValueId root : more) {
          if (std::find(roots[r].begin(), roots[r].end(), root) != roots[r].end()) continue;
          roots[r].push_back(root);
          changed = true;
        }
      }
    }
  }
  return roots;
}

// What goes to the store, and what goes there before the executor can have seen it.
void CompiledPlan::findPaged() {
  const Graph& g = graph();
  paged_.assign(g.values().size(), false);
  std::vector<bool> early(g.values().size(), false);
  for (const ValueId v : schedule_->away_between_steps) {
    paged_[static_cast<size_t>(v.index)] = early[static_cast<size_t>(v.index)] = true;
  }
  const auto note = [&](const Action& action, size_t k) {
    if (action.kind != ActionKind::kPageOut) return;
    const auto v = static_cast<size_t>(action.arg);
    paged_[v] = true;
    if (k < static_cast<size_t>(recording_->first_shown[v].index)) early[v] = true;
  };
  for (size_t k = 0; k < schedule_->before.size(); ++k) {
    for (const Action& action : schedule_->before[k]) note(action, k);
  }
  for (size_t k = 0; k < schedule_->after.size(); ++k) {
    for (const Action& action : schedule_->after[k]) {
      POET_CHECK_AS(ScheduleError,
                    action.kind == ActionKind::kRetain || action.kind == ActionKind::kPageOut,
                    "the schedule has a ", toString(action.kind), " after op ", k,
                    "; only retain and page_out may stand there");
      note(action, k);
    }
  }
  for (size_t v = 0; v < paged_.size(); ++v) {
    if (!paged_[v]) continue;
    stored_bytes_ = std::max<int64_t>(stored_bytes_, 0) + g.values()[v].bytes;
    if (early[v] && !g.values()[v].producer.valid())
      moved_early_.emplace_back(static_cast<int64_t>(v));
  }
}

// A schedule keeps recoverable what it brings back; what it abandons is the executor's business.
// What it pages has a copy in the store as long as all goes well, and is abandoned otherwise.
// Returns by value whether the schedule frees it at all.
std::vector<bool> CompiledPlan::findReturns() {
  const Graph& g = graph();
  std::vector<bool> freed(g.values().size(), false);
  last_return_.assign(g.values().size(), kNoOp);
  for (size_t k = 0; k < schedule_->before.size(); ++k) {
    for (const Action& action : schedule_->before[k]) {
      if (action.kind == ActionKind::kFree) freed[static_cast<size_t>(action.arg)] = true;
      if (action.kind != ActionKind::kRecompute) continue;
      const auto recipe = static_cast<size_t>(recipeOfAction(action.arg));
      for (ValueId v : recipes_.recipes()[recipe].outputs)
        last_return_[static_cast<size_t>(v.index)] = OpId(static_cast<int64_t>(k));
    }
  }
  return freed;
}

int64_t CompiledPlan::ownBytes() const {
  return static_cast<int64_t>(sizeof(*this)) + recipes_.ownBytes() + heapBytes(hot_) +
         heapBytes(action_recipe_) + rescue_.ownBytes() + roots_.ownBytes() +
         heapBytes(resident_bytes_) + heapBytes(keeps_generator_) + heapBytes(last_return_) +
         heapBytes(paged_) + heapBytes(moved_early_) + heapBytes(pinned_);
}

}  // namespace poet
