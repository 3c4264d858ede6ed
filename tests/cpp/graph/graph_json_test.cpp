#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "graph/error.h"
#include "graph/graph.h"
#include "support/corruption.h"
#include "support/graph_builder.h"
#include "support/random_graph.h"
#include "support/temporary_folder.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

void expectSame(const Graph& a, const Graph& b) {
  EXPECT_EQ(a.ops(), b.ops());
  EXPECT_EQ(a.values(), b.values());
  EXPECT_EQ(a.baseBytes(), b.baseBytes());
  EXPECT_EQ(a.signature(), b.signature());
}

Graph graphWithEverything() {
  GraphBuilder g;
  const ValueId x = g.input((int64_t{1} << 53) + 1);
  const ValueId mean = g.input(4, ValueKind::kBuffer);
  const ValueId a =
      g.op("aten::native_dropout").reads({x}).seconds(0.1).random().workspace(17).makes(100);
  g.op("aten::batch_norm")
      .reads({a})
      .updates({mean})
      .phase(Phase::kForward)
      .makes(3, ValueKind::kGradient);
  g.view(a);
  g.op("aten::empty_like").reads({a}).shapeOnly().makes(3, ValueKind::kOptimizerState);
  g.op("opaque \"quoted\" \\ \n \x01 é").notReplayable().phase(Phase::kOptimizer).seconds(1e-300);
  g.op("aten::mul").phase(Phase::kBackward).seconds(std::numeric_limits<double>::denorm_min());
  g.ops.back().flops = 1.0 / 3.0;
  g.notEvictable(a);
  g.parameter(12);
  g.values[0].dtype = "float32";
  g.values[0].shape = {2, 0, int64_t{1} << 60};
  g.base((int64_t{1} << 62) - 1);
  return g.build();
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

template <class Matcher>
void expectRefused(const std::string& text, const Matcher& says) {
  EXPECT_THAT([&] { Graph::fromJson(text); }, ThrowsMessage<FormatError>(says))
      << text.substr(0, 400);
}

TEST(GraphJson, KeepsEveryFieldToTheBit) {
  const Graph graph = graphWithEverything();
  expectSame(graph, Graph::fromJson(graph.toJson()));
}

TEST(GraphJson, KeepsRandomGraphs) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    const Graph graph = randomGraph(seed);
    expectSame(graph, Graph::fromJson(graph.toJson()));
    EXPECT_EQ(graph.toJson(), Graph::fromJson(graph.toJson()).toJson());
  }
}

TEST(GraphJson, KeepsAGivenSignatureAndAnEmptyGraph) {
  const Graph graph({}, {}, 3, 0xfedcba9876543210u);
  EXPECT_THAT(graph.toJson(), HasSubstr("\"fedcba9876543210\""));
  expectSame(graph, Graph::fromJson(graph.toJson()));
}

TEST(GraphJson, SaysWhichVersionsItReads) {
  const std::string text = graphWithEverything().toJson();
  expectRefused(replaced(text, "\"version\": 1", "\"version\": 2"),
                AllOf(HasSubstr("version 2 cannot be read"), HasSubstr("reads version 1")));
  expectRefused(replaced(text, "\"version\": 1", "\"version\": -1"), HasSubstr("version -1"));
  expectRefused(replaced(text, "\"version\": 1", "\"version\": 1.0"), HasSubstr("\"version\""));
  expectRefused(replaced(text, "\"version\": 1", "\"version\": \"1\""), HasSubstr("\"version\""));
  expectRefused(replaced(text, "\"version\": 1", "\"versions\": 1"), HasSubstr("\"version\""));
}

TEST(GraphJson, RejectsOtherFormats) {
  expectRefused(
      "{\"format\": \"poet-schedule\", \"version\": 1}",
      AllOf(HasSubstr("expected \"format\": \"poet-graph\""), HasSubstr("poet-schedule")));
  expectRefused("{}", HasSubstr("got nothing"));
  expectRefused("[1, 2]", HasSubstr("got array"));
  expectRefused("null", HasSubstr("got null"));
  expectRefused("{\"format\": 7}", HasSubstr("poet-graph"));
}

