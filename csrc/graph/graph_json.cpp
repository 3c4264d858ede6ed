// Graph <-> JSON. Fields that hold their default are left out; one op or value a line, so that two
// files can be compared. See Note [Reading hostile files].
#include <array>
#include <limits>
#include <utility>

#include "graph/error.h"
#include "graph/graph.h"
#include "graph/json_reader.h"

namespace poet {
namespace {

using json::Json;
using json::ObjectReader;
using json::OrderedJson;

constexpr std::string_view kFormat = "poet-graph";

template <class IdType>
void putIds(OrderedJson* object, const char* key, const std::vector<IdType>& ids) {
  if (ids.empty()) return;
  auto& list = (*object)[key] = OrderedJson::array();
  for (IdType id : ids) list.push_back(id.index);
}

void putSlice(OrderedJson* object, const Slice& slice) {
  if (slice != Slice()) (*object)["slice"] = {slice.of, slice.index, slice.count};
}

OrderedJson toJson(const Op& op) {
  const Op none;
  OrderedJson object = {{"name", op.name}};
  if (op.phase != none.phase) object["phase"] = toString(op.phase);
  if (op.seconds != none.seconds) object["seconds"] = op.seconds;
  if (op.host_seconds != none.host_seconds) object["host_seconds"] = op.host_seconds;
  if (op.flops != none.flops) object["flops"] = op.flops;
  if (op.workspace_bytes != none.workspace_bytes) object["workspace_bytes"] = op.workspace_bytes;
  putIds(&object, "inputs", op.inputs);
  putIds(&object, "outputs", op.outputs);
  putIds(&object, "mutates", op.mutates);
  putIds(&object, "statistics", op.statistics);
  if (op.metadata_only) object["metadata_only"] = true;
  if (op.reads_no_data) object["reads_no_data"] = true;
  if (op.random) object["random"] = true;
  if (!op.replayable) object["replayable"] = false;
  putSlice(&object, op.slice);
  return object;
}

OrderedJson toJson(const Value& value) {
  const Value none;
  OrderedJson object = {{"bytes", value.bytes}};
  if (value.kind != none.kind) object["kind"] = toString(value.kind);
  if (value.producer != none.producer) object["producer"] = value.producer.index;
  if (value.death != none.death) object["death"] = value.death.index;
  if (!value.evictable) object["evictable"] = false;
  if (!value.dtype.empty()) object["dtype"] = value.dtype;
  if (!value.shape.empty()) object["shape"] = value.shape;
  putSlice(&object, value.slice);
  return object;
}

template <class Entry>
void putList(std::string* text, const char* key, const std::vector<Entry>& entries) {
  *text += detail::message("\"", key, "\": [");
  for (size_t i = 0; i < entries.size(); ++i) {
    *text += i == 0 ? "\n  " : ",\n  ";
    *text += json::dump(toJson(entries[i]));
  }
  *text += entries.empty() ? "]" : "\n]";
}

template <class Enum, size_t kCount>
Enum parseEnum(const std::string& name, const std::array<Enum, kCount>& known,
               const std::string& where) {
  std::string names;
  for (Enum each : known) {
    if (toString(each) == name) return each;
    names += detail::message(names.empty() ? "" : ", ", '"', toString(each), '"');
  }
  throw FormatError(
      detail::message(where, ": expected one of ", names, ", got \"", name.substr(0, 40), "\""));
}

Slice readSlice(ObjectReader& in) {
  const Json* list = in.find("slice");
  if (list == nullptr) return {};
  const std::string where = in.path("slice");
  const Json::array_t& numbers = json::asList(*list, where);
  POET_CHECK_AS(FormatError, numbers.size() == 3, where,
                ": expected what it is a slice of, which one, and of how many; got ",
                numbers.size(), " numbers");
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  Slice slice;
  slice.of = json::asInteger(numbers[0], where, 0, kMost);
  slice.count = static_cast<int32_t>(json::asInteger(numbers[2], where, 1, kMost));
  slice.index = static_cast<int32_t>(json::asInteger(numbers[1], where, 0, slice.count - 1));
  return slice;
}

Op readOp(const Json& json, size_t index, int64_t num_values) {
  ObjectReader in(json, detail::message("graph: ops[", index, "]"));
  Op op;
  op.name = in.text("name");
  op.phase =
      parseEnum(in.textOr("phase", std::string(toString(op.phase))),
                std::array{Phase::kForward, Phase::kBackward, Phase::kOptimizer, Phase::kOther},
                in.path("phase"));
  op.seconds = in.numberOr("seconds", op.seconds);
  op.host_seconds = in.numberOr("host_seconds", op.host_seconds);
  op.flops = in.numberOr("flops", op.flops);
  op.workspace_bytes = in.integerOr("workspace_bytes", op.workspace_bytes, 0);
  op.inputs = in.ids<ValueId>("inputs", num_values);
  op.outputs = in.ids<ValueId>("outputs", num_values);
  op.mutates = in.ids<ValueId>("mutates", num_values);
  op.statistics = in.ids<ValueId>("statistics", num_values);
  op.metadata_only = in.flagOr("metadata_only", op.metadata_only);
  op.reads_no_data = in.flagOr("reads_no_data", op.reads_no_data);
  op.random = in.flagOr("random", op.random);
  op.replayable = in.flagOr("replayable", op.replayable);
  op.slice = readSlice(in);
  in.finish();
  return op;
}

Value readValue(const Json& json, size_t index, int64_t num_ops) {
  ObjectReader in(json, detail::message("graph: values[", index, "]"));
  Value value;
  value.bytes = in.integer("bytes", 0);
  value.kind = parseEnum(
      in.textOr("kind", std::string(toString(value.kind))),
      std::array{ValueKind::kInput, ValueKind::kParameter, ValueKind::kBuffer,
                 ValueKind::kActivation, ValueKind::kGradient, ValueKind::kOptimizerState},
      in.path("kind"));
  value.producer = OpId(in.integerOr("producer", -1, -1, num_ops - 1));
  value.death = OpId(in.integerOr("death", -1, -1, num_ops));
  value.evictable = in.flagOr("evictable", value.evictable);
  value.dtype = in.textOr("dtype", value.dtype);
  if (const Json* shape = in.find("shape")) {
    const std::string where = in.path("shape");
    for (const Json& size : json::asList(*shape, where)) {
      value.shape.push_back(json::asInteger(size, where, 0, std::numeric_limits<int64_t>::max()));
    }
  }
  value.slice = readSlice(in);
  in.finish();
  return value;
}

}  // namespace

std::string Graph::toJson() const {
  std::string text = detail::message(
      "{\"format\": \"", kFormat, "\", \"version\": ", kFormatVersion, ",\n\"signature\": \"",
      json::toHex(signature_), "\", \"base_bytes\": ", base_bytes_, ",\n");
  putList(&text, "ops", ops_);
  text += ",\n";
  putList(&text, "values", values_);
  text += "\n}\n";
  return text;
}

Graph Graph::fromJson(std::string_view text) {
  const Json document = json::parse(text, "graph");
  json::checkHeader(document, kFormat, kFormatVersion);
  ObjectReader in(document, "graph");
  in.require("format");
  in.require("version");
  const uint64_t signature = in.hex("signature");
  const int64_t base_bytes = in.integer("base_bytes", 0);
  const auto& op_list = json::asList(in.require("ops"), in.path("ops"));
  // No schedule of more ops could be read again.
  POET_CHECK_AS(FormatError, op_list.size() <= static_cast<size_t>(json::kMaxFileOps),
                "graph: ops: expected at most ", json::kMaxFileOps, ", got ", op_list.size());
  const auto& value_list = json::asList(in.require("values"), in.path("values"));
  in.finish();

  // No reserve: a list of a hundred million numbers must fail at its first entry, not ask for the
  // memory of as many ops.
  std::vector<Op> ops;
  std::vector<Value> values;
  for (const Json& op : op_list)
    ops.push_back(readOp(op, ops.size(), static_cast<int64_t>(value_list.size())));
  for (const Json& value : value_list) {
    values.push_back(readValue(value, values.size(), static_cast<int64_t>(op_list.size())));
  }
  return Graph(std::move(ops), std::move(values), base_bytes, signature);
}

}  // namespace poet
