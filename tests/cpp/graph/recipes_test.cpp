#include "graph/recipes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <set>

#include "device/profile.h"
#include "graph/error.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/random_graph.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const Recipe* find(const RecipeTable& table, ValueId v) {
  const int r = table.recipeOf(v);
  return r < 0 ? nullptr : &table.recipes()[static_cast<size_t>(r)];
}

TEST(Recipes, APlainOpIsItsOwnRecipe) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x, x}).seconds(2).workspace(7).makes(100);
  g.op("sum").reads({a}).makes(4);
  const Graph graph = g.build();
  const RecipeTable table(graph);
  const Recipe* recipe = find(table, a);
  ASSERT_TRUE(recipe);
  EXPECT_THAT(recipe->ops, ElementsAre(OpId(0)));
  EXPECT_THAT(recipe->outputs, ElementsAre(a));
  EXPECT_THAT(recipe->inputs, ElementsAre(x));
  EXPECT_EQ(recipe->workspace_bytes, 7);
  EXPECT_EQ(recipe->output_bytes, 100);
  EXPECT_DOUBLE_EQ(recipe->seconds, 2);
  EXPECT_FALSE(recipe->random);
  EXPECT_EQ(recipe->valid_until, graph.endOfStep());
  EXPECT_EQ(table.recipeOf(x), -1);
}

TEST(Recipes, SeveralOutputsShareOneRecipe) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const auto made = g.op("dropout").reads({x}).random().makes({100, 25});
  g.op("mul").reads({made[0], made[1]}).makes(4);
  const RecipeTable table(g.build());
  const Recipe* recipe = find(table, made[0]);
  ASSERT_TRUE(recipe);
  EXPECT_EQ(recipe, find(table, made[1]));
  EXPECT_THAT(recipe->outputs, ElementsAre(made[0], made[1]));
  EXPECT_EQ(recipe->output_bytes, 125);
  EXPECT_TRUE(recipe->random);
}

TEST(Recipes, InPlaceOpsJoinTheChainInOrder) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId y = g.input(8);
  const ValueId a = g.op("conv").reads({x}).seconds(4).workspace(50).makes(100);
  g.op("sum").reads({a}).makes(4);
  g.op("bias_").writes({a}).reads({y}).seconds(1).workspace(60);
  g.op("relu_").writes({a}).seconds(0.5);
  g.op("sum").reads({a}).makes(4);
  const RecipeTable table(g.build());
  const Recipe* recipe = find(table, a);
  ASSERT_TRUE(recipe);
  EXPECT_THAT(recipe->ops, ElementsAre(OpId(0), OpId(2), OpId(3)));
  EXPECT_THAT(recipe->inputs, ElementsAre(x, y));
  EXPECT_EQ(recipe->workspace_bytes, 60);
  EXPECT_DOUBLE_EQ(recipe->seconds, 5.5);
  EXPECT_EQ(recipe->lastOp(), OpId(3));
}

TEST(Recipes, OneChainOpMayWriteSeveralOutputsOfTheProducer) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const auto made = g.op("split").reads({x}).makes({10, 20});
  g.op("foreach_mul_").writes({made[0], made[1]});
  g.op("sum").reads(made).makes(4);
  const RecipeTable table(g.build());
  const Recipe* recipe = find(table, made[1]);
  ASSERT_TRUE(recipe);
  EXPECT_THAT(recipe->ops, ElementsAre(OpId(0), OpId(1)));
  EXPECT_THAT(recipe->inputs, ElementsAre(x));
}

// ---- producers without a recipe ---------------------------------------------------------------

TEST(Recipes, AViewProducesNothing) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  g.view(x);
  EXPECT_THAT(RecipeTable(g.build()).recipes(), IsEmpty());
}

TEST(Recipes, AnOpThatAlsoWritesElsewhereHasNone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("fused").writes({x}).makes(100);
  EXPECT_EQ(RecipeTable(g.build()).recipeOf(a), -1);
}

TEST(Recipes, AProducerMayUpdateItsOwnStatisticsAndDoesNotReadThemAgain) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId mean = g.input(4, ValueKind::kBuffer);
  const ValueId a = g.op("batch_norm").reads({x}).updates({mean}).makes(100);
  g.op("batch_norm").reads({x}).updates({mean}).makes(100);
  const Graph graph = g.build();
  const RecipeTable table(graph);
  const Recipe* recipe = find(table, a);
  ASSERT_TRUE(recipe);
  EXPECT_THAT(recipe->inputs, ElementsAre(x));
  EXPECT_EQ(recipe->valid_until, graph.endOfStep())
      << "a later update of the statistics is no write to an input";
}

