#include "graph/coarsening.h"

#include <algorithm>
#include <string>
#include <utility>

namespace poet {
namespace {

bool containsAll(std::span<const ValueId> list, std::span<const ValueId> some) {
  return std::all_of(some.begin(), some.end(), [&](ValueId v) { return contains(list, v); });
}

// Decides where runs begin.
class RunFinder {
 public:
  RunFinder(const Graph& graph, const RecipeTable& table)
      : graph_(graph),
        dying_(static_cast<size_t>(graph.numOps()) + 1),
        ends_recipe_(static_cast<size_t>(graph.numOps()) + 1) {
    for (int64_t i = 0; i < graph.numValues(); ++i) {
      const Value& value = graph.value(ValueId(i));
      if (value.bytes > 0 && value.death.valid())
        dying_[static_cast<size_t>(value.death.index)].push_back(ValueId(i));
    }
    for (const Recipe& recipe : table.recipes()) {
      for (const OpId until : {recipe.valid_until, recipe.recoverable_until}) {
        if (until > recipe.lastOp()) ends_recipe_[static_cast<size_t>(until.index)] = true;
      }
    }
  }

  std::vector<int64_t> run() {
    std::vector<int64_t> first;
    for (int64_t k = 0; k < graph_.numOps(); ++k) {
      if (k > 0 && joins(OpId(k))) continue;
      first.push_back(k);
      lead(OpId(k));
    }
    return first;
  }

 private:
  void lead(OpId op) {
    leader_ = op;
    touched_.clear();
    for (const std::span<const ValueId> list :
         {graph_.dataInputs(op), graph_.madeBy(op), std::span(graph_.op(op).mutates)})
      touched_.insert(touched_.end(), list.begin(), list.end());
    makes_ = op;
    if (!graph_.madeBy(op).empty()) return;
    const auto& written = graph_.op(op).mutates;
    makes_ = written.empty() ? kNoOp : graph_.value(written.front()).producer;
    for (const ValueId v : written) {
      if (graph_.value(v).producer != makes_) makes_ = kNoOp;
    }
  }

  // Conditions (a) to (e) of Note [What may be merged].
  bool joins(OpId id) const {
    const Op& op = graph_.op(id);
    const Op& leader = graph_.op(leader_);
    const bool only_reads = !op.metadata_only && op.mutates.empty();  // it has side effects
    if (!graph_.madeBy(id).empty() || !op.statistics.empty() || only_reads ||
        op.phase != leader.phase || op.workspace_bytes > leader.workspace_bytes)
      return false;
    const bool writes_the_same =
        containsAll(leader.mutates, op.mutates) ||
        (makes_.valid() && std::all_of(op.mutates.begin(), op.mutates.end(), [&](ValueId v) {
           return graph_.value(v).producer == makes_;
         }));
    return writes_the_same && containsAll(touched_, op.mutates) &&
           containsAll(touched_, graph_.dataInputs(id)) &&
           containsAll(touched_, dying_[static_cast<size_t>(id.index)]) &&
           !ends_recipe_[static_cast<size_t>(id.index)];
  }

  const Graph& graph_;
  std::vector<std::vector<ValueId>> dying_;  // by op
  std::vector<bool> ends_recipe_;            // by op
  OpId leader_;
  std::vector<ValueId> touched_;  // by the leader
  OpId makes_;  // the producer of all that the leader makes or writes to; kNoOp: there are several
};

// All but the runs' boundaries: lists of values without repetition, in the order of the ops.
class Merger {
 public:
  Merger(const Graph& fine, int64_t first, int64_t last) : fine_(fine) {
    merged_ = fine.op(OpId(first));
    if (first == last) return;
    merged_.inputs.clear();
    merged_.outputs.clear();
    merged_.mutates.clear();
    merged_.metadata_only = merged_.reads_no_data = false;
    merged_.seconds = merged_.host_seconds = merged_.flops = 0;
    merged_.replayable = true;
    merged_.name.clear();
    for (int64_t k = first; k <= last; ++k) add(OpId(k));
    if (merged_.name.empty()) merged_.name = fine.op(OpId(first)).name;
    std::sort(merged_.mutates.begin(), merged_.mutates.end());
  }

  Op take() { return std::move(merged_); }

 private:
  void add(OpId id) {
    const Op& op = fine_.op(id);
    merged_.seconds += op.seconds;
    merged_.host_seconds += op.host_seconds;
    merged_.flops += op.flops;
    const auto& read = fine_.dataInputs(id);
    for (const ValueId v : op.inputs) {
      if (contains(read, v) && !contains(made_, v)) include(v, merged_.inputs);
    }
    for (const ValueId v : op.mutates) {
      if (contains(made_, v)) continue;
      include(v, merged_.mutates);
      include(v, merged_.outputs);
    }
    for (const ValueId v : fine_.madeBy(id)) {
      made_.push_back(v);
      include(v, merged_.outputs);
    }
    if (op.metadata_only) return;
    merged_.replayable = merged_.replayable && op.replayable;
    merged_.random = merged_.random || op.random;
    merged_.name += (merged_.name.empty() ? "" : "+") + op.name;
  }

  static void include(ValueId v, std::vector<ValueId>& list) {
    if (!contains(list, v)) list.push_back(v);
  }

  const Graph& fine_;
  Op merged_;
  std::vector<ValueId> made_;
};

std::vector<int64_t> findRuns(const Graph& fine, const RecipeTable& table) {
  std::vector<int64_t> first = RunFinder(fine, table).run();
  first.push_back(fine.numOps());
  return first;
}

std::vector<int64_t> runOfEach(const std::vector<int64_t>& first) {
  std::vector<int64_t> run;
  for (size_t k = 0; k + 1 < first.size(); ++k)
    run.resize(static_cast<size_t>(first[k + 1]), static_cast<int64_t>(k));
  run.push_back(static_cast<int64_t>(first.size()) - 1);
  return run;
}

Graph mergeRuns(const Graph& fine, const std::vector<int64_t>& first,
                const std::vector<int64_t>& run_of) {
  std::vector<Op> ops;
  for (size_t k = 0; k + 1 < first.size(); ++k)
    ops.push_back(Merger(fine, first[k], first[k + 1] - 1).take());
  std::vector<Value> values = fine.values();
  for (Value& value : values) {
    for (OpId* at : {&value.producer, &value.death}) {
      if (at->valid()) *at = OpId(run_of[static_cast<size_t>(at->index)]);
    }
  }
  return {std::move(ops), std::move(values), fine.baseBytes()};
}

}  // namespace

Coarsening::Coarsening(const Graph& fine, const RecipeTable& table)
    : fine_(&fine),
      first_(findRuns(fine, table)),
      coarse_of_(runOfEach(first_)),
      graph_(mergeRuns(fine, first_, coarse_of_)) {}

}  // namespace poet
