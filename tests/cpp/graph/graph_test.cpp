#include "graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "graph/error.h"
#include "support/graph_builder.h"
#include "support/random_graph.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// x -> a -> b (reads a, x), c = in-place on b, loss.
struct Small {
  Small() {
    x = g.input(8);
    a = g.op("aten::relu").reads({x}).seconds(1).makes(100);
    b = g.op("aten::mul").reads({a, x, a}).seconds(2).makes(200);
    g.op("aten::add_").writes({b}).reads({x}).seconds(0.5);
    loss = g.op("aten::sum").reads({b}).seconds(0.25).makes(4);
    g.outlives(loss);
  }
  GraphBuilder g;
  ValueId x, a, b, loss;
};

// Builds the small graph after one change to its parts and expects the message.
void expectRefused(const std::function<void(std::vector<Op>&, std::vector<Value>&)>& spoil,
                   const ::testing::Matcher<const std::string&>& says) {
  const Small small;
  auto ops = small.g.ops;
  auto values = small.g.valuesWithDeaths();
  spoil(ops, values);
  EXPECT_THAT([&] { Graph(ops, values); }, ThrowsMessage<FormatError>(says));
}

template <class... Indices>
std::vector<ValueId> ids(Indices... indices) {
  return {ValueId(indices)...};
}

TEST(Graph, ListsWhatEachOpMakesReadsAndWrites) {
  const Small small;
  const Graph graph = small.g.build();
  EXPECT_EQ(graph.numOps(), 4);
  EXPECT_EQ(graph.numValues(), 4);
  EXPECT_EQ(graph.endOfStep(), OpId(4));
  EXPECT_THAT(graph.madeBy(OpId(1)), ElementsAre(small.b));
  EXPECT_THAT(graph.madeBy(OpId(2)), IsEmpty());
  EXPECT_THAT(graph.dataInputs(OpId(1)), ElementsAre(small.x, small.a));
  EXPECT_THAT(graph.writersOf(small.b), ElementsAre(OpId(2)));
  EXPECT_THAT(graph.usesOf(small.x), ElementsAre(OpId(0), OpId(1), OpId(2)));
  EXPECT_THAT(graph.usesOf(small.b), ElementsAre(OpId(2), OpId(3)));
  EXPECT_EQ(graph.lastShown(small.b), OpId(3));
  EXPECT_EQ(graph.lastShown(small.loss), OpId(3));
  EXPECT_DOUBLE_EQ(graph.plainSeconds(), 3.75);
}

TEST(Graph, AViewTouchesNoBytesButShowsItsValue) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId a = g.op("aten::relu").reads({x}).makes(8);
  g.view(a);
  const Graph graph = g.build();
  EXPECT_THAT(graph.dataInputs(OpId(1)), IsEmpty());
  EXPECT_THAT(graph.usesOf(a), IsEmpty());
  EXPECT_EQ(graph.lastShown(a), OpId(1));
  EXPECT_THAT(graph.madeBy(OpId(1)), IsEmpty());
}

TEST(Graph, DetachAndAliasCountAsReadsBecauseTheMemoryMayBeReadRaw) {
  for (const char* name :
       {"aten::detach", "aten::alias", "aten::detach.default", "aten::alias.out"}) {
    GraphBuilder g;
    const ValueId x = g.input(8);
    g.op(name).reads({x}).returns({x}).view();
    EXPECT_THAT(g.build().usesOf(x), ElementsAre(OpId(0))) << name;
  }
  for (const char* name : {"aten::detach_", "aten::aliases", "my::aten::alias", "aten::view"}) {
    GraphBuilder g;
    const ValueId x = g.input(8);
    g.op(name).reads({x}).returns({x}).view();
    EXPECT_THAT(g.build().usesOf(x), IsEmpty()) << name;
  }
}

TEST(Graph, AnOpThatReadsOnlyShapesUsesNoDataButStillWrites) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId fresh = g.op("aten::empty_like").reads({x}).shapeOnly().makes(8);
  g.op("aten::zero_").writes({fresh}).shapeOnly();
  const Graph graph = g.build();
  EXPECT_THAT(graph.dataInputs(OpId(0)), IsEmpty());
  EXPECT_THAT(graph.usesOf(x), IsEmpty());
  EXPECT_EQ(graph.lastShown(x), OpId(0));
  EXPECT_THAT(graph.dataInputs(OpId(1)), ElementsAre(fresh));
}