TEST(Recipes, AWriterWithStatisticsOrAWriterThatMakesSomethingHasNone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId mean = g.input(4, ValueKind::kBuffer);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  g.op("batch_norm_").writes({a}).updates({mean});
  const ValueId b = g.op("relu").reads({x}).makes(10);
  const ValueId c = g.op("write_and_make").writes({b}).makes(10);
  const ValueId d = g.op("relu").reads({x}).makes(10);
  g.op("write_both_").writes({d, x});
  const RecipeTable table(g.build());
  for (ValueId v : {a, b, c, d}) EXPECT_EQ(table.recipeOf(v), -1) << v.index;
}

TEST(Recipes, WhatMayNotBeReplayedOrReleasedHasNone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("opaque").reads({x}).notReplayable().makes(10);
  const auto b = g.op("two").reads({x}).makes({10, 10});
  g.notEvictable(b[1]);
  const ValueId c = g.op("relu").reads({x}).makes(10);
  g.op("opaque_").writes({c}).notReplayable();
  const RecipeTable table(g.build());
  for (ValueId v : {a, b[0], b[1], c}) EXPECT_EQ(table.recipeOf(v), -1) << v.index;
}

// ---- how long a recipe is valid ---------------------------------------------------------------

TEST(Recipes, AWriteToAnInputEndsTheRecipeJustBeforeIt) {
  GraphBuilder g;
  const ValueId parameter = g.parameter(8);
  g.op("init_").writes({parameter});  // an earlier write does not matter
  const ValueId a = g.op("relu").reads({parameter}).makes(10);
  g.op("sum").reads({a}).makes(4);
  g.op("step_").writes({parameter});
  g.op("sum").reads({a}).makes(4);
  const RecipeTable table(g.build());
  const Recipe* recipe = find(table, a);
  ASSERT_TRUE(recipe);
  EXPECT_EQ(recipe->valid_until, OpId(3));
}

TEST(Recipes, TheDeathOfAnInputWithoutARecipeEndsIt) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId opaque = g.op("opaque").reads({x}).notReplayable().makes(10);
  const ValueId a = g.op("relu").reads({opaque}).makes(10);
  g.op("sum").reads({a}).makes(4);
  g.op("sum").reads({a}).makes(4);
  g.op("sum").reads({a}).makes(4);
  g.diesAfter(opaque, OpId(3));
  {
    const RecipeTable table(g.build());
    ASSERT_TRUE(find(table, a));
    EXPECT_EQ(find(table, a)->valid_until, OpId(3))
        << "before op 3 it is there, before op 4 it is gone";
    EXPECT_EQ(find(table, a)->unchanged_until, OpId(5)) << "nothing ever writes into it";
  }
  g.outlives(opaque);
  const Graph graph = g.build();
  EXPECT_EQ(find(RecipeTable(graph), a)->valid_until, graph.endOfStep());
}

TEST(Recipes, ADeathOfAnInputWithARecipeEndsNothing) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("relu").reads({x}).makes(10);
  const ValueId b = g.op("relu").reads({a}).makes(10);
  g.op("sum").reads({b}).makes(4);
  const Graph graph = g.build();
  EXPECT_EQ(find(RecipeTable(graph), b)->valid_until, graph.endOfStep());
}

TEST(Recipes, ARecipeThatCouldNeverRunIsLeftOutAndWithItWhatLivedOnIt) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId opaque = g.op("opaque").reads({x}).notReplayable().makes(10);
  const ValueId a = g.op("relu").reads({opaque}).makes(10);  // opaque dies with this op
  const ValueId b = g.op("relu").reads({a}).makes(10);       // and a with this one
  const ValueId c = g.op("relu").reads({b, x}).makes(10);
  g.op("sum").reads({b, c}).makes(4);
  g.op("sum").reads({c}).makes(4);
  const RecipeTable table(g.build());
  EXPECT_EQ(table.recipeOf(a), -1);
  EXPECT_EQ(table.recipeOf(b), -1);
  ASSERT_TRUE(find(table, c)) << "b lives until op 4";
  EXPECT_EQ(find(table, c)->valid_until, OpId(4));
}

