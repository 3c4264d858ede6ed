#include "trace/lending.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/detach.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "trace/listener.h"
#include "trace/tensor_args.h"

namespace poet {
namespace {

using torch::autograd::Node;
using torch::autograd::variable_list;

thread_local std::vector<size_t> t_lent;  // how many by each lending that goes on

// Any instance of the template: `ctx_` stands at the same place in all of them.
struct AnyFunction : torch::autograd::Function<AnyFunction> {
  static variable_list forward(torch::autograd::AutogradContext*, const variable_list& in) {
    return in;
  }
  static variable_list backward(torch::autograd::AutogradContext*, const variable_list& in) {
    return in;
  }
};
using AnyCppNode = torch::autograd::CppNode<AnyFunction>;

bool isCppNode(const Node& node) {
  thread_local std::unordered_map<std::type_index, bool> known;
  const auto [found, is_new] = known.emplace(typeid(node), false);
  if (is_new) found->second = node.name().rfind("torch::autograd::CppNode<", 0) == 0;
  return found->second;
}

class LendBefore final : public torch::autograd::FunctionPreHook {
 public:
  explicit LendBefore(AnyCppNode* node) : node_(node) {}
  variable_list operator()(const variable_list& gradients) override {
    variable_list lent = gradients;
    try {
      const variable_list saved = node_->ctx_.get_saved_variables();
      lent.insert(lent.end(), saved.begin(), saved.end());
    } catch (const c10::Error&) {  // freed, or written since: the node itself will say so
    }
    lend(lent);
    return gradients;
  }

 private:
  AnyCppNode* node_;  // which has this hook
};

class EndAfter final : public torch::autograd::FunctionPostHook {
 public:
  variable_list operator()(const variable_list& outputs, const variable_list& /*inputs*/) override {
    endLending();
    return outputs;
  }
};

void hook(Node& node) {
  for (const auto& one : node.pre_hooks()) {
    if (dynamic_cast<const LendBefore*>(one.get()) != nullptr) return;
  }
  node.add_pre_hook(std::make_unique<LendBefore>(reinterpret_cast<AnyCppNode*>(&node)));
  node.add_post_hook(std::make_unique<EndAfter>());
}

}  // namespace

void lend(const std::vector<at::Tensor>& tensors) {
  Listener* const listener = currentListener();
  if (listener == nullptr) {
    t_lent.push_back(0);
    return;
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard not_for_python(c10::python_ks);
  size_t lent = 0;
  for (const at::Tensor& t : tensors) {
    if (!t.defined() || t.unsafeGetTensorImpl()->is_python_dispatch() || !isManaged(t)) continue;
    at::detach(t);
    listener->onLend(t);  // one by one: it stays while the others come
    ++lent;
  }
  t_lent.push_back(lent);
}

void endLending() {
  if (t_lent.empty()) return;  // it began where nobody listened
  if (Listener* const listener = currentListener()) listener->onLendingEnds(t_lent.back());
  t_lent.pop_back();
}

void lendToCustomNodes(const std::vector<Node*>& roots) {
  Listener* const listener = currentListener();
  if (listener == nullptr || !listener->wantsCustomNodes()) return;
  std::vector<Node*> todo = roots;
  std::unordered_set<Node*> seen(roots.begin(), roots.end());
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    if (isCppNode(*node)) {
      hook(*node);
      listener->noteCustomNode();
    }
    for (const auto& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second)
        todo.push_back(edge.function.get());
    }
  }
}

}  // namespace poet
