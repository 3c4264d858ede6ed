#include "runtime/compiled_plan.h"

#include <algorithm>
#include <map>

#include "graph/error.h"
#include "schedule/simulator.h"

namespace poet {

CompiledPlan::CompiledPlan(std::shared_ptr<const Recording> recording,
                           std::shared_ptr<const Schedule> schedule, const DeviceProfile& profile)
    : recording_(std::move(recording)),
      schedule_(std::move(schedule)),
      recipes_(*recording_->graph) {
  schedule_->checkAgainst(graph());
  POET_CHECK_AS(ScheduleError, schedule_->hasPlan(), "expected a schedule with a plan, got status ",
                toString(schedule_->status), ": ", schedule_->message);
  resident_bytes_ = simulate(graph(), *schedule_, profile).resident_bytes;
  matchRecipes();
  packOps();
  markRecorded();
  findRecoverability();
}

void CompiledPlan::packOps() {
  const Graph& g = graph();
  for (size_t k = 0; k < recording_->ops.size(); ++k) {
    const RecordedOp& op = recording_->ops[k];
    const Op& node = g.ops()[k];
    const c10::FunctionSchema& schema = op.handle.schema();
    HotOp hot{};
    hot.schema = &schema;
    hot.in = static_cast<uint32_t>(slots_.size());
    hot.n_in = static_cast<uint16_t>(op.in.size());
    hot.n_out = static_cast<uint16_t>(op.out.size());
    hot.n_args = static_cast<uint16_t>(schema.arguments().size());
    hot.n_returns = static_cast<uint16_t>(schema.returns().size());
    hot.metadata_only = node.metadata_only && g.dataInputs(OpId(static_cast<int64_t>(k))).empty();
    hot.reads_no_data = node.reads_no_data;
    hot.has_before = !schedule_->before[k].empty();
    hot.has_after = !schedule_->after[k].empty();
    hot.has_dead = recording_->dead_begin[k] != recording_->dead_begin[k + 1];
    for (const Slot& slot : op.in) slots_.push_back({slot.hash, slot.value.index, false});
    for (const Slot& slot : op.out) {
      const bool made =
          slot.value.valid() && g.value(slot.value).producer == OpId(static_cast<int64_t>(k));
      slots_.push_back({slot.hash, slot.value.index, made});
    }
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

// See Note [Recoverability].
void CompiledPlan::findRecoverability() {
  const Graph& g = graph();
  const size_t n = g.ops().size();
  rescue_.resize(n + 1);
  roots_.resize(g.values().size());
  std::vector<OpId> until(recipes_.recipes().size());
  std::vector<std::vector<ValueId>> roots(recipes_.recipes().size());
  // An in-place op may read what was made after the chain's first op, so there is no one order:
  // iterate to the fixed point. Deaths do not bound it: roots are held.
  for (size_t r = 0; r < until.size(); ++r) until[r] = recipes_.recipes()[r].unchanged_until;
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < until.size(); ++r) {
      for (ValueId input : recipes_.recipes()[r].inputs) {
        const int from = recipes_.recipeOf(input);
        std::vector<ValueId> more;
        // An input that cannot be recomputed any more once this recipe can is as good as one
        // without a recipe.
        if (from >= 0 && until[static_cast<size_t>(from)] > recipes_.recipes()[r].lastOp()) {
          if (until[static_cast<size_t>(from)] < until[r]) {
            until[r] = until[static_cast<size_t>(from)];
            changed = true;
          }
          more = roots[static_cast<size_t>(from)];
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
  for (size_t v = 0; v < g.values().size(); ++v) {
    const int r = recipes_.recipeOf(ValueId(static_cast<int64_t>(v)));
    if (r < 0) continue;
    roots_[v] = roots[static_cast<size_t>(r)];
    const OpId last_chance = until[static_cast<size_t>(r)];
    if (last_chance < g.endOfStep() && g.values()[v].death >= last_chance) {
      rescue_[static_cast<size_t>(last_chance.index)].emplace_back(static_cast<int64_t>(v));
      hot_[static_cast<size_t>(last_chance.index)].has_rescue = true;
    }
  }
}

}  // namespace poet
