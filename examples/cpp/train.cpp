// Trains a convolutional network twice from the same seed, plainly and under poet, and compares:
// every bit of the weights, gradients, optimizer state, losses and random numbers, and the peaks of
// memory. Ends with a status other than 0 where anything differs or the budget was exceeded.
//
//   train [BUDGET]      e.g. 60% (the default), 70MiB
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <poet/poet_torch.h>

namespace {

constexpr int kSteps = 8;
constexpr int kWarmUp = 4;  // the optimizer makes its state, the step is recorded and planned
constexpr int kBatch = 32;

// ---- what is measured
// ------------------------------------------------------------------------------

// Bytes that live in LibTorch's CPU allocator. Made before the first tensor, so that it sees them
// all.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t change, size_t, size_t, c10::Device) override {
    live_ += change;
    peak_ = std::max(peak_, live_);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t live() const { return live_; }
  int64_t peak() const { return peak_; }
  void restart() { peak_ = live_; }

 private:
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

double mebibytes(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// The bits of tensors, kept outside LibTorch's memory.
std::string bitsOf(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {static_cast<const char*>(flat.const_data_ptr()), flat.nbytes()};
}

// ---- what is trained
// -------------------------------------------------------------------------------

struct NetImpl : torch::nn::Module {
  NetImpl() {
    int in = 3;
    for (const int out : {64, 128, 256}) {
      for (int i = 0; i < 2; ++i) {
        body->push_back(
            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false)));
        body->push_back(torch::nn::BatchNorm2d(out));
        body->push_back(torch::nn::ReLU());
        in = out;
      }
      body->push_back(torch::nn::MaxPool2d(2));
    }
    body->push_back(torch::nn::Flatten());
    body->push_back(torch::nn::Dropout(0.3));
    body->push_back(torch::nn::Linear(in * 4 * 4, 10));
    register_module("body", body);
  }
  at::Tensor forward(const at::Tensor& images) { return body->forward(images); }

  torch::nn::Sequential body;
};
TORCH_MODULE(Net);

struct Trained {
  std::vector<std::string> bits;  // of everything that training changes
  int64_t peak_bytes = 0;         // of the steps after the warm-up
  double seconds = 0;             // of the fastest of them
};

class Trainer {
 public:
  Trainer()
      : net_((torch::manual_seed(1), Net())),
        optimizer_(net_->parameters(), torch::optim::AdamWOptions(1e-3)) {
    for (int i = 0; i < kSteps; ++i) {
      images_.push_back(torch::randn({kBatch, 3, 32, 32}));
      labels_.push_back(torch::randint(10, {kBatch}));
    }
  }

  // One ordinary step. The guard costs nothing without poet; it tells poet which operators are the
  // optimizer's.
  at::Tensor step(const at::Tensor& images, const at::Tensor& labels) {
    optimizer_.zero_grad();
    const at::Tensor loss = torch::nn::functional::cross_entropy(net_->forward(images), labels);
    loss.backward();
    {
      const poet::OptimizerPhase phase;
      optimizer_.step();
    }
    return loss.detach();
  }

  template <class Step>
  Trained train(Step&& one, MemoryMeter& meter) {
    using Clock = std::chrono::steady_clock;
    Trained result;
    result.seconds = 1e9;
    for (int i = 0; i < kSteps; ++i) {
      if (i == kWarmUp) meter.restart();
      const auto begin = Clock::now();
      const at::Tensor loss = one(images_[i], labels_[i]);
      const std::chrono::duration<double> took = Clock::now() - begin;
      if (i >= kWarmUp) result.seconds = std::min(result.seconds, took.count());
      result.bits.push_back(bitsOf(loss));
    }
    result.peak_bytes = meter.peak();
    addState(result.bits);
    return result;
  }

  Net& net() { return net_; }
  torch::optim::AdamW& optimizer() { return optimizer_; }
  std::vector<at::Tensor> data() const {
    std::vector<at::Tensor> all = images_;
    all.insert(all.end(), labels_.begin(), labels_.end());
    return all;
  }

