#include "graph/graph_validation.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "graph/error.h"

namespace poet::detail {
namespace {

// Checks one op against the values that exist when it runs.
class OpCheck {
 public:
  OpCheck(const std::vector<Op>& ops, const std::vector<Value>& values, OpId id)
      : ops_(ops), values_(values), id_(id), op_(ops[static_cast<size_t>(id.index)]) {}

  void run() const {
    checkNumbers();
    checkIds("inputs", op_.inputs);
    checkIds("outputs", op_.outputs);
    checkIds("mutates", op_.mutates);
    checkIds("statistics", op_.statistics);
    for (ValueId v : op_.inputs) checkExists("inputs", v);
    for (ValueId v : op_.outputs) {
      if (value(v).producer != id_) checkExists("outputs", v);
    }
    for (ValueId v : op_.mutates) checkExists("mutates", v);
    checkSets();
  }

 private:
  const Value& value(ValueId v) const { return values_[static_cast<size_t>(v.index)]; }
  std::string who() const { return describe(ops_, id_); }

  void checkNumbers() const {
    POET_CHECK_AS(FormatError,
                  static_cast<unsigned>(op_.phase) <= static_cast<unsigned>(Phase::kOther), who(),
                  ": phase: expected one of the four phases, got number ",
                  static_cast<int>(op_.phase));
    POET_CHECK_AS(FormatError, std::isfinite(op_.seconds) && op_.seconds >= 0, who(),
                  ": seconds: expected a finite number >= 0, got ", op_.seconds);
    POET_CHECK_AS(FormatError, std::isfinite(op_.host_seconds) && op_.host_seconds >= 0, who(),
                  ": host_seconds: expected a finite number >= 0, got ", op_.host_seconds);
    POET_CHECK_AS(FormatError, std::isfinite(op_.flops) && op_.flops >= 0, who(),
                  ": flops: expected a finite number >= 0, got ", op_.flops);
    POET_CHECK_AS(FormatError, op_.workspace_bytes >= 0, who(),
                  ": workspace_bytes: expected >= 0, got ", op_.workspace_bytes);
  }

  void checkIds(const char* field, const std::vector<ValueId>& list) const {
    for (size_t i = 0; i < list.size(); ++i) {
      POET_CHECK_AS(FormatError,
                    list[i].valid() && static_cast<size_t>(list[i].index) < values_.size(), who(),
                    ": ", field, "[", i, "]: expected a value index in [0, ", values_.size(),
                    "), got ", list[i].index);
    }
  }

  void checkExists(const char* field, ValueId v) const {
    POET_CHECK_AS(FormatError, value(v).producer < id_, who(), ": ", field, ": ", describe(v),
                  " does not exist yet: its producer is ", describe(ops_, value(v).producer));
  }

  void checkAscending(const char* field, const std::vector<ValueId>& list) const {
    const auto wrong = std::adjacent_find(list.begin(), list.end(), std::greater_equal<>());
    POET_CHECK_AS(FormatError, wrong == list.end(), who(), ": ", field,
                  ": expected ascending values without repetition, got ", wrong->index, " before ",
                  (wrong + 1)->index);
  }

  void checkSets() const {
    checkAscending("mutates", op_.mutates);
    checkAscending("statistics", op_.statistics);
    for (ValueId v : op_.statistics) {
      POET_CHECK_AS(FormatError, std::binary_search(op_.mutates.begin(), op_.mutates.end(), v),
                    who(), ": statistics: ", describe(v),
                    " is not in mutates; every updated statistic is a mutated value");
    }
    POET_CHECK_AS(FormatError, !op_.metadata_only || op_.mutates.empty(), who(),
                  ": metadata_only: the op mutates ", describe(op_.mutates.front()),
                  ", and an op that touches no bytes mutates nothing");
  }

