#include "graph/slicing.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "graph/error.h"
#include "graph/op_class.h"

namespace poet {
namespace {

constexpr int64_t kOneNumberBytes = 8;
// An op between two of a weight's update that touches no more than this (its step counter) may run
// before the update.
constexpr int64_t kAsideBytes = 64;

// Distinct values that the op shows, ascending.
std::vector<ValueId> shownBy(const Op& op) {
  std::vector<ValueId> shown = op.inputs;
  for (const auto* list : {&op.outputs, &op.mutates}) {
    shown.insert(shown.end(), list->begin(), list->end());
  }
  std::sort(shown.begin(), shown.end());
  shown.erase(std::unique(shown.begin(), shown.end()), shown.end());
  return shown;
}

// Values that must be cut alike, joined by the ops that work on them together.
class Groups {
 public:
  explicit Groups(size_t values) : parent_(values) {
    std::iota(parent_.begin(), parent_.end(), size_t{0});
  }
  size_t of(ValueId v) {
    auto at = static_cast<size_t>(v.index);
    while (parent_[at] != at) at = parent_[at] = parent_[parent_[at]];
    return at;
  }
  void join(ValueId a, ValueId b) { parent_[of(a)] = of(b); }

 private:
  std::vector<size_t> parent_;
};

class Slicer {
 public:
  Slicer(const Graph& graph, const SliceOptions& options)
      : graph_(graph),
        options_(options),
        groups_(static_cast<size_t>(graph.numValues())),
        slices_(static_cast<size_t>(graph.numValues()), 1),
        first_(static_cast<size_t>(graph.numValues())),
        sliceable_(static_cast<size_t>(graph.numOps())) {}

  Graph run() {
    findGroups();
    if (!countSlices()) return graph_;
    makeValues();
    emitAll();
    findDeaths();
    return {std::move(ops_), std::move(values_), graph_.baseBytes()};
  }

 private:
  // Of an op that can be sliced; empty: it cannot.
  std::vector<ValueId> largeOperands(const Op& op) const {
    const bool pure = !op.metadata_only && !op.reads_no_data && !op.random &&
                      op.statistics.empty() && op.phase == Phase::kOptimizer;
    if (!pure || op.outputs.empty() || !isPointwise(op.name)) return {};
    const Value& like = graph_.value(op.outputs.front());
    std::vector<ValueId> large;
    for (ValueId v : shownBy(op)) {
      const Value& value = graph_.value(v);
      if (value.bytes == like.bytes && value.dtype == like.dtype) {
        large.push_back(v);
      } else if (value.bytes > kOneNumberBytes || contains(op.outputs, v) ||
                 contains(op.mutates, v)) {
        return {};
      }
    }
    return like.bytes > kOneNumberBytes ? large : std::vector<ValueId>();
  }

  void findGroups() {
    for (int64_t k = 0; k < graph_.numOps(); ++k) {
      auto& large = sliceable_[static_cast<size_t>(k)];
      large = largeOperands(graph_.op(OpId(k)));
      for (ValueId v : large) groups_.join(large.front(), v);
    }
  }

  // False where nothing is sliced.
  bool countSlices() {
    std::vector<int64_t> pieces(slices_.size(), 1);
    for (const auto& large : sliceable_) {
      if (large.empty()) continue;
      const int64_t bytes = graph_.value(large.front()).bytes;
      const int64_t touched = bytes * static_cast<int64_t>(large.size());
      if (touched <= options_.threshold_bytes) continue;
      auto& most = pieces[groups_.of(large.front())];
      most = std::max(most, (touched + options_.most_bytes - 1) / options_.most_bytes);
    }
    bool any = false;
    for (size_t v = 0; v < slices_.size(); ++v) {
      const int64_t bytes = graph_.value(ValueId(static_cast<int64_t>(v))).bytes;
      const int64_t wanted = std::min<int64_t>(pieces[groups_.of(ValueId(static_cast<int64_t>(v)))],
                                               SliceOptions::kMostSlices);
      if (wanted <= 1) continue;
      const int64_t each = sliceBytes(bytes, wanted);
      slices_[v] = static_cast<int32_t>((bytes + each - 1) / each);
      any |= slices_[v] > 1;
    }
    return any;
  }

  static int64_t sliceBytes(int64_t bytes, int64_t slices) {
    const int64_t each = (bytes + slices - 1) / slices;
    return (each + kSliceAlignment - 1) / kSliceAlignment * kSliceAlignment;
  }

  int32_t slicesOf(ValueId v) const { return slices_[static_cast<size_t>(v.index)]; }
  ValueId slice(ValueId v, int32_t j) const {
    return ValueId(first_[static_cast<size_t>(v.index)] + (slicesOf(v) > 1 ? j : 0));
  }

  void makeValues() {
    for (int64_t i = 0; i < graph_.numValues(); ++i) {
      const ValueId v(i);
      const int32_t count = slicesOf(v);
      first_[static_cast<size_t>(i)] = static_cast<int64_t>(values_.size());
      // As countSlices() did, so that the same number comes out.
      const int64_t bytes = graph_.value(v).bytes;
      const int64_t each = count > 1 ? sliceBytes(bytes, count) : bytes;
      int64_t left = bytes;
      for (int32_t j = 0; j < count; ++j) {
        Value& piece = values_.emplace_back(graph_.value(v));
        piece.slice = {i, j, count};
        if (count == 1) continue;
        piece.bytes = std::min(each, left);
        piece.shape.clear();
        left -= piece.bytes;
      }
    }
  }