TEST(Graph, StatisticsAreUsesAndWrites) {
  GraphBuilder g;
  const ValueId x = g.input(8);
  const ValueId mean = g.input(4, ValueKind::kBuffer);
  g.op("aten::native_batch_norm").reads({x}).updates({mean}).makes(8);
  const Graph graph = g.build();
  EXPECT_THAT(graph.usesOf(mean), ElementsAre(OpId(0)));
  EXPECT_THAT(graph.writersOf(mean), ElementsAre(OpId(0)));
}

TEST(Graph, AValueThatNothingShowsIsLastShownAtTheFirstOp) {
  GraphBuilder g;
  const ValueId idle = g.input(8);
  g.op("aten::empty").makes(1);
  EXPECT_EQ(g.build().lastShown(idle), OpId(0));
}

TEST(Graph, AnEmptyStepIsAGraph) {
  const Graph graph({}, {}, 5);
  EXPECT_EQ(graph.numOps(), 0);
  EXPECT_EQ(graph.endOfStep(), OpId(0));
  EXPECT_EQ(graph.baseBytes(), 5);
}

// ---- refused ----------------------------------------------------------------------------------

TEST(Graph, RejectsUseBeforeProduction) {
  expectRefused([](auto& ops, auto&) { ops[0].inputs = ids(2); },
                AllOf(HasSubstr("op 0 (aten::relu)"), HasSubstr("inputs"),
                      HasSubstr("value 2 does not exist yet: its producer is op 1 (aten::mul)")));
}

TEST(Graph, RejectsAnOpThatReadsWhatItMakes) {
  expectRefused([](auto& ops, auto&) { ops[1].inputs.push_back(ValueId(2)); },
                HasSubstr("does not exist yet"));
}

TEST(Graph, RejectsAnOpThatReturnsWhatALaterOpMakes) {
  expectRefused([](auto& ops, auto&) { ops[0].outputs.push_back(ValueId(3)); },
                AllOf(HasSubstr("op 0 (aten::relu): outputs"), HasSubstr("op 3 (aten::sum)")));
}

TEST(Graph, RejectsIdsOutOfRange) {
  const auto says = [](const char* field, int got) {
    return AllOf(HasSubstr("op 2 (aten::add_)"), HasSubstr(std::string(field) + "["),
                 HasSubstr("expected a value index in [0, 4), got " + std::to_string(got)));
  };
  for (int bad : {4, -1, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()}) {
    expectRefused([&](auto& ops, auto&) { ops[2].inputs = ids(bad); }, says("inputs", bad));
    expectRefused([&](auto& ops, auto&) { ops[2].outputs = ids(bad); }, says("outputs", bad));
    expectRefused([&](auto& ops, auto&) { ops[2].mutates = ids(bad); }, says("mutates", bad));
    expectRefused([&](auto& ops, auto&) { ops[2].statistics = ids(bad); }, says("statistics", bad));
  }
}

TEST(Graph, RejectsSecondsAndFlopsThatAreNoAmount) {
  for (double bad : {-1e-9, std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    expectRefused([&](auto& ops, auto&) { ops[1].seconds = bad; },
                  HasSubstr("op 1 (aten::mul): seconds: expected"));
    expectRefused([&](auto& ops, auto&) { ops[1].flops = bad; },
                  HasSubstr("op 1 (aten::mul): flops: expected"));
  }
}

TEST(Graph, RejectsSecondsThatNoStepTakes) {
  expectRefused([](auto& ops,
                   auto&) { ops[0].seconds = ops[1].seconds = std::numeric_limits<double>::max(); },
                HasSubstr("add up to inf, expected at most 1e+12"));
  expectRefused([](auto& ops, auto&) { ops[0].seconds = 1e308; }, HasSubstr("add up to 1e+308"));
}

TEST(Graph, RejectsNegativeBytes) {
  expectRefused([](auto& ops, auto&) { ops[3].workspace_bytes = -1; },
                HasSubstr("op 3 (aten::sum): workspace_bytes: expected >= 0, got -1"));
  expectRefused([](auto&, auto& values) { values[1].bytes = -5; },
                HasSubstr("value 1: bytes: expected >= 0, got -5"));
  EXPECT_THAT([] { Graph({}, {}, -1); }, ThrowsMessage<FormatError>(HasSubstr("base_bytes")));
}

TEST(Graph, RejectsBytesThatAddUpToMoreThanAnInt64Holds) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const auto build = [](int64_t value, int64_t workspace, int64_t base) {
    GraphBuilder g;
    g.input(value);
    g.op("op").workspace(workspace);
    g.base(base);
    return g.build();
  };
  EXPECT_EQ(build(kMost - 3, 2, 1).numValues(), 1);
  EXPECT_THAT([&] { build(kMost - 3, 2, 2); }, ThrowsMessage<FormatError>(HasSubstr("2^63")));
  EXPECT_THAT([&] { build(kMost - 3, 3, 1); }, ThrowsMessage<FormatError>(HasSubstr("2^63")));
  EXPECT_THAT([&] { build(kMost - 2, 2, 1); }, ThrowsMessage<FormatError>(HasSubstr("2^63")));
}