TEST(Recipes, ALateInputOfAnInPlaceOpIsAnInputOfTheRecipe) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId v = g.op("conv").reads({x}).makes(100);
  g.op("mul_").writes({v});
  const ValueId u = g.op("relu").reads({x}).makes(10);
  g.op("add_").writes({v}).reads({u});
  g.op("sum").reads({v}).makes(4);
  const Graph graph = g.build();
  const RecipeTable table(graph);
  const Recipe* recipe = find(table, v);
  ASSERT_TRUE(recipe);
  EXPECT_THAT(recipe->ops, ElementsAre(OpId(0), OpId(1), OpId(3)));
  EXPECT_THAT(recipe->inputs, ElementsAre(x, u));
  EXPECT_EQ(recipe->valid_until, graph.endOfStep());
}

TEST(Recipes, WhatReadsAVersionThatPassesNeverRunsAgain) {
  GraphBuilder g;  // v.add_(f(v))
  const ValueId x = g.input(8);
  const ValueId v = g.op("conv").reads({x}).makes(100);
  const ValueId u = g.op("f").reads({v}).makes(100);
  g.op("sum").reads({u}).makes(4);
  g.op("add_").writes({v}).reads({u});
  g.op("sum").reads({v, u}).makes(4);
  const Graph graph = g.build();
  const RecipeTable table(graph);
  ASSERT_TRUE(find(table, v));
  ASSERT_TRUE(find(table, u)) << "it may be kept for v's sake";
  EXPECT_FALSE(find(table, u)->mayRun()) << "it could up to op 3 only, where v changes";
  EXPECT_TRUE(table.mustEndResident(u));
  ASSERT_TRUE(find(table, v)->mayRun());
  EXPECT_THAT(find(table, v)->inputs, ElementsAre(x, u));
  EXPECT_EQ(find(table, v)->valid_until, graph.endOfStep());
}

TEST(Recipes, WhatOutlivesARootEndsResident) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId root = g.op("once").reads({x}).notReplayable().makes(100);
  const ValueId a = g.op("f").reads({root}).makes(100);
  const ValueId b = g.op("f").reads({a}).makes(100);
  const ValueId c = g.op("f").reads({x}).makes(100);
  g.op("late").reads({root}).makes(4);
  g.op("later").reads({x}).makes(4);
  g.diesAfter(b, OpId(5));
  g.diesAfter(c, OpId(5));
  const RecipeTable table(g.build());
  ASSERT_TRUE(find(table, b));
  EXPECT_TRUE(table.mustEndResident(b)) << "it is made from a, and that from what died with op 4";
  EXPECT_FALSE(table.mustEndResident(c)) << "x is there";
}

// register_post_accumulate_grad_hook: the update of a bias is the last op of its own gradient.
TEST(Recipes, WhatDiesWithTheOpThatEndsItsRecipeEndsResident) {
  GraphBuilder g;
  const ValueId x = g.input(8), weight = g.input(8);
  const ValueId a = g.op("f").reads({x, weight}).makes(100);
  const ValueId b = g.op("f").reads({x, weight}).makes(100);
  g.op("sum").reads({a, b}).makes(4);
  g.op("add_").writes({weight}).reads({x});
  g.diesAfter(a, OpId(3));
  const RecipeTable table(g.build());
  ASSERT_TRUE(find(table, a));
  EXPECT_TRUE(table.mustEndResident(a)) << "before op 3 it is brought back: it is still reachable";
  EXPECT_FALSE(table.mustEndResident(b)) << "it died with op 2";
}

TEST(Recipes, RecipesThatWouldFeedThemselvesAreLeftOut) {
  GraphBuilder g;  // (a, b) = p(x); u = f(a); b.add_(u)
  const ValueId x = g.input(8);
  const auto made = g.op("p").reads({x}).makes({10, 10});
  const ValueId u = g.op("f").reads({made[0]}).makes(10);
  g.op("add_").writes({made[1]}).reads({u});
  const ValueId w = g.op("g").reads({u}).makes(10);
  g.op("sum").reads({made[0], made[1], u, w}).makes(4);
  const RecipeTable table(g.build());
  EXPECT_EQ(table.recipeOf(made[0]), -1);
  EXPECT_EQ(table.recipeOf(made[1]), -1);
  EXPECT_EQ(table.recipeOf(u), -1);
  ASSERT_TRUE(find(table, w)) << "it reads a value of the cycle, and is not part of it";
  EXPECT_EQ(find(table, w)->valid_until, OpId(4)) << "u dies there";
}

TEST(Recipes, ALongerCycleIsFoundToo) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const auto made = g.op("p").reads({x}).makes({10, 10});
  const ValueId u1 = g.op("f").reads({made[0]}).makes(10);
  const ValueId u2 = g.op("f").reads({u1}).makes(10);
  const ValueId u3 = g.op("f").reads({u2, x}).makes(10);
  g.op("add_").writes({made[1]}).reads({u3});
  g.op("sum").reads({made[0], made[1], u1, u2, u3}).makes(4);
  const RecipeTable table(g.build());
  for (ValueId v : {made[0], made[1], u1, u2, u3}) EXPECT_EQ(table.recipeOf(v), -1) << v.index;
}

