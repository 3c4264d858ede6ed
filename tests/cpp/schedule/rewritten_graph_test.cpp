#include "schedule/rewritten_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "device/profile.h"
#include "graph/error.h"
#include "graph/file_io.h"
#include "schedule/schedule.h"
#include "schedule/simulator.h"
#include "support/graph_builder.h"
#include "support/paging_plan.h"
#include "support/plan_builder.h"
#include "support/random.h"
#include "support/random_graph.h"
#include "support/temporary_folder.h"
#include "support/valid_plan.h"

namespace poet::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;
using Use = RewrittenNode::Use;

DeviceProfile withStore() {
  DeviceProfile device = hostProfile();
  device.store_read_rate = device.store_write_rate = 1e9;
  return device;
}

// ---- a machine that knows copies and nothing else ---------------------------------------------

uint64_t mixed(uint64_t a, uint64_t b) { return Random(a * 0x9e3779b97f4a7c15ULL + b).next(); }

// Runs the nodes in any order. What an op computes depends on which op it is and on the bits that
// it reads (running statistics left out); so a wrong version anywhere shows in what follows.
class CopyMachine {
 public:
  CopyMachine(const Graph& graph, const RewrittenGraph& rewritten)
      : graph_(graph), rewritten_(rewritten), contents_(rewritten.copies().size()) {
    for (size_t c = 0; c < contents_.size(); ++c) {
      const RewrittenCopy& copy = rewritten.copies()[c];
      if (copy.from < 0) contents_[c] = mixed(1, static_cast<uint64_t>(copy.value.index));
    }
  }

  void run(int32_t index) {
    const RewrittenNode& node = rewritten_.nodes()[static_cast<size_t>(index)];
    for (const Use& use : node.reads) ASSERT_TRUE(at(use.copy)) << "node " << index;
    switch (node.kind) {
      case NodeKind::kOp:
      case NodeKind::kRecompute:
        return compute(node);
      case NodeKind::kPageOut:
      case NodeKind::kPageIn:
        ASSERT_EQ(node.reads.size(), 1U);
        ASSERT_EQ(node.writes.size(), 1U);
        at(node.writes[0].copy) = at(node.reads[0].copy);
        return;
      case NodeKind::kFree:
        ASSERT_TRUE(at(node.frees)) << "node " << index << " frees what is not there";
        at(node.frees).reset();
    }
  }

  // What each op read and drew when it ran first, the same of every recompute, and what is left at
  // the end: the identity of the step.
  std::map<int, uint64_t> first_reads;
  std::vector<std::pair<int, uint64_t>> replays;
  std::vector<std::optional<uint64_t>> results() {
    std::vector<std::optional<uint64_t>> left;
    for (const Use& use : rewritten_.results()) left.push_back(at(use.copy));
    return left;
  }

 private:
  std::optional<uint64_t>& at(int32_t copy) { return contents_.at(static_cast<size_t>(copy)); }
  ValueId valueOf(int32_t copy) const {
    return rewritten_.copies()[static_cast<size_t>(copy)].value;
  }

  void compute(const RewrittenNode& node) {
    const auto& statistics = graph_.op(node.op).statistics;
    uint64_t sum = mixed(2, static_cast<uint64_t>(node.op.index));
    for (const Use& use : node.reads) {
      if (std::binary_search(statistics.begin(), statistics.end(), valueOf(use.copy))) continue;
      sum = mixed(sum, *at(use.copy));
    }
    if (graph_.op(node.op).random) {
      if (node.kind == NodeKind::kOp) saved_[node.op.index] = generator_ = mixed(generator_, 3);
      ASSERT_TRUE(saved_.count(node.op.index)) << "drawn again before it was drawn";
      sum = mixed(sum, saved_[node.op.index]);
    }
    if (node.kind == NodeKind::kOp) {
      first_reads[node.op.index] = sum;
    } else {
      replays.emplace_back(node.op.index, sum);
    }
    for (const Use& use : node.writes) {
      const uint64_t old = use.version > 0 ? at(use.copy).value() : 0;
      at(use.copy) = mixed(mixed(old, sum), static_cast<uint64_t>(valueOf(use.copy).index));
    }
  }

