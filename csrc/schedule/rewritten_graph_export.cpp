// RewrittenGraph -> JSON and Graphviz. Both are for reading and for other programs: docs/
// rewritten-graph.md says what stands in them.
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "graph/error.h"
#include "graph/file_io.h"
#include "graph/json_reader.h"
#include "schedule/rewritten_graph.h"

namespace poet {
namespace {

using json::OrderedJson;
using Use = RewrittenNode::Use;

// ---- JSON -------------------------------------------------------------------------------------

constexpr std::string_view kRewrittenFormat = "poet-rewritten-graph";

OrderedJson orNull(int64_t index) { return index < 0 ? OrderedJson() : OrderedJson(index); }

void putSlice(OrderedJson& object, const Slice& slice) {
  if (slice != Slice())
    object["slice"] = {{"of", slice.of}, {"index", slice.index}, {"count", slice.count}};
}

OrderedJson entryToJson(const RewrittenCopy& copy) {
  OrderedJson object = {{"value", copy.value.index},
                        {"bytes", copy.bytes},
                        {"in", copy.in_store ? "store" : "memory"},
                        {"from", orNull(copy.from)}};
  putSlice(object, copy.slice);
  return object;
}

OrderedJson readToJson(const Use& use) {
  return {{"copy", use.copy}, {"version", use.version}, {"from", orNull(use.from)}};
}

OrderedJson entryToJson(const RewrittenNode& node) {
  OrderedJson object = {{"kind", toString(node.kind)}};
  if (node.op.valid()) {
    object["op"] = node.op.index;
    object["name"] = node.name;
    putSlice(object, node.slice);
  }
  object["at"] = node.at;
  object["phase"] = toString(node.phase);
  if (node.kind == NodeKind::kFree) {
    object["frees"] = node.frees;
    object["planned"] = node.planned;
  } else {
    auto& reads = object["reads"] = OrderedJson::array();
    for (const Use& use : node.reads) reads.push_back(readToJson(use));
    auto& writes = object["writes"] = OrderedJson::array();
    for (const Use& use : node.writes)
      writes.push_back({{"copy", use.copy}, {"version", use.version}});
  }
  object["resident_bytes"] = node.resident_bytes;
  return object;
}

OrderedJson edgeToJson(const RewrittenEdge& edge, const std::vector<RewrittenCopy>& copies) {
  OrderedJson object = {{"from", edge.from}, {"to", edge.to}, {"kind", toString(edge.kind)}};
  if (edge.copy < 0) return object;
  const RewrittenCopy& copy = copies[static_cast<size_t>(edge.copy)];
  object["copy"] = edge.copy;
  object["value"] = copy.value.index;
  object["version"] = edge.version;
  object["bytes"] = copy.bytes;
  return object;
}

// One entry a line.
template <class List, class Convert>
std::string linesOf(const List& list, const Convert& convert) {
  std::string text;
  for (const auto& entry : list)
    text += (text.empty() ? "\n  " : ",\n  ") + json::dump(convert(entry));
  return text.empty() ? "[]" : "[" + text + "\n]";
}

// ---- Graphviz ---------------------------------------------------------------------------------

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') result += '\\';
    result += static_cast<unsigned char>(letter) < ' ' ? ' ' : letter;
  }
  return result + '"';
}

std::string sizeOf(int64_t bytes) {
  static constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto size = static_cast<double>(bytes);
  size_t unit = 0;
  for (; size >= 1024 && unit + 1 < kUnits.size(); ++unit) size /= 1024;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.1f %s", size, kUnits[unit]);
  return text.data();
}

const char* styleOf(NodeKind kind) {
  switch (kind) {
    case NodeKind::kOp:
      return "shape=box, style=filled, fillcolor=\"#ffffff\"";
    case NodeKind::kRecompute:
      return "shape=box, style=\"filled,rounded\", fillcolor=\"#f6c177\"";
    case NodeKind::kPageOut:
      return "shape=cds, style=filled, fillcolor=\"#9ecbff\"";
    case NodeKind::kPageIn:
      return "shape=cds, style=filled, fillcolor=\"#5aa9ff\"";
    case NodeKind::kFree:
      return "shape=plaintext, fontcolor=\"#8a8f98\"";
  }
  return "";
}

class DotWriter {
 public:
  explicit DotWriter(const RewrittenGraph& graph) : graph_(graph) {}

