#include "trace/op_traits.h"

#include <ATen/ExpandUtils.h>

#include <algorithm>
#include <array>
#include <memory>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "trace/tensor_args.h"

namespace poet {
namespace {

bool holdsTensor(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::TensorType) return true;
  for (const c10::TypePtr& inner : type->containedTypes()) {
    if (holdsTensor(inner)) return true;
  }
  return false;
}

bool handlesTensors(const c10::FunctionSchema& schema) {
  const auto has = [](const c10::Argument& a) { return holdsTensor(a.type()); };
  return std::any_of(schema.arguments().begin(), schema.arguments().end(), has) ||
         std::any_of(schema.returns().begin(), schema.returns().end(), has) || schema.is_vararg() ||
         schema.is_varret();
}

// Collectives return an object to wait for, or write later: their kernels work on other threads.
bool lendsInputs(const c10::FunctionSchema& schema) {
  const std::string& name = schema.name();
  const auto is_object = [](const c10::Argument& a) {
    return a.type()->kind() == c10::TypeKind::ClassType;
  };
  return name.rfind("c10d::", 0) == 0 || name.rfind("_c10d_functional", 0) == 0 ||
         std::any_of(schema.returns().begin(), schema.returns().end(), is_object);
}

// The op's own name: "aten::new_zeros" -> "new_zeros".
std::string_view baseName(const c10::FunctionSchema& schema) {
  const std::string_view name = schema.name();
  const size_t colon = name.rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

bool readsNoData(std::string_view base) {
  static constexpr std::array<std::string_view, 10> kShapeOnly = {
      "empty_like", "zeros_like", "ones_like", "full_like", "rand_like",
      "randn_like", "new_empty",  "new_zeros", "new_ones",  "new_full"};
  return std::find(kShapeOnly.begin(), kShapeOnly.end(), base) != kShapeOnly.end() ||
         base == "randint_like" || base == "new_empty_strided";
}

bool makesUnwritten(const c10::FunctionSchema& schema, std::string_view base) {
  return schema.name().rfind("aten::", 0) == 0 && schema.overload_name() != "out" &&
         (base.rfind("empty", 0) == 0 || base.rfind("new_empty", 0) == 0);
}

// Whether an argument that is written is not read: what in-place ops fill, and what out= names.
bool fills(const c10::FunctionSchema& schema, std::string_view base, size_t arg) {
  static constexpr std::array<std::string_view, 14> kFillers = {
      "copy_",       "fill_",          "zero_",          "normal_",       "uniform_",
      "random_",     "bernoulli_",     "exponential_",   "cauchy_",       "geometric_",
      "log_normal_", "_foreach_copy_", "_foreach_zero_", "_foreach_fill_"};
  if (schema.name().rfind("aten::", 0) != 0) return false;
  return schema.arguments()[arg].is_out() ||
         (arg == 0 && std::find(kFillers.begin(), kFillers.end(), base) != kFillers.end());
}

// Composite functions whose schema says so may copy all the same (reshape, contiguous under
// inference mode): by name.
bool isView(const c10::FunctionSchema& schema, std::string_view base) {
  static constexpr std::array<std::string_view, 20> kViews = {
      "view",   "_unsafe_view",     "_reshape_alias",  "as_strided",
      "t",      "transpose",        "permute",         "expand",
      "slice",  "select",           "squeeze",         "unsqueeze",
      "split",  "split_with_sizes", "unbind",          "diagonal",
      "unfold", "view_as_real",     "view_as_complex", "_conj"};
  return schema.name().rfind("aten::", 0) == 0 && schema.overload_name() != "out" &&
         std::find(kViews.begin(), kViews.end(), base) != kViews.end();
}

// See Note [Statistics of batch norm].
//
// Note [Statistics of batch norm]
// native_batch_norm, cudnn_batch_norm and kin update running_mean and running_var in training; most
// of their schemas do not mark them as written. A replay must not update them a second time, and in
// training it does not read them either: it gets undefined statistics (or scratch copies where the
// schema insists on a tensor).
void findStatistics(const c10::FunctionSchema& schema, std::string_view base, OpTraits& traits) {
  if (base.find("batch_norm") == std::string_view::npos ||
      base.find("backward") != std::string_view::npos)
    return;
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const std::string& name = schema.arguments()[a].name();
    if (name == "running_mean" || name == "running_var")
      traits.statistic_args.push_back(static_cast<int16_t>(a));
    if (name == "training" || name == "train" || name == "use_input_stats")
      traits.training_arg = static_cast<int16_t>(a);
  }
}

std::unique_ptr<OpTraits> makeTraits(const c10::OperatorHandle& op) {
  const c10::FunctionSchema& schema = op.schema();
  const std::string_view base = baseName(schema);
  auto traits = std::make_unique<OpTraits>();
  traits->name =
      schema.overload_name().empty() ? schema.name() : schema.name() + "." + schema.overload_name();
  traits->without_tensors = !handlesTensors(schema);
  traits->random = op.hasTag(at::Tag::nondeterministic_seeded);
  traits->reads_no_data = readsNoData(base);
  traits->is_view = isView(schema, base);
  traits->looks_only =
      traits->is_view || traits->reads_no_data ||
      (schema.name().rfind("aten::", 0) == 0 &&
       (base == "detach" || base == "alias" || base == "lift" || base == "lift_fresh"));
  traits->makes_unwritten = makesUnwritten(schema, base);
  traits->known_pure = schema.name().rfind("aten::", 0) == 0;
  traits->rebinds_storage = base == "set_" || base == "resize_" || base == "resize_as_" ||
                            base == "set_data" || base == "_resize_output_" ||
                            base == "record_stream";
  traits->overwrites_first = traits->known_pure && (base == "copy_" || base == "fill_" ||
                                                    base == "zero_" || base == "_foreach_zero_");
  traits->lends_inputs = lendsInputs(schema);
  for (size_t a = 0; a < schema.arguments().size(); ++a) {
    const c10::AliasInfo* alias = schema.arguments()[a].alias_info();
    traits->writes_arg.push_back(alias != nullptr && alias->isWrite());
    traits->fills_arg.push_back(traits->writes_arg.back() && fills(schema, base, a));
  }
  findStatistics(schema, base, *traits);
  traits->repeatable = traits->known_pure && !schema.is_mutable() && !traits->rebinds_storage &&
                       !traits->lends_inputs && traits->statistic_args.empty();
  traits->shaped_by_data = op.hasTag(at::Tag::dynamic_output_shape) && traits->repeatable;
  return traits;
}

}  // namespace