  const Graph& graph_;
  const RewrittenGraph& rewritten_;
  std::vector<std::optional<uint64_t>> contents_;
  uint64_t generator_ = 0;
  std::map<int, uint64_t> saved_;  // the generator's state as each random op found it
};

// An order of the nodes in which every edge points forward.
std::vector<int32_t> shuffled(const RewrittenGraph& graph, uint64_t seed) {
  std::vector<int> waits_for(graph.nodes().size(), 0);
  std::vector<std::vector<int32_t>> followers(graph.nodes().size());
  for (const RewrittenEdge& edge : graph.edges()) {
    ++waits_for[static_cast<size_t>(edge.to)];
    followers[static_cast<size_t>(edge.from)].push_back(edge.to);
  }
  std::vector<int32_t> ready;
  for (size_t i = 0; i < waits_for.size(); ++i) {
    if (waits_for[i] == 0) ready.push_back(static_cast<int32_t>(i));
  }
  Random dice(seed);
  std::vector<int32_t> order;
  while (!ready.empty()) {
    const auto pick = static_cast<size_t>(dice.below(static_cast<int64_t>(ready.size())));
    std::swap(ready[pick], ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (const int32_t next : followers[static_cast<size_t>(order.back())]) {
      if (--waits_for[static_cast<size_t>(next)] == 0) ready.push_back(next);
    }
  }
  return order;
}

std::vector<int32_t> asListed(const RewrittenGraph& graph) {
  std::vector<int32_t> order;
  for (size_t i = 0; i < graph.nodes().size(); ++i) order.push_back(static_cast<int32_t>(i));
  return order;
}

// Reads name the node that made what they read, versions count the writes, edges point forward.
void expectConsistent(const RewrittenGraph& graph) {
  std::map<int32_t, std::pair<int32_t, int32_t>> now;  // copy -> version, made by
  for (size_t c = 0; c < graph.copies().size(); ++c) {
    if (graph.copies()[c].from < 0) now[static_cast<int32_t>(c)] = {0, -1};
  }
  std::set<std::tuple<int32_t, int32_t, int32_t>> data;
  for (const RewrittenEdge& edge : graph.edges()) {
    ASSERT_LT(edge.from, edge.to);
    if (edge.kind == EdgeKind::kData) data.insert({edge.from, edge.to, edge.copy});
  }
  size_t reads = 0;
  for (size_t i = 0; i < graph.nodes().size(); ++i) {
    const auto index = static_cast<int32_t>(i);
    const RewrittenNode& node = graph.nodes()[i];
    for (const Use& use : node.reads) {
      ASSERT_EQ(now.at(use.copy), std::pair(use.version, use.from));
      if (use.from < 0) continue;
      ++reads;
      ASSERT_TRUE(data.count({use.from, index, use.copy}));
    }
    for (const Use& use : node.writes) now[use.copy] = {use.version, index};
    if (node.kind == NodeKind::kFree) now.erase(node.frees);
  }
  ASSERT_EQ(reads, data.size());
  for (const Use& use : graph.results()) {
    ASSERT_EQ(now.at(use.copy), std::pair(use.version, use.from));
  }
}

// Adds the copies up afresh.
int64_t peakOf(const Graph& graph, const RewrittenGraph& rewritten) {
  int64_t peak = 0;
  for (const RewrittenNode& node : rewritten.nodes()) peak = std::max(peak, node.resident_bytes);
  int64_t resident = graph.baseBytes();
  std::set<int> generators;
  for (const RewrittenNode& node : rewritten.nodes()) {
    if (node.kind == NodeKind::kRecompute && graph.op(node.op).random)
      generators.insert(node.op.index);
  }
  for (const RewrittenCopy& copy : rewritten.copies()) {
    if (copy.from < 0 && !copy.in_store) resident += copy.bytes;
  }
  for (size_t i = 0; i < rewritten.nodes().size(); ++i) {
    const RewrittenNode& node = rewritten.nodes()[i];
    for (const RewrittenCopy& copy : rewritten.copies()) {
      if (copy.from == static_cast<int32_t>(i) && !copy.in_store) resident += copy.bytes;
    }
    if (node.kind == NodeKind::kOp && generators.count(node.op.index) > 0)
      resident += hostProfile().generator_state_bytes;
    if (node.kind == NodeKind::kFree)
      resident -= rewritten.copies()[static_cast<size_t>(node.frees)].bytes;
    const int64_t workspace = node.op.valid() ? graph.op(node.op).workspace_bytes : 0;
    EXPECT_EQ(node.resident_bytes, resident + workspace) << "node " << i;
  }
  return peak;
}

void expectSameStep(const Graph& graph, const Schedule& schedule) {
  Schedule nothing;
  nothing.graph_signature = graph.signature();
  nothing.num_ops = graph.numOps();
  const RewrittenGraph plain = nothing.rewrittenGraph(graph);
  CopyMachine reference(graph, plain);
  for (const int32_t node : asListed(plain)) reference.run(node);

  const RewrittenGraph rewritten = schedule.rewrittenGraph(graph);
  ASSERT_NO_FATAL_FAILURE(expectConsistent(rewritten));
  ASSERT_EQ(peakOf(graph, rewritten), rewritten.peakBytes());
  ASSERT_EQ(rewritten.peakBytes(), simulate(graph, schedule, withStore()).peak_bytes);
  for (uint64_t seed = 0; seed < 4; ++seed) {
    const auto order = seed == 0 ? asListed(rewritten) : shuffled(rewritten, seed);
    ASSERT_EQ(order.size(), rewritten.nodes().size()) << "the edges lead in a circle";
    CopyMachine machine(graph, rewritten);
    for (const int32_t node : order) ASSERT_NO_FATAL_FAILURE(machine.run(node));
    ASSERT_EQ(machine.first_reads, reference.first_reads);
    for (const auto& [op, sum] : machine.replays) {
      ASSERT_EQ(sum, reference.first_reads.at(op)) << "a recompute of op " << op;
    }
    ASSERT_EQ(machine.results(), reference.results());
  }
}

TEST(RewrittenGraph, RunsToTheSameBitsInItsOrderAndInAnyThatItsEdgesAllow) {
  int64_t recomputes = 0;
  int64_t transfers = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    RandomGraphOptions options;
    if (seed % 3 == 0) options.in_place = options.multi_output = 0.5;
    const Graph graph = randomGraph(seed, options);
    const Schedule paging = pagingPlan(graph, seed);
    const Schedule valid = validPlan(graph, seed, 0.4);
    ASSERT_NO_FATAL_FAILURE(expectSameStep(graph, paging)) << "paging, seed " << seed;
    ASSERT_NO_FATAL_FAILURE(expectSameStep(graph, valid)) << "valid, seed " << seed;
    transfers += paging.countActions(ActionKind::kPageIn);
    recomputes +=
        valid.countActions(ActionKind::kRecompute) + paging.countActions(ActionKind::kRecompute);
  }
  EXPECT_GT(transfers, 1000);
  EXPECT_GT(recomputes, 300);
}

