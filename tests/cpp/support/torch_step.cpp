#include "support/torch_step.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstring>
#include <utility>

namespace poet::testing {
namespace {

using Forward = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor generatorState(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

struct Training {
  torch::nn::ModuleList modules;
  Forward forward;
  at::Tensor x, y;
  int64_t calls_per_update = 1;
  at::Generator own_generator;  // undefined where the step has none
  std::unique_ptr<torch::optim::AdamW> optimizer;

  void makeOptimizer() {
    optimizer = std::make_unique<torch::optim::AdamW>(modules->parameters(),
                                                      torch::optim::AdamWOptions(0.01));
  }

  void update(Session* session) {
    if (session != nullptr) session->enterOptimizer();
    optimizer->step();
    if (session != nullptr) session->leaveOptimizer();
    optimizer->zero_grad();
  }

  at::Tensor run(int call, Session* session) {
    if (calls_per_update == 1) optimizer->zero_grad();
    const at::Tensor loss = at::cross_entropy_loss(forward(x), y);
    loss.backward();
    if (calls_per_update == 1) {
      if (session != nullptr) session->enterOptimizer();
      optimizer->step();
      if (session != nullptr) session->leaveOptimizer();
    } else if ((call + 1) % calls_per_update == 0) {
      update(session);
    }
    return loss.detach();
  }

  State state() const {
    State found;
    for (const auto& item : modules->named_parameters()) {
      found[item.key()] = item.value().detach().clone();
      if (item.value().grad().defined()) found[item.key() + ".grad"] = item.value().grad().clone();
      const auto kept = optimizer->state().find(item.value().unsafeGetTensorImpl());
      if (kept == optimizer->state().end()) continue;
      const auto& adamw = static_cast<const torch::optim::AdamWParamState&>(*kept->second);
      found[item.key() + ".exp_avg"] = adamw.exp_avg().clone();
      found[item.key() + ".exp_avg_sq"] = adamw.exp_avg_sq().clone();
      found[item.key() + ".step"] = at::scalar_tensor(adamw.step(), at::kLong);
    }
    for (const auto& item : modules->named_buffers()) found[item.key()] = item.value().clone();
    found["generator"] = generatorState(at::detail::getDefaultCPUGenerator());
    if (own_generator.defined()) found["own generator"] = generatorState(own_generator);
    return found;
  }

  std::vector<KnownStorage> known() const {
    std::vector<KnownStorage> all;
    const auto add = [&](const at::Tensor& t, ValueKind kind) {
      all.push_back(
          {t.storage().getWeakStorageImpl(), static_cast<int64_t>(t.storage().nbytes()), kind});
    };
    add(x, ValueKind::kInput);
    add(y, ValueKind::kInput);
    for (const at::Tensor& p : modules->parameters()) {
      if (p.grad().defined()) add(p.grad(), ValueKind::kGradient);
    }
    for (const at::Tensor& p : modules->parameters()) add(p, ValueKind::kBuffer);
    for (const at::Tensor& b : modules->buffers()) add(b, ValueKind::kBuffer);
    return all;
  }
};

std::shared_ptr<Training> newTraining() {
  at::set_num_threads(1);
  at::manual_seed(20240711);
  return std::make_shared<Training>();
}

TorchStep asStep(const std::shared_ptr<Training>& training) {
  training->makeOptimizer();
  return {[training](int call, Session* session) { return training->run(call, session); },
          [training] { return training->state(); }, [training] { return training->known(); }};
}

}  // namespace

TorchStep perceptron() {
  const auto training = newTraining();
  torch::nn::Linear first(24, 48), second(48, 48), last(48, 5);
  for (const auto& layer : {first, second, last}) training->modules->push_back(layer);
  training->forward = [=](const at::Tensor& x) mutable {
    return last(at::gelu(second(at::tanh(first(x)))));
  };
  training->x = at::randn({32, 24});
  training->y = at::randint(5, {32}, at::kLong);
  return asStep(training);
}

TorchStep residualNet() {
  const auto training = newTraining();
  torch::nn::Conv2d in(torch::nn::Conv2dOptions(3, 8, 3).padding(1));
  torch::nn::Conv2d block(torch::nn::Conv2dOptions(8, 8, 3).padding(1));
  torch::nn::BatchNorm2d norm_in(8), norm_block(8);
  torch::nn::Linear head(8, 4);
  training->modules->push_back(in);
  training->modules->push_back(block);
  training->modules->push_back(norm_in);
  training->modules->push_back(norm_block);
  training->modules->push_back(head);
  training->forward = [=](const at::Tensor& x) mutable {
    at::Tensor a = norm_in(in(x));
    at::relu_(a);
    at::Tensor b = norm_block(block(a));
    b.add_(a);
    return head(at::relu_(b).mean({2, 3}));
  };
  training->x = at::randn({4, 3, 12, 12});
  training->y = at::randint(4, {4}, at::kLong);
  return asStep(training);
}

TorchStep droppingNet() {
  const auto training = newTraining();
  torch::nn::Linear first(24, 48), second(48, 48), last(48, 5);
  for (const auto& layer : {first, second, last}) training->modules->push_back(layer);
  training->own_generator = at::detail::createCPUGenerator(11);
  training->forward = [=, generator = training->own_generator](const at::Tensor& x) mutable {
    const at::Tensor a = at::dropout(at::tanh(first(x)), 0.3, true);
    const at::Tensor mask = at::rand({32, 48}, generator).ge(0.25);
    return last(at::dropout(second(a) * mask, 0.2, true));
  };
  training->x = at::randn({32, 24});
  training->y = at::randint(5, {32}, at::kLong);
  return asStep(training);
}

TorchStep inPlaceNet() {
  const auto training = newTraining();
  std::vector<torch::nn::Linear> layers;
  for (int i = 0; i < 3; ++i) {
    layers.emplace_back(32, 32);
    training->modules->push_back(layers.back());
  }
  training->forward = [=](const at::Tensor& x) mutable {
    at::Tensor h = x;
    for (torch::nn::Linear& layer : layers) {
      at::Tensor next = layer(h);
      at::dropout_(next, 0.2, true);
      next.add_(h);
      next.mul_(0.5);
      h = at::relu_(next);
    }
    return h;
  };
  training->x = at::randn({16, 32});
  training->y = at::randint(32, {16}, at::kLong);
  return asStep(training);
}

TorchStep accumulation() {
  const auto training = newTraining();
  torch::nn::Linear first(24, 48), last(48, 5);
  training->modules->push_back(first);
  training->modules->push_back(last);
  training->calls_per_update = 3;
  training->forward = [=](const at::Tensor& x) mutable { return last(at::tanh(first(x))); };
  training->x = at::randn({32, 24});
  training->y = at::randint(5, {32}, at::kLong);
  return asStep(training);
}

const std::vector<NamedStep>& allSteps() {
  static const auto* steps = new std::vector<NamedStep>{{"perceptron", &perceptron},
                                                        {"residualNet", &residualNet},
                                                        {"droppingNet", &droppingNet},
                                                        {"inPlaceNet", &inPlaceNet},
                                                        {"accumulation", &accumulation}};
  return *steps;
}

bool sameBits(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous(), y = b.contiguous();
  return std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0;
}

std::vector<std::string> differences(const State& a, const State& b) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : a) {
    const auto other = b.find(name);
    if (other == b.end() || !sameBits(tensor, other->second)) names.push_back(name);
  }
  for (const auto& [name, tensor] : b) {
    if (a.count(name) == 0) names.push_back(name);
  }
  return names;
}

