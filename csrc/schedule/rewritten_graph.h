// RewrittenGraph: a step with its schedule carried out, as one list of nodes and the edges between
// them. What a compiler for a device would take. Formats: docs/rewritten-graph.md.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "graph/export.h"
#include "graph/graph.h"

namespace poet {

struct Schedule;

// Note [Copies]
// A *copy* is one piece of memory, or of the store, that holds one value from the node that makes
// it to the node that frees it. A value that is freed and comes back has two copies; one that is
// paged out has a copy in the store besides. Writes in place begin a new version within the same
// copy. No piece of memory has two meanings: whoever knows the copies needs to know nothing of
// schedules.
enum class NodeKind : uint8_t { kOp, kRecompute, kPageOut, kPageIn, kFree };
enum class EdgeKind : uint8_t { kData, kOrder, kGenerator };
POET_API std::string_view toString(NodeKind);  // "op", "recompute", "page_out", "page_in", "free"
POET_API std::string_view toString(EdgeKind);  // "data", "order", "generator"

struct RewrittenNode {
  // One version of a copy that the node reads or makes.
  struct Use {
    int32_t copy = -1;
    int32_t version = 0;
    int32_t from = -1;  // node that made this version; -1: it was there before the step. Only reads

    friend bool operator==(const Use&, const Use&) = default;
  };

  NodeKind kind = NodeKind::kOp;
  OpId op;                      // of kOp and kRecompute
  int64_t at = 0;               // ops that have run first by now: op k itself has k
  Phase phase = Phase::kOther;  // of op `at`; at the end of the step, of the last op
  std::string name;             // of the op; of other kinds what toString(kind) says
  Slice slice;                  // of the op
  bool planned = true;      // kFree: by the schedule; not: a natural death, the second copy that a
                            // recompute made of what was in memory still, or retained to the end
  std::vector<Use> reads;   // data, by the values' indices; views and shapes are not data
  std::vector<Use> writes;  // what it makes and what it writes into, likewise
  int32_t frees = -1;       // kFree: the copy
  int64_t resident_bytes = 0;  // in memory while it runs, workspace and generator states included;
                               // of a kFree: what remains
};

struct RewrittenCopy {
  ValueId value;
  int64_t bytes = 0;
  Slice slice = {};  // of the value
  bool in_store = false;
  int32_t from = -1;  // node that makes it; -1: it was there before the step
};

// kData: `to` reads what `from` made. kOrder: `to` overwrites or frees what `from` read or made.
// kGenerator: both draw random numbers, `to` after `from`, or `to` runs `from` again with the same
// numbers; no copy.
// Any order of the nodes in which every edge points forward computes the same bits; the order of
// nodes() also keeps the peak.
struct RewrittenEdge {
  int32_t from = -1;
  int32_t to = -1;
  EdgeKind kind = EdgeKind::kData;
  int32_t copy = -1;
  int32_t version = 0;

  friend auto operator<=>(const RewrittenEdge&, const RewrittenEdge&) = default;
};

// Immutable. Made by Schedule::rewrittenGraph. Generator states count DeviceProfile's default.
class POET_API RewrittenGraph {
 public:
  RewrittenGraph(const Graph& graph, const Schedule& schedule);

  const std::vector<RewrittenNode>& nodes() const { return nodes_; }  // in execution order
  const std::vector<RewrittenCopy>& copies() const { return copies_; }
  const std::vector<RewrittenEdge>& edges() const { return edges_; }  // by `to`, then `from`
  // Where the values that outlive the step are at its end, by value; `from` as in reads.
  const std::vector<RewrittenNode::Use>& results() const { return results_; }
  int64_t peakBytes() const { return peak_bytes_; }  // as the simulator says

  std::string toJson() const;
  std::string toDot() const;  // without the frees that nobody planned
  // By the end of the name: .json, or .dot or .gv. Throws ArgumentError for any other, Error on an
  // I/O failure; replaces the file atomically.
  void save(const std::string& path) const;

  static constexpr int kFormatVersion = 1;

 private:
  friend class GraphRewriter;

  uint64_t graph_signature_ = 0;
  int64_t num_ops_ = 0;
  int64_t base_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  std::vector<RewrittenNode> nodes_;
  std::vector<RewrittenCopy> copies_;
  std::vector<RewrittenEdge> edges_;
  std::vector<RewrittenNode::Use> results_;
};

}  // namespace poet
