// Carries a schedule out once more and writes down what happens. The simulator has checked before
// that it can be carried out.
#include "schedule/rewritten_graph.h"

#include <algorithm>
#include <map>
#include <utility>

#include "device/profile.h"
#include "graph/error.h"
#include "schedule/schedule.h"
#include "schedule/simulator.h"

namespace poet {

using Use = RewrittenNode::Use;

class GraphRewriter {
 public:
  GraphRewriter(const Graph& graph, const Schedule& schedule, const DeviceProfile& device,
                RewrittenGraph& out)
      : graph_(graph), schedule_(schedule), device_(device), out_(out) {}

  void run() {
    begin();
    for (int64_t k = 0; k < graph_.numOps(); ++k) {
      at_ = k;
      perform(schedule_.before, k);
      runFirst(OpId(k));
      at_ = k + 1;
      perform(schedule_.after, k);
      letDie(OpId(k));
    }
    perform(schedule_.before, graph_.numOps());
    finish();
  }

 private:
  // What is known of one copy.
  struct State {
    int32_t version = 0;
    int32_t made_by = -1;          // node of its last write
    std::vector<int32_t> readers;  // nodes that have read it since
  };

  void begin();
  void finish();
  void perform(const std::vector<std::vector<Action>>& lists, int64_t k);
  void perform(const Action& action);
  void runFirst(OpId op);
  void letDie(OpId op);
  void recompute(const std::vector<OpId>& chain);
  void replay(OpId op, std::map<ValueId, int32_t>& own);
  void pageOut(ValueId v);
  void pageIn(ValueId v);
  void freeCopy(int32_t copy, bool planned);

  int32_t& inMemory(ValueId v) { return in_memory_[static_cast<size_t>(v.index)]; }
  int32_t& inStore(ValueId v) { return in_store_[static_cast<size_t>(v.index)]; }
  State& state(int32_t copy) { return states_[static_cast<size_t>(copy)]; }
  RewrittenNode& node() { return out_.nodes_.back(); }
  int32_t index() const { return static_cast<int32_t>(out_.nodes_.size()) - 1; }

  RewrittenNode& add(NodeKind kind, OpId op);
  int32_t addCopy(ValueId v, bool in_store, int32_t version);
  void read(int32_t copy);
  void write(int32_t copy);  // the next version in place
  void make(int32_t copy);   // the node makes it afresh
  void orderAfterReaders(int32_t copy);
  void addEdge(int32_t from, EdgeKind kind, int32_t copy);
  void drawAfter(int32_t node);
  void enter(ValueId v, int32_t copy);
  void countBytes(int64_t workspace);
  bool isRetained(ValueId v) const { return retained_[static_cast<size_t>(v.index)] != 0; }

