#include "support/random_graph.h"

#include <algorithm>
#include <vector>

#include "support/graph_builder.h"
#include "support/random.h"

namespace poet::testing {
namespace {

class RandomGraph {
 public:
  RandomGraph(uint64_t seed, const RandomGraphOptions& options)
      : random_(seed), options_(options) {}

  Graph build() {
    makeInputs();
    for (int i = 0; i < options_.forward_ops; ++i) addForwardOp();
    if (options_.backward) addBackward();
    if (options_.optimizer) addOptimizer();
    setLifetimes();
    return builder_.build();
  }

 private:
  int64_t bytes() {
    return random_.chance(options_.zero_bytes) ? 0 : random_.between(1, options_.largest_bytes);
  }
  double seconds() { return random_.unit() * options_.longest_seconds; }

  void makeInputs() {
    builder_.base(bytes());
    batch_ = builder_.input(bytes());
    for (int i = 0; i < options_.parameters; ++i)
      parameters_.push_back(builder_.parameter(bytes()));
    statistics_ = {builder_.input(bytes(), ValueKind::kBuffer),
                   builder_.input(bytes(), ValueKind::kBuffer)};
    current_ = batch_;
  }

  OpHandle begin(const char* name, Phase phase) {
    OpHandle op = builder_.op(name);
    op.seconds(seconds()).phase(phase);
    if (random_.chance(options_.workspace)) op.workspace(bytes());
    if (random_.chance(options_.random)) op.random();
    if (random_.chance(options_.not_replayable)) op.notReplayable();
    return op;
  }

  void addForwardOp() {
    if (!made_.empty() && random_.chance(options_.in_place)) {
      writeInto(random_.pick(made_));
    } else if (random_.chance(options_.shape_only)) {
      const ValueId fresh =
          begin("empty_like", Phase::kForward).reads({current_}).shapeOnly().makes(bytes());
      remember(fresh, {});
      writeInto(fresh);
      current_ = fresh;
    } else {
      compute();
    }
    const ValueId shown = made_.empty() ? batch_ : random_.pick(made_);
    if (random_.chance(options_.view)) builder_.view(shown);
    if (random_.chance(options_.raw_read)) {
      builder_.op("aten::detach").reads({shown}).returns({shown}).view();
    }
  }

  void compute() {
    std::vector<ValueId> inputs = {current_};
    if (!parameters_.empty() && random_.chance(0.5)) inputs.push_back(random_.pick(parameters_));
    if (!made_.empty() && random_.chance(options_.skip)) inputs.push_back(random_.pick(made_));
    OpHandle op = begin("compute", Phase::kForward);
    op.reads(inputs);
    if (random_.chance(options_.statistics)) op.updates(statistics_);
    const ValueId out = op.makes(bytes());
    remember(out, inputs);
    if (random_.chance(options_.multi_output)) {
      for (int64_t more = random_.between(1, 2); more > 0; --more)
        remember(op.makes(bytes()), inputs);
    }
    current_ = out;
  }

  void writeInto(ValueId v) {
    OpHandle op = begin("update_", Phase::kForward);
    op.writes({v});
    if (random_.chance(0.5)) op.reads({random_.pick(made_)});
    if (random_.chance(0.3)) op.reads({current_});
  }

  void remember(ValueId v, std::vector<ValueId> inputs) {
    made_.push_back(v);
    steps_.push_back({v, std::move(inputs)});
  }

  // One op a forward value, in reverse, that reads the gradient so far and some of what the forward
  // op read or made.
  void addBackward() {
    ValueId gradient = begin("loss_backward", Phase::kBackward).reads({current_}).makes(bytes());
    for (size_t i = steps_.size(); i-- > 0;) {
      OpHandle op = begin("backward", Phase::kBackward);
      op.reads({gradient});
      if (random_.chance(0.6)) op.reads({steps_[i].made});
      for (ValueId input : steps_[i].inputs) {
        if (random_.chance(0.6)) op.reads({input});
      }
      gradient = op.makes(bytes(), ValueKind::kGradient);
      if (random_.chance(0.3)) gradients_.push_back(op.makes(bytes(), ValueKind::kGradient));
    }
    gradients_.push_back(gradient);
  }

  void addOptimizer() {
    for (ValueId parameter : parameters_) {
      OpHandle op = begin("step_", Phase::kOptimizer);
      op.writes({parameter});
      if (!gradients_.empty()) op.reads({random_.pick(gradients_)});
    }
  }

  void setLifetimes() {
    const auto values = builder_.valuesWithDeaths();
    const auto end = static_cast<int64_t>(builder_.ops.size());
    for (size_t i = 0; i < values.size(); ++i) {
      const ValueId v(static_cast<int64_t>(i));
      if (values[i].producer == kNoOp) continue;
      if (random_.chance(options_.outlives)) {
        builder_.outlives(v);
      } else if (random_.chance(options_.held_longer)) {
        builder_.diesAfter(v, OpId(std::min(end, values[i].death.index + random_.between(1, 4))));
      }
      if (random_.chance(options_.not_evictable)) builder_.notEvictable(v);
    }
  }

  struct Step {
    ValueId made;
    std::vector<ValueId> inputs;
  };

  Random random_;
  RandomGraphOptions options_;
  GraphBuilder builder_;
  ValueId batch_;
  ValueId current_;
  std::vector<ValueId> parameters_;
  std::vector<ValueId> statistics_;
  std::vector<ValueId> made_;
  std::vector<ValueId> gradients_;
  std::vector<Step> steps_;
};

}  // namespace

RandomGraphOptions RandomGraphOptions::simple() {
  RandomGraphOptions options;
  for (double* p : {&options.multi_output, &options.in_place, &options.view, &options.workspace,
                    &options.random, &options.statistics, &options.shape_only, &options.raw_read,
                    &options.not_replayable, &options.not_evictable, &options.outlives,
                    &options.held_longer, &options.zero_bytes}) {
    *p = 0;
  }
  options.optimizer = false;
  return options;
}

Graph randomGraph(uint64_t seed, const RandomGraphOptions& options) {
  return RandomGraph(seed, options).build();
}

}  // namespace poet::testing
