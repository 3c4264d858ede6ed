#include "graph/op_class.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace poet {
namespace {

constexpr std::array<std::string_view, 3> kConvolutions = {"convolution", "conv2d", "Conv2d"};
constexpr std::array<std::string_view, 13> kMatmuls = {"mm",
                                                       "addmm",
                                                       "bmm",
                                                       "baddbmm",
                                                       "addbmm",
                                                       "mv",
                                                       "addmv",
                                                       "dot",
                                                       "vdot",
                                                       "linear",
                                                       "_addmm_activation",
                                                       "LinearLayer",
                                                       "GradientLinearLayer"};

constexpr std::string_view kPointwise[] = {
    "abs",  "add",    "addcdiv", "addcmul", "clamp", "clamp_max", "clamp_min", "copy",
    "div",  "exp",    "fill",    "lerp",    "log",   "maximum",   "minimum",   "mul",
    "neg",  "pow",    "relu",    "rsqrt",   "rsub",  "sgn",       "sigmoid",   "sign",
    "sqrt", "square", "sub",     "tanh",    "zero",  "reciprocal"};

bool contains(std::string_view name, std::string_view part) {
  return name.find(part) != std::string_view::npos;
}

// "aten::add_.Tensor" -> "add_".
std::string_view baseName(std::string_view name) {
  const size_t colons = name.rfind("::");
  if (colons != std::string_view::npos) name.remove_prefix(colons + 2);
  return name.substr(0, name.find('.'));
}

}  // namespace

std::string_view toString(OpClass op_class) {
  switch (op_class) {
    case OpClass::kConvolution:
      return "convolution";
    case OpClass::kMatmul:
      return "matmul";
    case OpClass::kElementwise:
      return "elementwise";
  }
  return "";
}

OpClass opClassOf(std::string_view name) {
  const std::string_view base = baseName(name);
  for (std::string_view part : kConvolutions) {
    if (contains(base, part)) return OpClass::kConvolution;
  }
  if (std::find(kMatmuls.begin(), kMatmuls.end(), base) != kMatmuls.end()) return OpClass::kMatmul;
  if (contains(base, "scaled_dot_product") || contains(base, "rnn_layer")) return OpClass::kMatmul;
  return OpClass::kElementwise;
}

bool isPointwise(std::string_view name) {
  std::string_view base = baseName(name);
  if (base.ends_with('_')) base.remove_suffix(1);
  return std::find(std::begin(kPointwise), std::end(kPointwise), base) != std::end(kPointwise);
}

}  // namespace poet
