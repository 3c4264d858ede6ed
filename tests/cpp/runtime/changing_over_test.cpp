// Another thread reads what a session moves, whenever it moves it: see Note [Changing over].
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "runtime/session.h"
#include "store/page_store.h"
#include "support/page_everything.h"
#include "support/torch_step.h"
#include "trace/allocator_tap.h"
#include "trace/listener.h"

namespace poet::testing {
namespace {

// Calls `meanwhile` in every transfer.
class InterruptedStore final : public PageStore {
 public:
  explicit InterruptedStore(std::function<void()> meanwhile) : meanwhile_(std::move(meanwhile)) {}

  void reserve(int64_t bytes) override { disk_->reserve(bytes); }
  int64_t write(const void* data, int64_t bytes) override {
    meanwhile_();
    return disk_->write(data, bytes);
  }
  void read(int64_t slot, void* data) override {
    meanwhile_();
    disk_->read(slot, data);
  }
  void release(int64_t slot) override { disk_->release(slot); }
  int64_t bytesOf(int64_t slot) const override { return disk_->bytesOf(slot); }
  int64_t slotsInUse() const override { return disk_->slotsInUse(); }
  int64_t bufferBytes() const override { return disk_->bufferBytes(); }
  double cachedShare() const override { return disk_->cachedShare(); }
  const StoreCounters& counters() const override { return disk_->counters(); }
  const std::string& directory() const override { return disk_->directory(); }

 private:
  const std::function<void()> meanwhile_;
  const std::unique_ptr<PageStore> disk_ = PageStore::open("");
};

// Frozen weights, which the step only reads and a reader may read at any time.
class ChangingOver : public ::testing::Test {
 protected:
  ChangingOver() : live_([this] { train(); }) {
    for (int i = 0; i < 3; ++i) frozen_.push_back(at::full({64, 64}, 0.01f * float(i + 1)));
    live_.session().setStore(std::make_shared<InterruptedStore>([this] { readElsewhere(); }));
    for (int call = 0; call < 2; ++call) {
      const StepReport report = live_.run();
      if (report.newly_stable) variant_ = report.variant;
    }
  }
  ~ChangingOver() override {
    for (std::future<void>& one : reads_) {
      if (one.valid()) one.wait();
    }
  }

  void train() {
    w_.mutable_grad().reset();
    at::Tensor h = w_;
    for (const at::Tensor& one : frozen_) h = at::tanh(h.matmul(one));
    h.sum().backward();
    const at::NoGradGuard no_grad;
    w_.sub_(w_.grad(), 0.25);
  }

  void plan() {
    ASSERT_GE(variant_, 0);
    const auto graph = live_.session().graphOf(variant_);
    live_.session().setPlan(
        variant_, std::make_shared<const Schedule>(pageEverything(*graph, true)), hostProfile());
  }

  // Begins a read of everything on a thread of its own, and gives it a while. Where the session
  // holds its lock the reader has to wait for it, so nobody may wait for the reader.
  void readElsewhere() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!reads_.empty() &&
        reads_.back().wait_for(std::chrono::seconds(0)) != std::future_status::ready)
      return;  // one at a time
    reads_.push_back(std::async(std::launch::async, [this] {
      hearThisThread();
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < frozen_.size(); ++i) {
        const float sum = frozen_[i].sum().item<float>();
        EXPECT_NEAR(sum, 64 * 64 * 0.01f * float(i + 1), 0.1) << "weight " << i;
      }
    }));
    reads_.back().wait_for(std::chrono::milliseconds(5));
  }

  // Throws what a reader met.
  void check() {
    EXPECT_GE(reads_.size(), 3U);
    for (std::future<void>& one : reads_) one.get();
  }

  const AllocatorTap::Guard tap_;
  at::Tensor w_ = at::full({64, 64}, 0.5f).requires_grad_();
  std::vector<at::Tensor> frozen_;
  int variant_ = -1;
  std::mutex mutex_;
  std::vector<std::future<void>> reads_;
  LiveStep live_;
};

TEST_F(ChangingOver, IntoAStepAndOutOfIt) {
  plan();
  for (int call = 0; call < 6; ++call) live_.run();
  EXPECT_NO_THROW(check());
  EXPECT_GE(live_.session().counters().followed_steps, 5);
  EXPECT_GT(live_.session().pagingCounters().planned_page_outs, 0);
}

TEST_F(ChangingOver, WhileValuesMoveOutBetweenSteps) {
  plan();
  for (int call = 0; call < 6; ++call) {
    live_.run();
    live_.session().moveOut();
  }
  EXPECT_NO_THROW(check());
  EXPECT_GT(live_.session().pagingCounters().moved_between_steps, 0);
}

TEST_F(ChangingOver, WhileTheStepIsPaused) {
  for (int call = 0; call < 6; ++call) {
    live_.run();
    EXPECT_GT(live_.session().pause({}), 0);
  }
  EXPECT_NO_THROW(check());
}

}  // namespace
}  // namespace poet::testing