Trained trainPlain(const TorchStep& step, int calls) {
  Trained trained;
  for (int call = 0; call < calls; ++call) trained.losses.push_back(step.run(call, nullptr));
  trained.state = step.state();
  return trained;
}

LiveStep::LiveStep(const TorchStep& step, bool verify)
    : session_(Session::create(verify)), known_(step.known) {
  body_ = [this, step] { losses_.push_back(step.run(calls_, session_.get())); };
}

StepReport LiveStep::run() {
  const StepReport report = runOnce(body_);
  ++calls_;
  return report;
}

StepReport LiveStep::runOnce(const std::function<void()>& body) {
  session_->beginStep(known_());
  try {
    body();
  } catch (...) {
    session_->endStep(true);
    throw;
  }
  return session_->endStep(false);
}

int LiveStep::trace() {
  for (int call = 0; call < 20; ++call) {
    const StepReport report = run();
    if (!report.newly_stable) continue;
    variant_ = report.variant;
    graph_ = session_->graphOf(variant_);
    return variant_;
  }
  ADD_FAILURE() << "no two calls were alike";
  return -1;
}

void LiveStep::plan(const Schedule& schedule) {
  session_->setPlan(variant_, std::make_shared<const Schedule>(schedule), hostProfile());
}

OpId opNamed(const Graph& graph, const std::string& name, int nth) {
  std::string seen;
  for (int64_t k = 0; k < graph.numOps(); ++k) {
    const std::string& it = graph.op(OpId(k)).name;
    seen += " " + it;
    if ((it == name || it.starts_with(name + ".")) && nth-- == 0) return OpId(k);
  }
  throw std::logic_error("no op " + name + " among" + seen);
}

ValueId madeBy(const Graph& graph, OpId op) {
  if (graph.madeBy(op).empty()) throw std::logic_error("op makes nothing");
  return graph.madeBy(op).front();
}

}  // namespace poet::testing