 private:
  void addState(std::vector<std::string>& bits) {
    for (const at::Tensor& parameter : net_->parameters()) {
      bits.push_back(bitsOf(parameter));
      bits.push_back(bitsOf(parameter.grad()));
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(
          *optimizer_.state().at(parameter.unsafeGetTensorImpl()));
      bits.push_back(bitsOf(state.exp_avg()));
      bits.push_back(bitsOf(state.exp_avg_sq()));
      bits.push_back(std::to_string(state.step()));
    }
    for (const at::Tensor& buffer : net_->buffers()) bits.push_back(bitsOf(buffer));
    bits.push_back(bitsOf(at::detail::getDefaultCPUGenerator().get_state()));
  }

  Net net_;
  torch::optim::AdamW optimizer_;
  std::vector<at::Tensor> images_, labels_;
};

// ---- the two runs
// ----------------------------------------------------------------------------------

Trained trainPlain(MemoryMeter& meter) {
  Trainer trainer;
  return trainer.train([&](const at::Tensor& x, const at::Tensor& y) { return trainer.step(x, y); },
                       meter);
}

struct UnderPoet {
  Trained trained;
  poet::StepStats stats;
  std::shared_ptr<const poet::Schedule> schedule;
};

UnderPoet trainUnderPoet(const std::string& budget, MemoryMeter& meter) {
  Trainer trainer;
  poet::TrainingStep step(
      [&](const std::vector<at::Tensor>& batch) { return trainer.step(batch[0], batch[1]); },
      {.ram_budget = budget, .background = false, .verbose = true});
  step.keepCounted(*trainer.net());
  step.keepCounted(trainer.optimizer());
  step.keepCounted(trainer.data());
  UnderPoet result;
  result.trained = trainer.train(
      [&](const at::Tensor& x, const at::Tensor& y) {
        return step({x, y});
      },
      meter);
  result.stats = step.stats();
  result.schedule = step.schedule();
  return result;
}

int compare(const Trained& plain, const UnderPoet& poet) {
  const poet::Schedule& schedule = *poet.schedule;
  const Trained& trained = poet.trained;
  int64_t different = 0;
  for (size_t i = 0; i < plain.bits.size(); ++i) different += plain.bits[i] != trained.bits.at(i);
  const double slower = 100 * (trained.seconds / plain.seconds - 1);

  std::printf("plain      peak %7.2f MiB   step %6.1f ms\n", mebibytes(plain.peak_bytes),
              1e3 * plain.seconds);
  std::printf("poet       peak %7.2f MiB   step %6.1f ms (%+.1f %%)\n",
              mebibytes(trained.peak_bytes), 1e3 * trained.seconds, slower);
  std::printf("budget          %7.2f MiB   predicted peak %.2f MiB, %lld recomputes a step\n",
              mebibytes(*schedule.ram_budget_bytes), mebibytes(schedule.peak_bytes),
              static_cast<long long>(schedule.countActions(poet::ActionKind::kRecompute)));
  std::printf("steps recorded %lld, under the plan %lld; %.1f MiB paged out in all\n",
              static_cast<long long>(poet.stats.traced_steps),
              static_cast<long long>(poet.stats.followed_steps),
              mebibytes(poet.stats.paged_out_bytes));
  std::printf("tensors compared %zu, different in a bit: %lld\n", plain.bits.size(),
              static_cast<long long>(different));

  int failures = 0;
  const auto expect = [&](bool holds, const char* what) {
    if (!holds) std::printf("FAILED: %s\n", what);
    failures += !holds;
  };
  expect(different == 0, "weights, gradients, optimizer state, losses and generator are bit-equal");
  expect(schedule.hasPlan(), "there is a plan");
  expect(poet.stats.followed_steps >= kSteps - kWarmUp && poet.stats.departures == 0,
         "all steps after the warm-up follow it");
  expect(trained.peak_bytes <= *schedule.ram_budget_bytes,
         "the measured peak is within the budget");
  expect(trained.peak_bytes < plain.peak_bytes, "it is below the plain peak");
  return failures == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  torch::set_num_threads(1);  // two plain runs must agree with each other in every bit
  const auto meter = std::make_shared<MemoryMeter>();
  const c10::DebugInfoGuard measuring(c10::DebugInfoKind::PROFILER_STATE, meter);
  try {
    const Trained plain = trainPlain(*meter);
    const UnderPoet poet = trainUnderPoet(argc > 1 ? argv[1] : "60%", *meter);
    return compare(plain, poet);
  } catch (const poet::Error& error) {
    std::fprintf(stderr, "poet: %s\n", error.what());
    return 1;
  }
}
