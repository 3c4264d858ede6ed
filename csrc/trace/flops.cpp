#include "trace/flops.h"

#include <algorithm>
#include <map>

namespace poet {
namespace {

c10::IntArrayRef sizesOf(const Slot& slot) { return slot.look->sizes; }

double numel(const Slot& slot) {
  double n = 1;
  for (int64_t size : sizesOf(slot)) n *= static_cast<double>(size);
  return n;
}

// The tensor that stands at that place of the call; nullptr where none does.
const Slot* at(std::span<const Slot> slots, int arg) {
  for (const Slot& slot : slots) {
    if (slot.arg == arg && slot.value.valid()) return &slot;
  }
  return nullptr;
}

// Two flops a multiply-add of every output pixel with every weight that reaches it. `result` and
// `source` are the two sides of the convolution. A transposed one goes from the small side to the
// large one, and its weight begins with the channels of its source.
double convolution(const Slot& source, const Slot& weight, const Slot& result) {
  if (sizesOf(weight).empty() || sizesOf(source).size() < 2 || sizesOf(result).size() < 2) return 0;
  const int64_t first = sizesOf(weight)[0];
  if (first == 0) return 0;
  const bool transposed =
      sizesOf(source)[1] == first && (sizesOf(result)[1] != first || numel(source) < numel(result));
  return 2 * numel(transposed ? source : result) * numel(weight) / static_cast<double>(first);
}

double convolutionBackward(std::span<const Slot> in, std::span<const Slot> out) {
  const Slot *gradient = at(in, 0), *source = at(in, 1), *weight = at(in, 2);
  if (gradient == nullptr || source == nullptr || weight == nullptr) return 0;
  const double forward = convolution(*source, *weight, *gradient);
  double flops = at(out, 2) != nullptr ? numel(*gradient) : 0;
  if (at(out, 0) != nullptr) flops += forward;
  if (at(out, 1) != nullptr) flops += forward;
  return flops;
}

// (…, m, k) times (k, n), or (b, m, k) times (b, k, n): 2 m k n for each of the batch.
double product(std::span<const Slot> in, int left, int right) {
  const Slot *a = at(in, left), *b = at(in, right);
  if (a == nullptr || b == nullptr) return 0;
  const double columns = sizesOf(*b).size() < 2 ? 1 : static_cast<double>(sizesOf(*b).back());
  return 2 * numel(*a) * columns;
}

double linear(std::span<const Slot> in) {
  const Slot *x = at(in, 0), *weight = at(in, 1);
  if (x == nullptr || weight == nullptr || sizesOf(*weight).empty()) return 0;
  return 2 * numel(*x) * static_cast<double>(sizesOf(*weight)[0]);
}

// Products of a fused attention: two in the forward pass (scores, values), five in the backward
// pass, which makes the scores again.
double attention(std::span<const Slot> in, bool backward) {
  const int first = backward ? 1 : 0;
  const Slot *query = at(in, first), *key = at(in, first + 1);
  if (query == nullptr || key == nullptr || sizesOf(*key).size() < 2) return 0;
  const double length = static_cast<double>(sizesOf(*key)[sizesOf(*key).size() - 2]);
  return (backward ? 5 : 2) * 2 * numel(*query) * length;
}

// Two products a gate with all weights for each step of the sequence; twice that backward.
double recurrent(std::span<const Slot> in, bool backward) {
  const Slot *x = at(in, 0), *w1 = at(in, 1), *w2 = at(in, 2);
  if (x == nullptr || w1 == nullptr || w2 == nullptr || sizesOf(*x).size() < 3) return 0;
  const double rows = static_cast<double>(sizesOf(*x)[0]) * static_cast<double>(sizesOf(*x)[1]);
  return (backward ? 4 : 2) * rows * (numel(*w1) + numel(*w2));
}

bool readsATable(std::string_view base) {
  return base == "embedding" || base == "index_select" || base == "index" || base == "gather";
}

double elementwise(std::string_view base, std::span<const Slot> in, std::span<const Slot> out) {
  std::map<int, double> of_argument;  // a list counts as one
  double results = 0;
  for (const Slot& slot : out) results += slot.value.valid() ? numel(slot) : 0;
  for (const Slot& slot : in) {
    if (slot.value.valid() && !(slot.arg == 0 && readsATable(base)))
      of_argument[slot.arg] += numel(slot);
  }
  double most = results;
  for (const auto& [arg, n] : of_argument) most = std::max(most, n);
  return most;
}

bool startsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}

bool endsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() && text.substr(text.size() - suffix.size()) == suffix;
}

}  // namespace

double flopsOf(std::string_view name, std::span<const Slot> in, std::span<const Slot> out) {
  std::string_view base = name.substr(name.rfind(':') + 1);
  base = base.substr(0, base.find('.'));
  const bool backward = endsWith(base, "_backward");
  if (base == "mm" || base == "bmm" || base == "mv" || base == "dot") return product(in, 0, 1);
  if (base == "addmm" || base == "baddbmm" || base == "addmv" || base == "addbmm" ||
      base == "_addmm_activation") {
    return product(in, 1, 2);
  }
  if (base == "linear") return linear(in);
  if (base == "convolution_backward") return convolutionBackward(in, out);
  if (base == "convolution" || base == "_convolution" || base == "mkldnn_convolution") {
    const Slot *source = at(in, 0), *weight = at(in, 1), *result = at(out, 0);
    if (source && weight && result) return convolution(*source, *weight, *result);
  }
  if (startsWith(base, "_scaled_dot_product")) return attention(in, backward);
  if (startsWith(base, "mkldnn_rnn_layer")) return recurrent(in, backward);
  return elementwise(base, in, out);
}

}  // namespace poet