// ---- by hand ----------------------------------------------------------------------------------

// x 8 | relu: a 10 | relu_(a) | sum(a): s 1 | last(a): t 2
struct Step {
  Step() {
    x = g.input(8);
    a = g.op("relu").phase(Phase::kForward).reads({x}).makes(10);
    g.op("relu_").phase(Phase::kForward).writes({a});
    s = g.op("say \"sum\"\\").phase(Phase::kForward).reads({a}).random().makes(1);
    t = g.op("last").phase(Phase::kBackward).reads({a}).random().makes(2);
    g.outlives(t);
  }
  GraphBuilder g;
  ValueId x, a, s, t;
};

std::vector<std::string> kindsOf(const RewrittenGraph& graph) {
  std::vector<std::string> kinds;
  for (const RewrittenNode& node : graph.nodes())
    kinds.push_back(std::string(toString(node.kind)) +
                    (node.kind == NodeKind::kFree && !node.planned ? "*" : ""));
  return kinds;
}

TEST(RewrittenGraph, ListsWhatRuns) {
  const Step step;
  const Graph graph = step.g.build();
  const auto rewritten = PlanBuilder(graph)
                             .before(2)
                             .pageOut(step.x)
                             .before(3)
                             .free(step.a)
                             .recompute({0, 1})
                             .build()
                             .rewrittenGraph(graph);
  EXPECT_THAT(kindsOf(rewritten), ElementsAre("op", "op", "page_out", "op", "free*", "free",
                                              "recompute", "recompute", "op", "free*"));
  const auto& nodes = rewritten.nodes();
  EXPECT_EQ(rewritten.copies().size(), 6U) << "x, a, x in the store, s, a again, t";
  EXPECT_THAT(nodes[6].reads, ElementsAre(Use{0, 0, -1}));
  EXPECT_THAT(nodes[6].writes, ElementsAre(Use{4, 0, -1}));
  EXPECT_THAT(nodes[7].reads, ElementsAre(Use{4, 0, 6}));
  EXPECT_THAT(nodes[7].writes, ElementsAre(Use{4, 1, -1}));
  EXPECT_THAT(nodes[8].reads, ElementsAre(Use{4, 1, 7}));
  EXPECT_EQ(nodes[8].phase, Phase::kBackward);
  EXPECT_EQ(nodes[5].frees, 1);
  EXPECT_EQ(nodes[5].resident_bytes, 8);
  EXPECT_EQ(nodes[3].resident_bytes, 19);
  EXPECT_THAT(rewritten.results(), ElementsAre(Use{0, 0, -1}, Use{5, 0, 8}));
}

