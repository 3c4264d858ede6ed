// See Note [Recipes and versions].
#include "graph/recipes.h"

#include <algorithm>
#include <set>
#include <utility>

#include "graph/cycles.h"
#include "graph/heap_bytes.h"

namespace poet {
namespace {

bool isAmong(const std::vector<ValueId>& sorted, ValueId v) {
  return std::binary_search(sorted.begin(), sorted.end(), v);
}

// Data that `op` reads in a replay: what it reads first, without running statistics.
std::vector<ValueId> replayInputs(const Graph& graph, OpId op) {
  std::vector<ValueId> inputs;
  const auto& all = graph.dataInputs(op);
  const auto& statistics = graph.op(op).statistics;
  std::set_difference(all.begin(), all.end(), statistics.begin(), statistics.end(),
                      std::back_inserter(inputs));
  return inputs;
}

// Collects the recipe of one producer, as far as its own ops decide it.
class RecipeBuilder {
 public:
  RecipeBuilder(const Graph& graph, OpId producer) : graph_(graph), producer_(producer) {}

  std::optional<Recipe> build() {
    const auto made = graph_.madeBy(producer_);
    recipe_.outputs.assign(made.begin(), made.end());
    if (recipe_.outputs.empty())
      return std::nullopt;  // its outputs alias inputs: nothing to bring back
    collectChain();
    if (!mayBeReplayed()) return std::nullopt;
    collectInputs();
    sumUp();
    recipe_.unchanged_until = readsWhatIsWrittenLater() ? recipe_.lastOp() : firstLaterWrite();
    recipe_.valid_until = recipe_.unchanged_until;
    return std::move(recipe_);
  }

 private:
  void collectChain() {
    std::set<OpId> chain = {producer_};
    for (ValueId v : recipe_.outputs)
      chain.insert(graph_.writersOf(v).begin(), graph_.writersOf(v).end());
    recipe_.ops.assign(chain.begin(), chain.end());
  }

  bool mayBeReplayed() const {
    const bool evictable = std::all_of(recipe_.outputs.begin(), recipe_.outputs.end(),
                                       [&](ValueId v) { return graph_.value(v).evictable; });
    return evictable && std::all_of(recipe_.ops.begin(), recipe_.ops.end(),
                                    [&](OpId op) { return mayRunAgain(op); });
  }

  // The producer may change its own running statistics (a replay leaves them alone) and nothing
  // else; a later op may change what the producer made and nothing else, and makes nothing.
  bool mayRunAgain(OpId id) const {
    const Op& op = graph_.op(id);
    if (!op.replayable) return false;
    if (id == producer_) return op.mutates == op.statistics;
    return graph_.madeBy(id).empty() && op.statistics.empty() &&
           std::all_of(op.mutates.begin(), op.mutates.end(),
                       [&](ValueId v) { return isOutput(v); });
  }

  void collectInputs() {
    std::set<ValueId> inputs;
    for (OpId op : recipe_.ops) {
      for (ValueId v : replayInputs(graph_, op)) {
        if (!isOutput(v)) inputs.insert(v);
      }
    }
    recipe_.inputs.assign(inputs.begin(), inputs.end());
  }

  void sumUp() {
    for (ValueId v : recipe_.outputs) recipe_.output_bytes += graph_.value(v).bytes;
    for (OpId id : recipe_.ops) {
      const Op& op = graph_.op(id);
      recipe_.workspace_bytes = std::max(recipe_.workspace_bytes, op.workspace_bytes);
      recipe_.seconds += op.seconds;
      recipe_.random = recipe_.random || op.random;
    }
  }

  // See Note [Passing versions].
  bool readsWhatIsWrittenLater() const {
    return std::any_of(recipe_.ops.begin(), recipe_.ops.end(), [&](OpId reader) {
      const std::vector<ValueId> read = replayInputs(graph_, reader);
      return std::any_of(read.begin(), read.end(), [&](ValueId v) {
        const auto& writers = graph_.writersOf(v);
        return !isOutput(v) && graph_.value(v).producer.valid() && !writers.empty() &&
               writers.back() > reader;
      });
    });
  }

  // "Before op w" is the last position at which an input still has the version from before w's
  // write.
  OpId firstLaterWrite() const {
    OpId first = graph_.endOfStep();
    for (OpId reader : recipe_.ops) {
      for (ValueId v : replayInputs(graph_, reader)) {
        if (isOutput(v)) continue;
        const auto& writers = graph_.writersOf(v);
        const auto next = std::upper_bound(writers.begin(), writers.end(), reader);
        if (next != writers.end()) first = std::min(first, *next);
      }
    }
    return first;
  }

  bool isOutput(ValueId v) const { return isAmong(recipe_.outputs, v); }

  const Graph& graph_;
  OpId producer_;
  Recipe recipe_;
};

// All recipes, and the removal of those that can never run.
class RecipeSet {
 public:
  explicit RecipeSet(const Graph& graph)
      : graph_(graph), recipe_of_(static_cast<size_t>(graph.numValues()), -1) {
    for (int64_t k = 0; k < graph.numOps(); ++k) {
      auto recipe = RecipeBuilder(graph, OpId(k)).build();
      if (!recipe) continue;
      for (ValueId v : recipe->outputs) recipeOf(v) = static_cast<int>(recipes_.size());
      recipes_.push_back(std::move(*recipe));
    }
    alive_.assign(recipes_.size(), true);
  }