TEST(GraphJson, NamesTheFieldOfAWrongType) {
  const std::string text = graphWithEverything().toJson();
  expectRefused(
      replaced(text, "\"workspace_bytes\":17", "\"workspace_bytes\":17.5"),
      AllOf(HasSubstr("graph: ops[0].workspace_bytes"), HasSubstr("expected an integer")));
  expectRefused(replaced(text, "\"workspace_bytes\":17", "\"workspace_bytes\":\"17\""),
                HasSubstr("got string"));
  expectRefused(replaced(text, "\"workspace_bytes\":17", "\"workspace_bytes\":-17"),
                HasSubstr("got -17"));
  expectRefused(replaced(text, "\"workspace_bytes\":17", "\"workspace_bytes\":9223372036854775808"),
                HasSubstr("got 9223372036854775808"));
  expectRefused(replaced(text, "\"workspace_bytes\":17", "\"workspace_bytes\":1e999"),
                HasSubstr("at ops[0].workspace_bytes: "));
  expectRefused(replaced(text, "\"seconds\":0.1", "\"seconds\":null"),
                HasSubstr("graph: ops[0].seconds"));
  expectRefused(replaced(text, "\"seconds\":0.1", "\"seconds\":NaN"),
                HasSubstr("not valid JSON, or cut short, at ops[0].seconds: "));
  expectRefused(replaced(text, "\"seconds\":0.1", "\"seconds\":-1"),
                HasSubstr("op 0 (aten::native_dropout): seconds"));
  expectRefused(replaced(text, "\"random\":true", "\"random\":1"),
                HasSubstr("expected true or false"));
  expectRefused(replaced(text, "\"inputs\":[0]", "\"inputs\":0"),
                HasSubstr("ops[0].inputs: expected a list"));
  expectRefused(replaced(text, "\"inputs\":[0]", "\"inputs\":[[0]]"), HasSubstr("ops[0].inputs"));
  expectRefused(replaced(text, "\"inputs\":[0]", "\"inputs\":[4294967296]"),
                HasSubstr("got 4294967296"));
  expectRefused(
      replaced(text, "\"phase\":\"forward\"", "\"phase\":\"sideways\""),
      AllOf(HasSubstr("ops[1].phase"), HasSubstr("\"backward\""), HasSubstr("\"sideways\"")));
  expectRefused(replaced(text, "\"kind\":\"gradient\"", "\"kind\":3"),
                HasSubstr(".kind: expected a string"));
  expectRefused(replaced(text, "\"shape\":[2,", "\"shape\":[-2,"), HasSubstr("values[0].shape"));
  expectRefused(replaced(text, "\"name\":\"aten::native_dropout\",", ""),
                HasSubstr("\"name\" is missing"));
  expectRefused(replaced(text, "\"bytes\":9007199254740993,", ""),
                HasSubstr("values[0]: \"bytes\" is missing"));
}

TEST(GraphJson, RejectsASignatureThatIsNone) {
  const std::string text = Graph({}, {}, 0, 1).toJson();
  for (const char* bad : {"\"\"", "\"1\"", "\"00000000000000001\"", "\"000000000000000G\"",
                          "\"-00000000000000\"", "1"}) {
    expectRefused(replaced(text, "\"0000000000000001\"", bad), HasSubstr("graph.signature"));
  }
}

TEST(GraphJson, RejectsKeysThatStandTwiceOrThatNobodyKnows) {
  const std::string text = graphWithEverything().toJson();
  expectRefused(replaced(text, "\"random\":true", "\"random\":true,\"random\":true"),
                AllOf(HasSubstr("\"random\""), HasSubstr("twice")));
  expectRefused(replaced(text, "\"random\":true", "\"rendom\":true"),
                HasSubstr("unknown field \"rendom\""));
  expectRefused(replaced(text, "\"base_bytes\"", "\"colour\": 1, \"base_bytes\""),
                HasSubstr("unknown field \"colour\""));
}

TEST(GraphJson, RejectsAContradictoryGraph) {
  expectRefused(replaced(graphWithEverything().toJson(), "\"producer\":0,", "\"producer\":4,"),
                HasSubstr("does not list it in its outputs"));
}

TEST(GraphJson, SurvivesDeepNesting) {
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string deep;
    for (int i = 0; i < 1000000; ++i) deep += opening;
    expectRefused(deep, HasSubstr("nested more than"));
  }
}

TEST(GraphJson, SurvivesLongListsOfNonsense) {
  std::string list = "[1";
  for (int i = 0; i < 300000; ++i) list += ",1";
  expectRefused(
      "{\"format\": \"poet-graph\", \"version\": 1, \"signature\": \"0000000000000001\", "
      "\"base_bytes\": 0, "
      "\"ops\": " +
          list + "], \"values\": []}",
      HasSubstr("graph: ops[0]: expected an object, got number"));
}

TEST(GraphJson, RejectsTheDocumentCutShortAnywhere) {
  const std::string text = graphWithEverything().toJson();
  ASSERT_EQ(text.back(), '\n');
  for (size_t length = 0; length + 1 < text.size(); ++length) {
    EXPECT_THAT([&] { Graph::fromJson(std::string_view(text).substr(0, length)); },
                ThrowsMessage<FormatError>(HasSubstr("graph: not valid JSON, or cut short")));
  }
}

TEST(GraphJson, SurvivesRandomDamage) {
  int64_t readable = 0;
  int64_t refused = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const std::string text = randomGraph(seed).toJson();
    for (uint64_t round = 0; round < 150; ++round) {
      const std::string damaged = corrupted(text, seed * 1000 + round);
      try {
        const Graph graph = Graph::fromJson(damaged);
        expectSame(graph, Graph::fromJson(graph.toJson()));
        ++readable;
      } catch (const FormatError&) {
        ++refused;
      }  // anything else ends the test
    }
  }
  EXPECT_GT(refused, 3000);
  EXPECT_GT(readable, 10) << "some damage is another valid graph";
}

// ---- files ------------------------------------------------------------------------------------

TEST(GraphFile, IsReadBackAsItWasSaved) {
  const TemporaryFolder folder;
  const Graph graph = graphWithEverything();
  graph.save(folder / "graph.json");
  expectSame(graph, Graph::load(folder / "graph.json"));
}

TEST(GraphFile, IsNamedInErrors) {
  const TemporaryFolder folder;
  EXPECT_THAT([&] { Graph::load(folder / "none.json"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("none.json"), HasSubstr("No such file"))));
  folder.write("cut.json", graphWithEverything().toJson().substr(0, 100));
  EXPECT_THAT([&] { Graph::load(folder / "cut.json"); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr("cut.json"), HasSubstr("cut short"))));
}

}  // namespace
}  // namespace poet::testing