TEST(Recipes, ManyOpsInOneChainOfValuesDoNotExhaustTheStack) {
  GraphBuilder g;
  ValueId v = g.input(1);
  for (int i = 0; i < 200000; ++i) v = g.op("f").reads({v}).makes(1);
  EXPECT_EQ(RecipeTable(g.build()).recipes().size(), 200000u);
}

// ---- properties of random graphs --------------------------------------------------------------

// Following the absent inputs of recipes at one position never leads back, not even where something
// keeps inputs beyond their death.
TEST(RecipesOfRandomGraphs, NeverLeadBackToThemselvesAtAnyPosition) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomGraphOptions options;
    options.in_place = 0.5;
    options.multi_output = 0.5;
    const Graph graph = randomGraph(seed, options);
    const RecipeTable table(graph);
    for (int64_t k = 0; k <= graph.numOps(); ++k) {
      std::vector<int> mark(table.recipes().size(), 0);  // 0 new, 1 on the path, 2 done
      const std::function<void(int)> visit = [&](int r) {
        ASSERT_NE(mark[static_cast<size_t>(r)], 1) << "seed " << seed << ", position " << k;
        if (mark[static_cast<size_t>(r)] == 2) return;
        mark[static_cast<size_t>(r)] = 1;
        for (ValueId v : table.recipes()[static_cast<size_t>(r)].inputs) {
          const int other = table.recipeOf(v);
          if (other < 0) continue;
          const Recipe& feeder = table.recipes()[static_cast<size_t>(other)];
          if (feeder.lastOp() < OpId(k) && OpId(k) <= feeder.unchanged_until) visit(other);
        }
        mark[static_cast<size_t>(r)] = 2;
      };
      for (size_t r = 0; r < mark.size(); ++r) {
        const Recipe& recipe = table.recipes()[r];
        if (recipe.lastOp() < OpId(k) && OpId(k) <= recipe.unchanged_until)
          visit(static_cast<int>(r));
      }
    }
  }
}

// Keeps everything but what dies on its own, recomputes one recipe at one position and asks the
// simulator. Inputs with a recipe of their own are retained, as a planner would.
bool simulatorAccepts(const Graph& graph, const Recipe& recipe, int64_t position) {
  Schedule schedule;
  schedule.graph_signature = graph.signature();
  schedule.num_ops = graph.numOps();
  schedule.before.resize(static_cast<size_t>(graph.numOps()) + 1);
  schedule.after.resize(static_cast<size_t>(graph.numOps()));
  schedule.recipes = {recipe.ops};
  const RecipeTable table(graph);
  for (ValueId v : recipe.inputs) {
    if (table.recipeOf(v) < 0) continue;
    const OpId shown = graph.lastShown(v);
    schedule.after[static_cast<size_t>(shown.index)].push_back({ActionKind::kRetain, v.index});
  }
  schedule.before[static_cast<size_t>(position)].push_back({ActionKind::kRecompute, 0});
  try {
    simulate(graph, schedule, hostProfile());
    return true;
  } catch (const ScheduleError&) {
    return false;
  }
}

TEST(RecipesOfRandomGraphs, RunWhereTheySayAndNowhereElseInTheSimulator) {
  int64_t accepted = 0;
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    const Graph graph = randomGraph(seed);
    const RecipeTable table(graph);
    for (const Recipe& recipe : table.recipes()) {
      for (int64_t k = 0; k <= graph.numOps(); ++k) {
        const bool valid = recipe.lastOp() < OpId(k) && OpId(k) <= recipe.valid_until;
        const bool accepts = simulatorAccepts(graph, recipe, k);
        if (valid) {
          ASSERT_TRUE(accepts) << "seed " << seed << ", producer " << recipe.producer().index
                               << " before " << k;
        }
        // Before its last op a chain is either unborn or leaves out a write that has not happened,
        // never valid. Of passing versions the simulator knows nothing.
        if (k <= recipe.lastOp().index || (recipe.mayRun() && OpId(k) > recipe.valid_until)) {
          ASSERT_FALSE(accepts) << "seed " << seed << ", producer " << recipe.producer().index
                                << " before " << k;
        }
        ++(accepts ? accepted : refused);
      }
    }
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace poet::testing