  void prune() {
    endAtDeaths();
    const auto feeders_of = [this](int r) { return feeders(r); };
    for (int r : nodesOnCycles(static_cast<int>(recipes_.size()), feeders_of)) drop(r);
    endAtDeaths();
  }

  std::vector<Recipe> take() {
    std::vector<Recipe> kept;
    for (size_t r = 0; r < recipes_.size(); ++r) {
      if (alive_[r]) kept.push_back(std::move(recipes_[r]));
    }
    return kept;
  }

 private:
  int& recipeOf(ValueId v) { return recipe_of_[static_cast<size_t>(v.index)]; }

  void drop(int r) {
    alive_[static_cast<size_t>(r)] = false;
    for (ValueId v : recipes_[static_cast<size_t>(r)].outputs) recipeOf(v) = -1;
  }

  // An input without a recipe is there until plain training drops it ("before op death" is the last
  // position; op death + 1 finds it gone). A recipe that has no position left goes, and with it
  // what others hoped for: repeat.
  void endAtDeaths() {
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t r = 0; r < recipes_.size(); ++r) {
        if (!alive_[r]) continue;
        Recipe& recipe = recipes_[r];
        for (ValueId v : recipe.inputs) {
          if (recipeOf(v) < 0)
            recipe.valid_until = std::min(recipe.valid_until, graph_.value(v).death);
        }
        if (recipe.valid_until > recipe.lastOp() || !recipe.mayRun()) continue;
        drop(static_cast<int>(r));
        changed = true;
      }
    }
  }

  std::vector<int> feeders(int r);

  const Graph& graph_;
  std::vector<Recipe> recipes_;
  std::vector<int> recipe_of_;
  std::vector<char> alive_;
};

// Note [Recipes that feed themselves]
// p makes (a, b); u = f(a); b.add_(u). The recipe of (a, b) is {p, add_} and reads u, whose recipe
// {f} reads a. With a, b and u all away neither can begin. So: recipe A *depends on* recipe B if an
// input of A is an output of B and there is a position at which both may run; a recipe that depends
// on itself, over any number of steps, is no recipe, and its values are then never evicted.
std::vector<int> RecipeSet::feeders(int r) {
  if (!alive_[static_cast<size_t>(r)]) return {};
  const Recipe& recipe = recipes_[static_cast<size_t>(r)];
  std::vector<int> result;
  for (ValueId v : recipe.inputs) {
    const int other = recipeOf(v);
    if (other < 0) continue;
    const Recipe& feeder = recipes_[static_cast<size_t>(other)];
    const bool meet =
        feeder.lastOp() < recipe.unchanged_until && recipe.lastOp() < feeder.unchanged_until;
    if (meet) result.push_back(other);
  }
  return result;
}

}  // namespace

RecipeTable::RecipeTable(const Graph& graph)
    : recipe_of_(static_cast<size_t>(graph.numValues()), -1) {
  RecipeSet set(graph);
  set.prune();
  recipes_ = set.take();
  for (size_t r = 0; r < recipes_.size(); ++r) {
    for (ValueId v : recipes_[r].outputs)
      recipe_of_[static_cast<size_t>(v.index)] = static_cast<int>(r);
  }
  findRecoverability(graph);
}

// An in-place op may read what was made after its chain's first op, so there is no one order of
// recipes: iterate to the fixed point.
void RecipeTable::findRecoverability(const Graph& graph) {
  for (Recipe& recipe : recipes_) recipe.recoverable_until = recipe.unchanged_until;
  for (bool changed = true; changed;) {
    changed = false;
    for (Recipe& recipe : recipes_) {
      for (ValueId input : recipe.inputs) {
        const int from = recipeOf(input);
        if (from < 0) continue;
        const OpId until = recipes_[static_cast<size_t>(from)].recoverable_until;
        if (until <= recipe.lastOp() || until >= recipe.recoverable_until) continue;
        recipe.recoverable_until = until;
        changed = true;
      }
    }
  }
  const std::vector<OpId> roots_until = findRootsUntil(graph);
  must_end_resident_.assign(recipe_of_.size(), false);
  for (size_t r = 0; r < recipes_.size(); ++r) {
    for (ValueId v : recipes_[r].outputs) {
      const OpId death = graph.value(v).death;
      must_end_resident_[static_cast<size_t>(v.index)] =
          death < graph.endOfStep() &&
          (!recipes_[r].mayRun() || death >= recipes_[r].recoverable_until ||
           death > roots_until[r]);
    }
  }
}

// By recipe: the first death of a root, in plain training.
std::vector<OpId> RecipeTable::findRootsUntil(const Graph& graph) const {
  std::vector<OpId> until(recipes_.size(), graph.endOfStep());
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t r = 0; r < recipes_.size(); ++r) {
      for (ValueId input : recipes_[r].inputs) {
        const int from = recipeOf(input);
        const bool comes_back =
            from >= 0 && recipes_[r].isFedBy(recipes_[static_cast<size_t>(from)]);
        const OpId own = comes_back ? until[static_cast<size_t>(from)] : graph.value(input).death;
        if (own >= until[r]) continue;
        until[r] = own;
        changed = true;
      }
    }
  }
  return until;
}

int64_t RecipeTable::ownBytes() const {
  const auto of_recipe = [](const Recipe& recipe) {
    return heapBytes(recipe.ops) + heapBytes(recipe.outputs) + heapBytes(recipe.inputs);
  };
  return static_cast<int64_t>(sizeof(*this)) + heapBytes(recipes_, of_recipe) +
         heapBytes(recipe_of_) + heapBytes(must_end_resident_);
}

}  // namespace poet