TEST(Graph, RejectsAProducerThatDoesNotListItsValue) {
  expectRefused([](auto&, auto& values) { values[3].producer = OpId(1); },
                HasSubstr("value 3: producer: op 1 (aten::mul) does not list it in its outputs"));
}

TEST(Graph, RejectsProducersAndDeathsOutOfRange) {
  expectRefused([](auto&, auto& values) { values[1].producer = OpId(4); },
                HasSubstr("value 1: producer: expected"));
  expectRefused([](auto&, auto& values) { values[1].producer = OpId(-2); },
                HasSubstr("value 1: producer: expected"));
  expectRefused([](auto&, auto& values) { values[1].death = OpId(5); },
                HasSubstr("value 1: death: expected"));
  expectRefused([](auto&, auto& values) { values[1].death = OpId(-2); },
                HasSubstr("value 1: death: expected"));
}

TEST(Graph, RejectsADeathBeforeTheLastUse) {
  expectRefused([](auto&, auto& values) { values[1].death = OpId(0); },
                AllOf(HasSubstr("value 1: death: expected no earlier than op 1 (aten::mul)"),
                      HasSubstr("got 0")));
  expectRefused([](auto&, auto& values) { values[0].death = OpId(1); },
                HasSubstr("op 2 (aten::add_)"));
}

TEST(Graph, RejectsADeathBeforeTheProducerAndOneThatWasNeverSet) {
  GraphBuilder g;
  g.input(1);
  g.op("a").makes(1);
  g.op("b").makes(1);
  auto values = g.valuesWithDeaths();
  values[2].death = OpId(0);
  EXPECT_THAT([&] { Graph(g.ops, values); },
              ThrowsMessage<FormatError>(HasSubstr("value 2: death")));
  values[2].death = kNoOp;
  EXPECT_THAT([&] { Graph(g.ops, values); },
              ThrowsMessage<FormatError>(HasSubstr("value 2: death")));
}

TEST(Graph, AValueFromOutsideMayBeGoneBeforeTheFirstOpUnlessItIsUsed) {
  GraphBuilder g;
  const ValueId unused = g.input(8);
  const ValueId used = g.input(8);
  g.op("aten::relu").reads({used});
  auto values = g.valuesWithDeaths();
  values[static_cast<size_t>(unused.index)].death = kNoOp;
  EXPECT_NO_THROW(Graph(g.ops, values));
  values[static_cast<size_t>(used.index)].death = kNoOp;
  EXPECT_THAT([&] { Graph(g.ops, values); },
              ThrowsMessage<FormatError>(HasSubstr("value 1: death")));
}

TEST(Graph, RejectsAWriteIntoAValueThatDoesNotExistYet) {
  expectRefused([](auto& ops, auto&) { ops[0].mutates = ids(3); },
                HasSubstr("op 0 (aten::relu): mutates"));
  expectRefused([](auto& ops, auto&) { ops[3].mutates = ids(3); },
                HasSubstr("op 3 (aten::sum): mutates"));
}

TEST(Graph, RejectsWritesOutOfOrderOrTwice) {
  expectRefused([](auto& ops, auto&) { ops[2].mutates = ids(2, 0); },
                HasSubstr("mutates: expected ascending"));
  expectRefused([](auto& ops, auto&) { ops[2].mutates = ids(2, 2); },
                HasSubstr("mutates: expected ascending"));
}

TEST(Graph, RejectsStatisticsThatAreNotMutated) {
  expectRefused(
      [](auto& ops, auto&) { ops[1].statistics = ids(0); },
      AllOf(HasSubstr("op 1 (aten::mul): statistics"), HasSubstr("value 0 is not in mutates")));
}