bool overwrites(const c10::OperatorHandle& op, const c10::IValue* args, const at::Tensor& t) {
  if (!traitsOf(op).overwrites_first || !isManaged(t) ||
      t.unsafeGetTensorImpl()->is_python_dispatch())
    return false;
  const bool is_whole = t.storage_offset() == 0 && t.is_non_overlapping_and_dense() &&
                        static_cast<size_t>(t.numel()) * t.itemsize() == t.storage().nbytes();
  if (!is_whole || op.schema().arguments().size() < 2 || !args[1].isTensor()) return is_whole;
  const at::Tensor& from = args[1].toTensor();
  if (op.schema().name() == "aten::fill_") return isManaged(from) && from.dim() == 0;
  return isManaged(from) && at::is_expandable_to(from.sizes(), t.sizes()) &&
         from.storage().unsafeGetStorageImpl() != t.storage().unsafeGetStorageImpl();
}

const OpTraits& traitsOf(const c10::OperatorHandle& op) {
  static std::mutex mutex;
  static auto* cache = new std::unordered_map<c10::OperatorName, std::unique_ptr<OpTraits>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::unique_ptr<OpTraits>& entry = (*cache)[op.operator_name()];
  if (entry == nullptr) entry = makeTraits(op);
  return *entry;
}

}  // namespace poet