  const std::vector<Op>& ops_;
  const std::vector<Value>& values_;
  OpId id_;
  const Op& op_;
};

void checkValue(const std::vector<Op>& ops, const std::vector<Value>& values, ValueId id) {
  const Value& value = values[static_cast<size_t>(id.index)];
  const auto count = static_cast<int64_t>(ops.size());
  POET_CHECK_AS(
      FormatError,
      static_cast<unsigned>(value.kind) <= static_cast<unsigned>(ValueKind::kOptimizerState),
      describe(id), ": kind: expected one of the six kinds, got number ",
      static_cast<int>(value.kind));
  POET_CHECK_AS(FormatError, value.bytes >= 0, describe(id), ": bytes: expected >= 0, got ",
                value.bytes);
  POET_CHECK_AS(FormatError, value.producer >= kNoOp && value.producer.index < count, describe(id),
                ": producer: expected an op index in [0, ", count, "), or -1 for none, got ",
                value.producer.index);
  POET_CHECK_AS(FormatError, value.death >= kNoOp && value.death.index <= count, describe(id),
                ": death: expected an op index in [0, ", count, "], ", count,
                " being the end of the step, got ", value.death.index);
  for (int64_t size : value.shape) {
    POET_CHECK_AS(FormatError, size >= 0, describe(id), ": shape: expected sizes >= 0, got ", size);
  }
  if (value.producer == kNoOp) return;
  const auto& made = ops[static_cast<size_t>(value.producer.index)].outputs;
  POET_CHECK_AS(FormatError, std::find(made.begin(), made.end(), id) != made.end(), describe(id),
                ": producer: ", describe(ops, value.producer), " does not list it in its outputs");
}

}  // namespace

std::string describe(const std::vector<Op>& ops, OpId op) {
  if (op == kNoOp) return "nothing";
  if (op.index == static_cast<int64_t>(ops.size())) return "the end of the step";
  return message("op ", op.index, " (", ops[static_cast<size_t>(op.index)].name, ")");
}

std::string describe(ValueId value) { return message("value ", value.index); }

// Of a step: 30,000 years. Joules of any device, and sums of many replays, stay finite.
constexpr double kMostSeconds = 1e12;

void checkOps(const std::vector<Op>& ops, const std::vector<Value>& values) {
  double seconds = 0;
  for (size_t k = 0; k < ops.size(); ++k) {
    OpCheck(ops, values, OpId(static_cast<int64_t>(k))).run();
    seconds += ops[k].seconds + ops[k].host_seconds;
  }
  POET_CHECK_AS(FormatError, seconds <= kMostSeconds, "graph: the seconds of all ops add up to ",
                seconds, ", expected at most ", kMostSeconds);
}

void checkValues(const std::vector<Op>& ops, const std::vector<Value>& values, int64_t base_bytes) {
  POET_CHECK_AS(FormatError, base_bytes >= 0, "graph: base_bytes: expected >= 0, got ", base_bytes);
  // One sum over everything, so that no sum over a part can overflow later.
  int64_t sum = base_bytes;
  bool fits = true;
  for (size_t v = 0; v < values.size(); ++v) {
    checkValue(ops, values, ValueId(static_cast<int64_t>(v)));
    fits = fits && !__builtin_add_overflow(sum, values[v].bytes, &sum);
  }
  for (const Op& op : ops) fits = fits && !__builtin_add_overflow(sum, op.workspace_bytes, &sum);
  POET_CHECK_AS(
      FormatError, fits,
      "graph: base_bytes, the bytes of all values and all workspaces add up to 2^63 or more");
}

void checkDeaths(const std::vector<Op>& ops, const std::vector<Value>& values,
                 const std::vector<OpId>& last_shown) {
  for (size_t v = 0; v < values.size(); ++v) {
    const OpId least = std::max(values[v].producer, last_shown[v]);
    POET_CHECK_AS(FormatError, values[v].death >= least, describe(ValueId(static_cast<int64_t>(v))),
                  ": death: expected no earlier than ", describe(ops, least),
                  ", which still shows it, got ", values[v].death.index);
  }
}

}  // namespace poet::detail