  std::string write() {
    text_ =
        "digraph rewritten {\n"
        "  rankdir=TB;\n"
        "  node [fontname=\"sans-serif\", fontsize=10];\n"
        "  edge [fontname=\"sans-serif\", fontsize=8, color=\"#555555\"];\n";
    for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kOther})
      writePhase(phase);
    for (const RewrittenEdge& edge : graph_.edges()) writeEdge(edge);
    writeOrder();
    return text_ + "}\n";
  }

 private:
  const RewrittenNode& node(int32_t index) const {
    return graph_.nodes()[static_cast<size_t>(index)];
  }
  const RewrittenCopy& copy(int32_t index) const {
    return graph_.copies()[static_cast<size_t>(index)];
  }
  static bool isShown(const RewrittenNode& node) {
    return node.kind != NodeKind::kFree || node.planned;
  }

  void writePhase(Phase phase) {
    std::string lines;
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const RewrittenNode& each = graph_.nodes()[i];
      if (each.phase != phase || !isShown(each)) continue;
      lines += detail::message("    n", i, " [label=", quoted(labelOf(each)), ", ",
                               styleOf(each.kind), "];\n");
    }
    if (lines.empty()) return;
    const std::string_view name = toString(phase);
    text_ += detail::message("  subgraph cluster_", name, " {\n    label=", quoted(name), ";\n",
                             "    color=\"#cccccc\";\n", lines, "  }\n");
  }

  static std::string sliceLabel(const Slice& slice) {
    if (slice.count == 1) return "";
    return detail::message(" [", slice.index + 1, " of ", slice.count, "]");
  }

  std::string labelOf(const RewrittenNode& each) const {
    if (each.op.valid())
      return detail::message(each.kind == NodeKind::kRecompute ? "again " : "", each.op.index, ": ",
                             each.name, sliceLabel(each.slice));
    const int32_t moved = each.kind == NodeKind::kFree ? each.frees : each.reads.front().copy;
    return detail::message(each.name, " ", copy(moved).value.index, " (", sizeOf(copy(moved).bytes),
                           ")");
  }

  // Of the edges that only order, those to what the schedule adds.
  void writeEdge(const RewrittenEdge& edge) {
    if (!isShown(node(edge.to))) return;
    const bool orders = edge.kind != EdgeKind::kData;
    if (orders && node(edge.to).kind == NodeKind::kOp) return;
    text_ += detail::message("  n", edge.from, " -> n", edge.to);
    if (orders) {
      text_ += " [style=dashed, color=\"#bbbbbb\"];\n";
      return;
    }
    const RewrittenCopy& moved = copy(edge.copy);
    const std::string version = edge.version > 0 ? detail::message(".", edge.version) : "";
    text_ += detail::message(
        " [label=", quoted(detail::message(moved.value.index, version, ", ", sizeOf(moved.bytes))),
        "];\n");
  }

  // Keeps the nodes in the order in which they run.
  void writeOrder() {
    int32_t last = -1;
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      if (!isShown(graph_.nodes()[i])) continue;
      if (last >= 0) text_ += detail::message("  n", last, " -> n", i, " [style=invis];\n");
      last = static_cast<int32_t>(i);
    }
  }

  const RewrittenGraph& graph_;
  std::string text_;
};

bool endsWith(const std::string& text, std::string_view end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

}  // namespace

std::string RewrittenGraph::toJson() const {
  const auto convert = [](const auto& entry) { return entryToJson(entry); };
  const auto edge = [this](const RewrittenEdge& each) { return edgeToJson(each, copies_); };
  const OrderedJson signature = json::toHex(graph_signature_);
  return detail::message(
      "{\"format\": ", json::dump(kRewrittenFormat), ",\n\"version\": ", kFormatVersion,
      ",\n\"graph_signature\": ", json::dump(signature), ",\n\"num_ops\": ", num_ops_,
      ",\n\"base_bytes\": ", base_bytes_, ",\n\"peak_bytes\": ", peak_bytes_,
      ",\n\"copies\": ", linesOf(copies_, convert), ",\n\"nodes\": ", linesOf(nodes_, convert),
      ",\n\"edges\": ", linesOf(edges_, edge), ",\n\"results\": ", linesOf(results_, readToJson),
      "\n}\n");
}

std::string RewrittenGraph::toDot() const { return DotWriter(*this).write(); }

void RewrittenGraph::save(const std::string& path) const {
  const bool is_json = endsWith(path, ".json");
  POET_CHECK(is_json || endsWith(path, ".dot") || endsWith(path, ".gv"),
             "path: expected a name that ends in .json, .dot or .gv, got '", path, "'");
  writeFileAtomically(path, is_json ? toJson() : toDot());
}

}  // namespace poet
