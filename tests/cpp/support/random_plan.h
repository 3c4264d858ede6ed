// Random schedules over a graph: many can be carried out, many cannot.
#pragma once

#include <algorithm>
#include <vector>

#include "graph/graph.h"
#include "graph/recipes.h"
#include "schedule/schedule.h"
#include "support/plan_builder.h"
#include "support/random.h"

namespace poet::testing {

inline Schedule randomPlan(const Graph& graph, const RecipeTable& table, Random& random) {
  PlanBuilder plan(graph);
  const int64_t ops = graph.numOps();
  const auto somewhere = [&](int64_t from) -> PlanBuilder& {
    const int64_t at = from + random.below(ops - from + 1);
    return at < ops && random.chance(0.3) ? plan.after(at) : plan.before(at);
  };
  for (int64_t changes = random.between(1, 5); changes > 0; --changes) {
    const ValueId v(random.below(graph.numValues()));
    const int r = table.recipeOf(v);
    if (random.chance(0.15)) {
      const OpId shown = graph.lastShown(v);
      if (shown.index < ops) plan.after(shown.index).retain(v);
      continue;
    }
    if (r < 0 && random.chance(0.8)) continue;
    const int64_t gone =
        r < 0 ? random.below(ops + 1) : table.recipes()[static_cast<size_t>(r)].lastOp().index + 1;
    if (random.chance(0.8)) {
      // The first place where nothing is lost yet, or a later one.
      (random.chance(0.5) ? plan.before(gone) : somewhere(gone)).free(v);
    }
    if (r < 0) continue;
    std::vector<OpId> chain = table.recipes()[static_cast<size_t>(r)].ops;
    if (chain.size() > 1 && random.chance(0.2)) {
      chain.erase(chain.begin() + random.below(static_cast<int64_t>(chain.size())));
    }
    if (random.chance(0.05)) {
      chain.emplace_back(random.below(ops));
      std::sort(chain.begin(), chain.end());
      chain.erase(std::unique(chain.begin(), chain.end()), chain.end());
    }
    // Mostly just before a use that follows.
    int64_t back = gone + random.below(ops - gone + 1);
    for (OpId use : graph.usesOf(v)) {
      if (use.index >= gone && random.chance(0.7)) back = use.index;
    }
    plan.before(back).recompute(chain);
  }
  return plan.build();
}

}  // namespace poet::testing