TEST(RewrittenGraph, ASecondCopyIsDropped) {
  const Step step;
  const Graph graph = step.g.build();
  const auto rewritten =
      PlanBuilder(graph).before(3).recompute({0, 1}).build().rewrittenGraph(graph);
  EXPECT_THAT(kindsOf(rewritten), ElementsAre("op", "op", "op", "free*", "recompute", "recompute",
                                              "free*", "op", "free*"));
  EXPECT_EQ(rewritten.nodes()[5].resident_bytes, 8 + 10 + 10);
  EXPECT_EQ(rewritten.peakBytes(), 28);
}

TEST(RewrittenGraph, WhatIsAwayBetweenStepsBeginsAndEndsInTheStore) {
  GraphBuilder g;
  const ValueId state = g.input(100, ValueKind::kOptimizerState);
  g.op("add_").writes({state});
  const Graph graph = g.build();
  const auto rewritten = PlanBuilder(graph)
                             .awayBetweenSteps(state)
                             .before(0)
                             .pageIn(state)
                             .before(1)
                             .pageOut(state)
                             .free(state)
                             .build()
                             .rewrittenGraph(graph);
  EXPECT_THAT(kindsOf(rewritten), ElementsAre("page_in", "op", "page_out", "free"));
  ASSERT_EQ(rewritten.results().size(), 1U);
  EXPECT_EQ(rewritten.results()[0], (Use{2, 1, 2}));
  EXPECT_TRUE(rewritten.copies()[2].in_store);
}

TEST(RewrittenGraph, AnEmptyStepHasNoNodes) {
  GraphBuilder g;
  g.input(8);
  const Graph graph = g.build();
  const auto rewritten = PlanBuilder(graph).build().rewrittenGraph(graph);
  EXPECT_TRUE(rewritten.nodes().empty());
  EXPECT_EQ(rewritten.peakBytes(), 8);
  EXPECT_EQ(rewritten.results().size(), 1U);
  EXPECT_EQ(nlohmann::json::parse(rewritten.toJson())["nodes"].size(), 0U);
  EXPECT_THAT(rewritten.toDot(), HasSubstr("digraph rewritten {"));
}

TEST(RewrittenGraph, WhatCannotBeCarriedOutIsRefused) {
  const Step step;
  const Graph graph = step.g.build();
  EXPECT_THROW(PlanBuilder(graph).before(3).free(step.a).build().rewrittenGraph(graph),
               ScheduleError);
  GraphBuilder other;
  other.input(8);
  EXPECT_THROW(PlanBuilder(graph).build().rewrittenGraph(other.build()), ScheduleError);
}

// ---- JSON and Graphviz ------------------------------------------------------------------------

