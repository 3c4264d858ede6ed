#include "graph/coarsening.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "device/profile.h"
#include "graph/recipes.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/property_cases.h"
#include "support/random_graph.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> names(const Graph& graph) {
  std::vector<std::string> names;
  for (const Op& op : graph.ops()) names.push_back(op.name);
  return names;
}

TEST(Coarsening, ViewsJoinWhatStandsBeforeThem) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId w = g.parameter(8);
  const ValueId a = g.op("mm").reads({x, w}).seconds(2).makes(100);
  g.view(w);  // of a value that mm touches, and of one that it makes
  g.view(a);
  const ValueId b = g.op("relu").reads({a}).seconds(3).makes(100);
  g.outlives(b);
  const Graph fine = g.build();
  const Coarsening coarsening(fine, RecipeTable(fine));
  EXPECT_THAT(names(coarsening.graph()), ElementsAre("mm", "relu"));
  EXPECT_EQ(coarsening.firstOf(OpId(1)), OpId(3));
  EXPECT_EQ(coarsening.lastOf(OpId(0)), OpId(2));
  EXPECT_EQ(coarsening.coarseOf(OpId(2)), OpId(0));
  EXPECT_EQ(coarsening.coarseOf(fine.endOfStep()), coarsening.graph().endOfStep());
}

TEST(Coarsening, ChainsInPlaceJoinTheirProducer) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("addmm").reads({x}).seconds(2).workspace(5).makes(100);
  g.view(a);
  g.op("sigmoid_").writes({a}).seconds(1);
  g.op("tanh_").writes({a}).seconds(1).workspace(5);
  g.outlives(g.op("sum").reads({a, x}).makes(4));
  const Graph fine = g.build();
  const Coarsening coarsening(fine, RecipeTable(fine));
  const Graph& graph = coarsening.graph();
  EXPECT_THAT(names(graph), ElementsAre("addmm+sigmoid_+tanh_", "sum"));
  EXPECT_THAT(graph.op(OpId(0)).inputs, ElementsAre(x));
  EXPECT_THAT(graph.op(OpId(0)).outputs, ElementsAre(a));
  EXPECT_TRUE(graph.op(OpId(0)).mutates.empty());
  EXPECT_EQ(graph.op(OpId(0)).seconds, 4);
  EXPECT_EQ(graph.op(OpId(0)).workspace_bytes, 5);
  EXPECT_THAT(RecipeTable(graph).recipes().front().ops, ElementsAre(OpId(0)));
}

TEST(Coarsening, WhatNeedsMoreMemoryStaysAlone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("mm").reads({x}).makes(100);
  g.op("sort_").writes({a}).workspace(50);
  const ValueId other = g.input(60);
  g.op("add_").writes({a}).reads({other});
  g.outlives(a);
  const Graph fine = g.build();
  const Coarsening coarsening(fine, RecipeTable(fine));
  EXPECT_THAT(names(coarsening.graph()), ElementsAre("mm", "sort_", "add_"));
}

TEST(Coarsening, WhatHasOtherEffectsStaysAlone) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("mm").reads({x}).makes(100);
  g.op("item").reads({a}).notReplayable();
  g.outlives(a);
  const Graph fine = g.build();
  const Coarsening coarsening(fine, RecipeTable(fine));
  EXPECT_THAT(names(coarsening.graph()), ElementsAre("mm", "item"));
  EXPECT_EQ(RecipeTable(coarsening.graph()).recipes().size(), 1U);
}

// Before the view b may still be made again, after it no longer.
TEST(Coarsening, NothingJoinsWhereARecipeEnds) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId w = g.parameter(8);
  const ValueId a = g.op("mm").reads({x}).notReplayable().makes(100);
  const ValueId b = g.op("relu").reads({a}).makes(10);
  const ValueId c = g.op("mm").reads({w, x}).makes(50);
  const OpId view = g.view(a).id();  // the last that is seen of it
  g.diesAfter(a, view);
  g.outlives(g.op("cat").reads({b, c}).makes(4));
  const Graph fine = g.build();
  const Coarsening coarsening(fine, RecipeTable(fine));
  EXPECT_THAT(names(coarsening.graph()), ElementsAre("mm", "relu", "mm", "aten::view", "cat"));
}

// What plain training needs and takes, and what can be made again, and from what.
TEST(Coarsening, KeepsWhatAPlannerSeesOfRandomSteps) {
  int64_t merged = 0;
  for (int seed = 0; seed < propertyCases(400); ++seed) {
    SCOPED_TRACE(seed);
    RandomGraphOptions options;
    options.forward_ops = 4 + seed % 9;
    options.view = options.in_place = 0.3;
    const Graph fine = randomGraph(static_cast<uint64_t>(seed) + 4000, options);
    const RecipeTable before(fine);
    const Coarsening coarsening(fine, before);
    const Graph& coarse = coarsening.graph();
    merged += fine.numOps() - coarse.numOps();
    const DeviceProfile profile = hostProfile();
    EXPECT_EQ(simulatePlain(coarse, profile).peak_bytes, simulatePlain(fine, profile).peak_bytes);
    EXPECT_NEAR(coarse.plainSeconds(), fine.plainSeconds(), 1e-9);
    for (int64_t k = 0; k < fine.numOps(); ++k) {
      const OpId group = coarsening.coarseOf(OpId(k));
      EXPECT_LE(coarsening.firstOf(group), OpId(k));
      EXPECT_LE(OpId(k), coarsening.lastOf(group));
    }
    const RecipeTable after(coarse);
    for (int64_t i = 0; i < fine.numValues(); ++i) {
      const ValueId v(i);
      EXPECT_EQ(coarse.value(v).bytes, fine.value(v).bytes);
      ASSERT_EQ(before.recipeOf(v) < 0, after.recipeOf(v) < 0) << "value " << i;
      EXPECT_EQ(before.mustEndResident(v), after.mustEndResident(v)) << "value " << i;
      if (before.recipeOf(v) < 0) continue;
      const Recipe& was = before.recipes()[static_cast<size_t>(before.recipeOf(v))];
      const Recipe& is = after.recipes()[static_cast<size_t>(after.recipeOf(v))];
      EXPECT_EQ(is.inputs, was.inputs);
      EXPECT_EQ(is.outputs, was.outputs);
      EXPECT_EQ(is.workspace_bytes, was.workspace_bytes);
      std::set<OpId> groups;
      for (const OpId op : was.ops) groups.insert(coarsening.coarseOf(op));
      EXPECT_EQ(std::vector<OpId>(groups.begin(), groups.end()), is.ops);
      if (was.mayRun()) {
        EXPECT_EQ(is.valid_until, coarsening.coarseOf(was.valid_until));
      }
    }
  }
  EXPECT_GT(merged, propertyCases(400) / 4);
}

}  // namespace
}  // namespace poet::testing