  // ---- order ----------------------------------------------------------------------------------

  bool isSliced(OpId op) const {
    const auto& large = sliceable_[static_cast<size_t>(op.index)];
    return !large.empty() && slicesOf(large.front()) > 1;
  }
  size_t groupOf(OpId op) { return groups_.of(sliceable_[static_cast<size_t>(op.index)].front()); }

  void emitAll() {
    for (int64_t k = 0; k < graph_.numOps(); ++k) {
      const OpId op(k);
      if (isSliced(op)) {
        if (!run_.empty() && groupOf(run_.front()) != groupOf(op)) endRun();
        run_.push_back(op);
      } else {
        if (!run_.empty() && !mayGoFirst(op)) endRun();
        emit(op, kWhole);
      }
    }
    endRun();
  }

  // Whether an op after those of the run may run before them instead.
  bool mayGoFirst(OpId id) const {
    const Op& op = graph_.op(id);
    int64_t bytes = 0;
    for (ValueId v : shownBy(op)) {
      if (slicesOf(v) > 1) return false;
      bytes += graph_.value(v).bytes;
    }
    if (bytes > kAsideBytes) return false;
    return std::none_of(run_.begin(), run_.end(), [&](OpId earlier) {
      const auto& read = graph_.op(earlier).inputs;
      return std::any_of(read.begin(), read.end(),
                         [&](ValueId v) { return contains(op.mutates, v); });
    });
  }

  void endRun() {
    if (run_.empty()) return;
    const int32_t count = slicesOf(sliceable_[static_cast<size_t>(run_.front().index)].front());
    for (int32_t j = 0; j < count; ++j) {
      for (OpId op : run_) emit(op, j);
    }
    run_.clear();
  }

  static constexpr int32_t kWhole = -1;

  // Of a list of an op: what stands in its place.
  std::vector<ValueId> sliced(const std::vector<ValueId>& list, int32_t j) const {
    std::vector<ValueId> result;
    for (ValueId v : list) {
      if (j != kWhole) {
        result.push_back(slice(v, j));
      } else {
        for (int32_t i = 0; i < slicesOf(v); ++i) result.push_back(slice(v, i));
      }
    }
    return result;
  }

  void emit(OpId id, int32_t j) {
    const Op& whole = graph_.op(id);
    Op& op = ops_.emplace_back(whole);
    for (auto* list : {&op.inputs, &op.outputs, &op.mutates, &op.statistics})
      *list = sliced(*list, j);
    op.slice = {id.index, 0, 1};
    if (j == kWhole) return;
    const ValueId like = sliceable_[static_cast<size_t>(id.index)].front();
    op.slice = {id.index, j, slicesOf(like)};
    const double share =
        static_cast<double>(values_[static_cast<size_t>(slice(like, j).index)].bytes) /
        static_cast<double>(graph_.value(like).bytes);
    op.seconds *= share;
    op.host_seconds *= share;
    op.flops *= share;
    op.workspace_bytes = (whole.workspace_bytes + op.slice.count - 1) / op.slice.count;
  }

  // ---- lifetimes ------------------------------------------------------------------------------

  // A value dies with the op that it died with, in whichever slice that shows it last, and never
  // before the last op that shows it.
  void findDeaths() {
    std::vector<std::vector<OpId>> places(static_cast<size_t>(graph_.numOps()));
    std::vector<OpId> shown(values_.size(), kNoOp), made(values_.size(), kNoOp);
    for (size_t k = 0; k < ops_.size(); ++k) {
      const OpId here(static_cast<int64_t>(k));
      places[static_cast<size_t>(ops_[k].slice.of)].push_back(here);
      for (ValueId v : shownBy(ops_[k])) shown[static_cast<size_t>(v.index)] = here;
      for (ValueId v : ops_[k].outputs) {
        const OpId producer = values_[static_cast<size_t>(v.index)].producer;
        if (producer.valid() && producer.index == ops_[k].slice.of)
          made[static_cast<size_t>(v.index)] = here;
      }
    }
    const auto end = static_cast<int64_t>(ops_.size());
    for (size_t v = 0; v < values_.size(); ++v) {
      Value& value = values_[v];
      value.producer = made[v];
      if (!value.death.valid()) continue;
      if (value.death == graph_.endOfStep()) {
        value.death = OpId(end);
        continue;
      }
      const auto& at = places[static_cast<size_t>(value.death.index)];
      const bool together = at.size() == static_cast<size_t>(value.slice.count);
      const OpId death = together ? at[static_cast<size_t>(value.slice.index)] : at.back();
      value.death = std::max({death, shown[v], value.producer});
    }
  }

  const Graph& graph_;
  const SliceOptions& options_;
  Groups groups_;
  std::vector<int32_t> slices_;
  std::vector<int64_t> first_;                   // by value: its first slice
  std::vector<std::vector<ValueId>> sliceable_;  // by op: what it would be cut along
  std::vector<OpId> run_;
  std::vector<Op> ops_;
  std::vector<Value> values_;
};

}  // namespace

Graph sliceOptimizer(const Graph& graph, const SliceOptions& options) {
  POET_CHECK(options.threshold_bytes >= 0 && options.most_bytes > 0,
             "slices: expected a threshold from 0 on and bytes above 0; got ",
             options.threshold_bytes, " and ", options.most_bytes);
  const auto is_slice = [](const Op& op) { return op.slice.of >= 0; };
  if (std::any_of(graph.ops().begin(), graph.ops().end(), is_slice)) return graph;
  return Slicer(graph, options).run();
}

}  // namespace poet