TEST(RewrittenGraph, JsonHoldsEverything) {
  const Step step;
  const Graph graph = step.g.build();
  const auto rewritten = PlanBuilder(graph)
                             .before(2)
                             .pageOut(step.a)
                             .before(3)
                             .free(step.a)
                             .pageIn(step.a)
                             .build()
                             .rewrittenGraph(graph);
  const auto document = nlohmann::json::parse(rewritten.toJson());
  EXPECT_EQ(document["format"], "poet-rewritten-graph");
  EXPECT_EQ(document["version"], 1);
  EXPECT_EQ(document["num_ops"], 4);
  EXPECT_EQ(document["peak_bytes"], rewritten.peakBytes());
  ASSERT_EQ(document["nodes"].size(), rewritten.nodes().size());
  for (size_t i = 0; i < rewritten.nodes().size(); ++i) {
    const auto& json = document["nodes"][i];
    const RewrittenNode& node = rewritten.nodes()[i];
    EXPECT_EQ(json["kind"], toString(node.kind));
    EXPECT_EQ(json["resident_bytes"], node.resident_bytes);
    EXPECT_EQ(json["at"], node.at);
    EXPECT_EQ(json.contains("op"), node.op.valid());
    if (node.kind == NodeKind::kFree) {
      EXPECT_EQ(json["frees"], node.frees);
      continue;
    }
    ASSERT_EQ(json["reads"].size(), node.reads.size());
    for (size_t r = 0; r < node.reads.size(); ++r) {
      EXPECT_EQ(json["reads"][r]["copy"], node.reads[r].copy);
      EXPECT_EQ(json["reads"][r]["version"], node.reads[r].version);
      EXPECT_EQ(json["reads"][r]["from"].is_null(), node.reads[r].from < 0);
    }
    ASSERT_EQ(json["writes"].size(), node.writes.size());
  }
  ASSERT_EQ(document["edges"].size(), rewritten.edges().size());
  for (size_t e = 0; e < rewritten.edges().size(); ++e) {
    const auto& json = document["edges"][e];
    const RewrittenEdge& edge = rewritten.edges()[e];
    EXPECT_EQ(json["from"], edge.from);
    EXPECT_EQ(json["to"], edge.to);
    EXPECT_EQ(json["kind"], toString(edge.kind));
    if (edge.kind == EdgeKind::kGenerator) {
      EXPECT_FALSE(json.contains("copy"));
      continue;
    }
    const RewrittenCopy& copy = rewritten.copies()[static_cast<size_t>(edge.copy)];
    EXPECT_EQ(json["value"], copy.value.index);
    EXPECT_EQ(json["bytes"], copy.bytes);
    EXPECT_EQ(json["version"], edge.version);
  }
  EXPECT_EQ(document["copies"].size(), rewritten.copies().size());
  EXPECT_EQ(document["results"].size(), rewritten.results().size());
}

// Enough of Graphviz's grammar to tell a well-formed file: statements, subgraphs, attribute lists.
class DotParser {
 public:
  explicit DotParser(const std::string& text) : text_(text) {}

  void parse() {
    expect("digraph");
    word();
    statements();
    if (!peek().empty()) throw std::runtime_error("text after the end: " + peek());
  }

  std::map<std::string, std::map<std::string, std::string>> nodes;
  int edges = 0;
  int clusters = 0;

 private:
  std::string peek() {
    const size_t before = at_;
    std::string token = next();
    at_ = before;
    return token;
  }

