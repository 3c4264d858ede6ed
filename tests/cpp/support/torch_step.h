// Training steps on LibTorch, and running them under a Session, without Python.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/session.h"

namespace poet::testing {

using State = std::map<std::string, at::Tensor>;

// A step and everything that it changes.
struct TorchStep {
  // Call number `call`; returns the loss. With a session, tells it where the optimizer runs.
  std::function<at::Tensor(int call, Session* session)> run;
  // Copies of parameters, buffers, gradients, optimizer state and generator states.
  std::function<State()> state;
  std::function<std::vector<KnownStorage>()> known;
};

// Each built anew from the same seed, on one thread:
TorchStep perceptron();    // linear layers, GELU, AdamW
TorchStep residualNet();   // convolutions, batch norm, residual additions, in-place ReLU, AdamW
TorchStep droppingNet();   // dropout, and a mask drawn from a generator of its own
TorchStep inPlaceNet();    // in-place chains one after another, dropout among them
TorchStep accumulation();  // three calls a step of the optimizer: the stream has three variants

// By name, for parametrised tests.
struct NamedStep {
  const char* name;
  TorchStep (*make)();
};
const std::vector<NamedStep>& allSteps();

// Names that are not equal to the bit, or that only one side has.
std::vector<std::string> differences(const State& a, const State& b);
bool sameBits(const at::Tensor& a, const at::Tensor& b);

// Results and end state of plain training.
struct Trained {
  std::vector<at::Tensor> losses;
  State state;
};
Trained trainPlain(const TorchStep& step, int calls);

// One wrapped function, call after call.
class LiveStep {
 public:
  explicit LiveStep(std::function<void()> body, bool verify = false)
      : session_(Session::create(verify)), body_(std::move(body)) {}
  LiveStep(const TorchStep& step, bool verify);
  LiveStep(const LiveStep&) = delete;
  LiveStep& operator=(const LiveStep&) = delete;

  // An exception of the body ends the step as failed and goes on to the caller.
  StepReport run();
  // Runs until a variant has become stable; returns its number.
  int trace();
  void plan(const Schedule& schedule);  // for the variant that trace() found
  // Runs the function once instead of the body.
  StepReport runOnce(const std::function<void()>& body);

  Session& session() { return *session_; }
  const Graph& graph() { return *graph_; }
  const std::vector<at::Tensor>& losses() const { return losses_; }

 private:
  std::shared_ptr<Session> session_;
  std::function<void()> body_;
  std::function<std::vector<KnownStorage>()> known_ = [] { return std::vector<KnownStorage>(); };
  std::shared_ptr<const Graph> graph_;
  std::vector<at::Tensor> losses_;
  int variant_ = -1;
  int calls_ = 0;
};

// Ops by name: the nth op called `name`; fails the test where there is none.
OpId opNamed(const Graph& graph, const std::string& name, int nth = 0);
// The first value that the op makes.
ValueId madeBy(const Graph& graph, OpId op);

}  // namespace poet::testing