  const Graph& graph_;
  const Schedule& schedule_;
  const DeviceProfile& device_;
  RewrittenGraph& out_;
  int64_t at_ = 0;
  std::vector<State> states_;                      // by copy
  std::vector<int32_t> in_memory_, in_store_;      // by value: its copy, or -1
  std::vector<char> retained_;                     // by value
  std::vector<std::vector<ValueId>> dying_after_;  // by op
  std::vector<char> keeps_generator_;              // by op
  std::vector<int32_t> first_run_;                 // by op: its node
  int32_t last_random_ = -1;                       // node of the last first run that draws
  int64_t resident_bytes_ = 0;
};

void GraphRewriter::begin() {
  const auto ops = static_cast<size_t>(graph_.numOps());
  const auto values = static_cast<size_t>(graph_.numValues());
  in_memory_.assign(values, -1);
  in_store_.assign(values, -1);
  retained_.assign(values, 0);
  dying_after_.resize(ops);
  keeps_generator_.assign(ops, 0);
  first_run_.assign(ops, -1);
  for (const auto* lists : {&schedule_.before, &schedule_.after}) {
    for (const auto& actions : *lists) {
      for (const Action& action : actions) {
        if (action.kind != ActionKind::kRecompute) continue;
        for (const OpId op : schedule_.recipes[static_cast<size_t>(action.arg)])
          keeps_generator_[static_cast<size_t>(op.index)] = graph_.op(op).random;
      }
    }
  }
  resident_bytes_ = graph_.baseBytes();
  const auto& away = schedule_.away_between_steps;
  for (ValueId v(0); v.index < graph_.numValues(); ++v.index) {
    const Value& value = graph_.value(v);
    if (value.death.valid() && value.death < graph_.endOfStep())
      dying_after_[static_cast<size_t>(value.death.index)].push_back(v);
    if (value.producer != kNoOp || !value.death.valid()) continue;
    const bool in_store = std::binary_search(away.begin(), away.end(), v);
    const int32_t copy = addCopy(v, in_store, 0);
    if (in_store) {
      inStore(v) = copy;
    } else {
      inMemory(v) = copy;
      resident_bytes_ += value.bytes;
    }
  }
}

// What was retained goes with the step.
void GraphRewriter::finish() {
  for (ValueId v(0); v.index < graph_.numValues(); ++v.index) {
    if (graph_.value(v).death != graph_.endOfStep()) {
      if (inMemory(v) >= 0) freeCopy(std::exchange(inMemory(v), -1), false);
      continue;
    }
    const int32_t copy = inMemory(v) >= 0 ? inMemory(v) : inStore(v);
    out_.results_.push_back({copy, state(copy).version, state(copy).made_by});
  }
  auto& edges = out_.edges_;
  const auto key = [](const RewrittenEdge& edge) {
    return std::tuple(edge.to, edge.from, edge.kind, edge.copy, edge.version);
  };
  std::sort(edges.begin(), edges.end(),
            [&](const RewrittenEdge& a, const RewrittenEdge& b) { return key(a) < key(b); });
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
}

// ---- what happens -----------------------------------------------------------------------------

void GraphRewriter::perform(const std::vector<std::vector<Action>>& lists, int64_t k) {
  if (lists.empty()) return;
  for (const Action& action : lists[static_cast<size_t>(k)]) perform(action);
}

void GraphRewriter::perform(const Action& action) {
  switch (action.kind) {
    case ActionKind::kFree: {
      const ValueId v(action.arg);
      freeCopy(std::exchange(inMemory(v), -1), true);
      retained_[static_cast<size_t>(v.index)] = 0;
      return;
    }
    case ActionKind::kRetain:
      retained_[static_cast<size_t>(action.arg)] = 1;
      return;
    case ActionKind::kRecompute:
      return recompute(schedule_.recipes[static_cast<size_t>(action.arg)]);
    case ActionKind::kPageOut:
      return pageOut(ValueId(action.arg));
    case ActionKind::kPageIn:
      return pageIn(ValueId(action.arg));
  }
}

void GraphRewriter::runFirst(OpId id) {
  const Op& op = graph_.op(id);
  add(NodeKind::kOp, id);
  first_run_[static_cast<size_t>(id.index)] = index();
  if (op.random) drawAfter(std::exchange(last_random_, index()));
  for (const ValueId v : graph_.dataInputs(id)) read(inMemory(v));
  for (const ValueId v : op.mutates) write(inMemory(v));
  for (const ValueId v : graph_.madeBy(id)) {
    inMemory(v) = addCopy(v, false, 0);
    make(inMemory(v));
  }
  if (keeps_generator_[static_cast<size_t>(id.index)] != 0)
    resident_bytes_ += device_.generator_state_bytes;
  countBytes(op.workspace_bytes);
}

void GraphRewriter::letDie(OpId op) {
  for (const ValueId v : dying_after_[static_cast<size_t>(op.index)]) {
    if (inMemory(v) < 0 || isRetained(v)) continue;
    freeCopy(std::exchange(inMemory(v), -1), false);
  }
}

// Everything that the first op makes gets a copy of its own. Those of values that are in memory
// still are dropped again.
void GraphRewriter::recompute(const std::vector<OpId>& chain) {
  std::map<ValueId, int32_t> own;
  for (const OpId op : chain) replay(op, own);
  for (const auto& [v, copy] : own) {
    if (inMemory(v) >= 0) {
      freeCopy(copy, false);
    } else {
      enter(v, copy);
    }
  }
}

void GraphRewriter::replay(OpId id, std::map<ValueId, int32_t>& own) {
  const Op& op = graph_.op(id);
  add(NodeKind::kRecompute, id);
  if (op.random) drawAfter(first_run_[static_cast<size_t>(id.index)]);
  const auto found = [&](ValueId v) { return own.count(v) > 0 ? own.at(v) : inMemory(v); };
  for (const ValueId v : graph_.dataInputs(id)) {
    if (!std::binary_search(op.statistics.begin(), op.statistics.end(), v)) read(found(v));
  }
  for (const ValueId v : op.mutates) {
    if (own.count(v) > 0) write(own.at(v));
  }
  for (const ValueId v : graph_.madeBy(id)) {
    const int32_t copy = addCopy(v, false, 0);
    own[v] = copy;
    make(copy);
  }
  countBytes(op.workspace_bytes);
}

void GraphRewriter::pageOut(ValueId v) {
  add(NodeKind::kPageOut, kNoOp);
  read(inMemory(v));
  if (inStore(v) >= 0) orderAfterReaders(inStore(v));  // it is replaced
  inStore(v) = addCopy(v, true, state(inMemory(v)).version);
  make(inStore(v));
  countBytes(0);
}

void GraphRewriter::pageIn(ValueId v) {
  add(NodeKind::kPageIn, kNoOp);
  read(inStore(v));
  const int32_t copy = addCopy(v, false, state(inStore(v)).version);
  make(copy);
  enter(v, copy);
  countBytes(0);
}

void GraphRewriter::freeCopy(int32_t copy, bool planned) {
  add(NodeKind::kFree, kNoOp);
  node().planned = planned;
  node().frees = copy;
  orderAfterReaders(copy);
  resident_bytes_ -= out_.copies_[static_cast<size_t>(copy)].bytes;
  node().resident_bytes = resident_bytes_;
}

// ---- bookkeeping ------------------------------------------------------------------------------

RewrittenNode& GraphRewriter::add(NodeKind kind, OpId op) {
  RewrittenNode& added = out_.nodes_.emplace_back();
  added.kind = kind;
  added.op = op;
  added.at = kind == NodeKind::kOp ? op.index : at_;
  if (graph_.numOps() > 0)
    added.phase = graph_.op(OpId(std::min(added.at, graph_.numOps() - 1))).phase;
  added.name = op.valid() ? graph_.op(op).name : std::string(toString(kind));
  if (op.valid()) added.slice = graph_.op(op).slice;
  return added;
}

int32_t GraphRewriter::addCopy(ValueId v, bool in_store, int32_t version) {
  out_.copies_.push_back({v, graph_.value(v).bytes, graph_.value(v).slice, in_store, -1});
  states_.push_back({version, -1, {}});
  return static_cast<int32_t>(out_.copies_.size()) - 1;
}

void GraphRewriter::read(int32_t copy) {
  State& now = state(copy);
  node().reads.push_back({copy, now.version, now.made_by});
  now.readers.push_back(index());
  addEdge(now.made_by, EdgeKind::kData, copy);
}

void GraphRewriter::write(int32_t copy) {
  orderAfterReaders(copy);
  State& now = state(copy);
  now = {now.version + 1, index(), {}};
  node().writes.push_back({copy, now.version, -1});
}

void GraphRewriter::make(int32_t copy) {
  State& now = state(copy);
  now.made_by = out_.copies_[static_cast<size_t>(copy)].from = index();
  node().writes.push_back({copy, now.version, -1});
  if (!out_.copies_[static_cast<size_t>(copy)].in_store)
    resident_bytes_ += out_.copies_[static_cast<size_t>(copy)].bytes;
}

void GraphRewriter::orderAfterReaders(int32_t copy) {
  for (const int32_t reader : state(copy).readers) addEdge(reader, EdgeKind::kOrder, copy);
  // Who reads it comes after who made it.
  if (state(copy).readers.empty()) addEdge(state(copy).made_by, EdgeKind::kOrder, copy);
}

void GraphRewriter::addEdge(int32_t from, EdgeKind kind, int32_t copy) {
  if (from < 0 || from == index()) return;
  out_.edges_.push_back({from, index(), kind, copy, state(copy).version});
}

void GraphRewriter::drawAfter(int32_t node) {
  if (node >= 0) out_.edges_.push_back({node, index(), EdgeKind::kGenerator, -1, 0});
}

void GraphRewriter::enter(ValueId v, int32_t copy) {
  inMemory(v) = copy;
  retained_[static_cast<size_t>(v.index)] = at_ > graph_.lastShown(v).index;
}

void GraphRewriter::countBytes(int64_t workspace) {
  node().resident_bytes = resident_bytes_ + workspace;
}

std::string_view toString(NodeKind kind) {
  switch (kind) {
    case NodeKind::kOp:
      return "op";
    case NodeKind::kRecompute:
      return "recompute";
    case NodeKind::kPageOut:
      return "page_out";
    case NodeKind::kPageIn:
      return "page_in";
    case NodeKind::kFree:
      return "free";
  }
  return "?";
}

std::string_view toString(EdgeKind kind) {
  switch (kind) {
    case EdgeKind::kData:
      return "data";
    case EdgeKind::kOrder:
      return "order";
    case EdgeKind::kGenerator:
      return "generator";
  }
  return "?";
}

// A store of any speed: seconds do not show here.
RewrittenGraph::RewrittenGraph(const Graph& graph, const Schedule& schedule)
    : graph_signature_(graph.signature()),
      num_ops_(graph.numOps()),
      base_bytes_(graph.baseBytes()) {
  DeviceProfile device = hostProfile();
  device.store_read_rate = device.store_write_rate = 1e9;
  peak_bytes_ = simulate(graph, schedule, device).peak_bytes;
  GraphRewriter(graph, schedule, device, *this).run();
}

RewrittenGraph Schedule::rewrittenGraph(const Graph& graph) const {
  checkAgainst(graph);
  return RewrittenGraph(graph, *this);
}

}  // namespace poet