  std::string next() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_])) != 0) ++at_;
    if (at_ == text_.size()) return "";
    const size_t begin = at_;
    if (text_[at_] == '"') {
      for (++at_; text_.at(at_) != '"'; ++at_) at_ += text_[at_] == '\\' ? 1 : 0;
      return text_.substr(begin, ++at_ - begin);
    }
    if (text_.compare(at_, 2, "->") == 0) {
      at_ += 2;
      return "->";
    }
    const auto is_word = [&](char c) {
      return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
    };
    if (!is_word(text_[at_])) return std::string(1, text_[at_++]);
    while (at_ < text_.size() && is_word(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  void expect(const std::string& token) {
    const std::string found = next();
    if (found != token) throw std::runtime_error("expected " + token + ", got " + found);
  }

  std::string word() {
    std::string found = next();
    const bool good = !found.empty() && (found[0] == '"' || found[0] == '_' ||
                                         std::isalnum(static_cast<unsigned char>(found[0])) != 0);
    if (!good) throw std::runtime_error("expected a word, got " + found);
    return found;
  }

  void statements() {
    expect("{");
    while (peek() != "}") statement();
    expect("}");
  }

  void statement() {
    const std::string first = word();
    if (first == "subgraph") {
      if (word().rfind("cluster_", 0) == 0) ++clusters;
      return statements();
    }
    if (peek() == "=") {
      next();
      word();
    } else if (peek() == "->") {
      next();
      const std::string second = word();
      if (nodes.count(first) == 0 || nodes.count(second) == 0)
        throw std::runtime_error("an edge between unknown nodes");
      ++edges;
      attributes();
    } else {
      const auto found = attributes();
      if (first != "node" && first != "edge") nodes[first] = found;
    }
    expect(";");
  }

  std::map<std::string, std::string> attributes() {
    std::map<std::string, std::string> found;
    if (peek() != "[") return found;
    next();
    while (peek() != "]") {
      const std::string key = word();
      expect("=");
      found[key] = word();
      if (peek() == ",") next();
    }
    next();
    return found;
  }

  const std::string& text_;
  size_t at_ = 0;
};

TEST(RewrittenGraph, GraphvizIsWellFormedAndColoured) {
  const Step step;
  const Graph graph = step.g.build();
  const auto rewritten = PlanBuilder(graph)
                             .before(2)
                             .pageOut(step.x)
                             .free(step.x)
                             .before(3)
                             .pageIn(step.x)
                             .free(step.a)
                             .recompute({0, 1})
                             .build()
                             .rewrittenGraph(graph);
  const std::string text = rewritten.toDot();
  DotParser dot(text);
  ASSERT_NO_THROW(dot.parse()) << text;
  EXPECT_EQ(dot.clusters, 2);
  EXPECT_EQ(dot.nodes.size(), 4U + 2 + 2 + 2) << "ops, transfers, frees of the plan, recomputes";
  const auto colour = [&](const char* node) { return dot.nodes.at(node)["fillcolor"]; };
  EXPECT_NE(colour("n2"), colour("n0")) << "a page_out";
  EXPECT_NE(colour("n8"), colour("n0")) << "a recompute";
  EXPECT_EQ(colour("n8"), colour("n9"));
  EXPECT_THAT(text, AllOf(HasSubstr("again 0: relu"), HasSubstr("page_in 0 (8 B)"),
                          HasSubstr("say \\\"sum\\\"\\\\")));
}

TEST(RewrittenGraph, GraphvizOfRandomStepsIsWellFormed) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = randomGraph(seed);
    const auto rewritten = pagingPlan(graph, seed).rewrittenGraph(graph);
    const std::string text = rewritten.toDot();
    DotParser dot(text);
    ASSERT_NO_THROW(dot.parse()) << text;
    const auto shown =
        std::count_if(rewritten.nodes().begin(), rewritten.nodes().end(),
                      [](const auto& n) { return n.kind != NodeKind::kFree || n.planned; });
    ASSERT_EQ(static_cast<int64_t>(dot.nodes.size()), shown);
  }
}

TEST(RewrittenGraph, IsSavedByTheEndOfItsName) {
  const TemporaryFolder folder;
  const Step step;
  const Graph graph = step.g.build();
  const auto rewritten = PlanBuilder(graph).build().rewrittenGraph(graph);
  rewritten.save(folder / "a.json");
  rewritten.save(folder / "a.dot");
  rewritten.save(folder / "a.gv");
  EXPECT_EQ(readFile(folder / "a.json"), rewritten.toJson());
  EXPECT_EQ(readFile(folder / "a.dot"), rewritten.toDot());
  EXPECT_EQ(readFile(folder / "a.gv"), rewritten.toDot());
  EXPECT_THAT(
      [&] { rewritten.save(folder / "a.svg"); },
      ThrowsMessage<ArgumentError>(AllOf(HasSubstr(".json, .dot or .gv"), HasSubstr("a.svg"))));
  EXPECT_THROW(rewritten.save(folder / "no/folder.dot"), Error);
}

}  // namespace
}  // namespace poet::testing
