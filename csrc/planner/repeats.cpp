#include "planner/repeats.h"

#include <algorithm>
#include <string_view>

namespace poet::planner {
namespace {

uint64_t mix(uint64_t hash, uint64_t word) {
  hash ^= word + 0x9e3779b97f4a7c15ULL + (hash << 12) + (hash >> 4);
  hash *= 0xff51afd7ed558ccdULL;
  return hash ^ (hash >> 33);
}

uint64_t hashOf(std::string_view text) {  // FNV-1a: the same on every machine
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

uint64_t alone(const Graph& graph, const Op& op) {
  uint64_t hash = mix(hashOf(op.name), static_cast<uint64_t>(op.phase));
  hash = mix(hash, static_cast<uint64_t>(op.workspace_bytes));
  for (const auto* list : {&op.inputs, &op.outputs, &op.mutates}) {
    hash = mix(hash, list->size());
    for (const ValueId v : *list) {
      hash = mix(hash, static_cast<uint64_t>(graph.value(v).bytes));
      hash = mix(hash, static_cast<uint64_t>(graph.value(v).kind));
    }
  }
  return hash;
}

}  // namespace

std::vector<uint64_t> opColours(const Graph& graph) {
  std::vector<uint64_t> colours;
  for (const Op& op : graph.ops()) colours.push_back(alone(graph, op));
  std::vector<uint64_t> around;
  for (int reach = 0; reach < kReach; ++reach) {
    std::vector<uint64_t> refined = colours;
    for (size_t k = 0; k < colours.size(); ++k) {
      const OpId id(static_cast<int64_t>(k));
      for (const ValueId v : graph.op(id).inputs) {
        const OpId producer = graph.value(v).producer;
        const bool before = producer.valid() && producer < id;
        refined[k] = mix(refined[k], before ? colours[static_cast<size_t>(producer.index)] : 1);
      }
      around.clear();  // sorted: who reads first is no part of the structure
      for (const ValueId v : graph.op(id).outputs) {
        if (graph.value(v).producer != id) continue;
        for (const OpId reader : graph.usesOf(v))
          around.push_back(colours[static_cast<size_t>(reader.index)]);
      }
      std::sort(around.begin(), around.end());
      for (const uint64_t colour : around) refined[k] = mix(refined[k], colour);
    }
    colours = std::move(refined);
  }
  return colours;
}

}  // namespace poet::planner