TEST(Graph, RejectsAMetadataOpThatWrites) {
  expectRefused([](auto& ops, auto&) { ops[2].metadata_only = true; },
                AllOf(HasSubstr("op 2 (aten::add_): metadata_only"), HasSubstr("value 2")));
}

TEST(Graph, RejectsNegativeSizes) {
  expectRefused(
      [](auto&, auto& values) {
        values[0].shape = {3, -1};
      },
      HasSubstr("value 0: shape"));
}

TEST(Graph, RejectsEnumsOutOfRange) {
  expectRefused([](auto& ops, auto&) { ops[0].phase = static_cast<Phase>(9); },
                HasSubstr("op 0 (aten::relu): phase"));
  expectRefused([](auto&, auto& values) { values[0].kind = static_cast<ValueKind>(9); },
                HasSubstr("value 0: kind"));
}

// ---- signature --------------------------------------------------------------------------------

TEST(GraphSignature, IsTheGivenOneOrAHashOfTheStructure) {
  const Small small;
  const auto values = small.g.valuesWithDeaths();
  EXPECT_EQ(Graph(small.g.ops, values, 0, 77).signature(), 77u);
  const Graph hashed(small.g.ops, values);
  EXPECT_NE(hashed.signature(), 0u);
  EXPECT_EQ(hashed.signature(), Graph(small.g.ops, values).signature());
}

TEST(GraphSignature, IgnoresSecondsAndFlops) {
  const Small small;
  auto ops = small.g.ops;
  const auto values = small.g.valuesWithDeaths();
  const uint64_t before = Graph(ops, values).signature();
  ops[0].seconds = 9;
  ops[1].flops = 1e9;
  EXPECT_EQ(Graph(ops, values).signature(), before);
}

TEST(GraphSignature, ChangesWithEveryPartOfTheStructure) {
  using Change = std::function<void(std::vector<Op>&, std::vector<Value>&, int64_t&)>;
  const std::vector<Change> changes = {
      [](auto& ops, auto&, auto&) { ops[0].name = "aten::gelu"; },
      [](auto& ops, auto&, auto&) { ops[0].phase = Phase::kForward; },
      [](auto& ops, auto&, auto&) { ops[0].workspace_bytes = 1; },
      [](auto& ops, auto&, auto&) { ops[1].inputs = ids(0, 1); },
      [](auto& ops, auto&, auto&) { ops[1].outputs = ids(2, 0); },
      [](auto& ops, auto&, auto&) { ops[2].mutates = ids(0, 2); },
      [](auto& ops, auto&, auto&) { ops[2].statistics = ids(2); },
      [](auto& ops, auto&, auto&) { ops[0].metadata_only = true; },
      [](auto& ops, auto&, auto&) { ops[0].reads_no_data = true; },
      [](auto& ops, auto&, auto&) { ops[0].random = true; },
      [](auto& ops, auto&, auto&) { ops[0].replayable = false; },
      [](auto& ops, auto&, auto&) { ops.emplace_back(); },
      [](auto&, auto& values, auto&) { values[1].kind = ValueKind::kGradient; },
      [](auto&, auto& values, auto&) { values[1].bytes = 101; },
      [](auto&, auto& values, auto&) { values[1].death = OpId(2); },
      [](auto&, auto& values, auto&) { values[1].evictable = false; },
      [](auto&, auto& values, auto&) { values[1].dtype = "float32"; },
      [](auto&, auto& values, auto&) { values[1].shape = {25}; },
      [](auto&, auto& values, auto&) { values.emplace_back().death = kNoOp; },
      [](auto&, auto&, auto& base) { base = 1; },
  };
  std::vector<uint64_t> seen;
  const auto signature = [](const Change* change) {
    const Small small;
    auto ops = small.g.ops;
    auto values = small.g.valuesWithDeaths();
    int64_t base = 0;
    if (change) (*change)(ops, values, base);
    return Graph(ops, values, base).signature();
  };
  seen.push_back(signature(nullptr));
  for (const Change& change : changes) seen.push_back(signature(&change));
  for (size_t i = 0; i < seen.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(seen[i], seen[j]) << "changes " << i << " and " << j;
  }
}

TEST(GraphSignature, DoesNotCollideOnRandomGraphs) {
  std::vector<uint64_t> seen;
  for (uint64_t seed = 0; seed < 2000; ++seed) seen.push_back(randomGraph(seed).signature());
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
}

}  // namespace
}  // namespace poet::testing
