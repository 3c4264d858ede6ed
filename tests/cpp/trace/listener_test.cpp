#include "trace/listener.h"

#include <ATen/ATen.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/InferenceMode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "trace/dispatch_key.h"

namespace poet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class Names final : public Listener {
 public:
  void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
            torch::jit::Stack* stack) override {
    heard.push_back(op.schema().name());
    op.redispatchBoxed(below, stack);
  }
  void onForeignOp(const c10::OperatorHandle& op, torch::jit::Stack* stack) override {
    foreign.push_back(op.schema().name());
    foreign_sees_arguments &= stack->size() >= op.schema().arguments().size();
  }
  std::vector<std::string> heard, foreign;
  bool foreign_sees_arguments = true;
};

class ListenerTest : public ::testing::Test {
 protected:
  ListenerTest() { registerListener(); }

  std::shared_ptr<Names> names_ = std::make_shared<Names>();
  at::Tensor x_ = at::ones({4, 4});
};

TEST_F(ListenerTest, HearsOutermostOpsBelowAutograd) {
  const at::Tensor w = at::ones({4, 4}).requires_grad_();
  {
    const ListenerGuard guard(names_);
    const ListeningGuard listening;
    EXPECT_TRUE(isListening());
    const at::Tensor y = at::linear(x_, w);  // composite: arrives as what it is made of
    x_.std();                                // calls others inside: they do not count
    at::empty({3});                          // a factory: no tensor argument
  }
  EXPECT_THAT(names_->heard, ElementsAre("aten::t", "aten::mm", "aten::std", "aten::empty"));
  EXPECT_THAT(names_->foreign, IsEmpty());
}

TEST_F(ListenerTest, UnderInferenceModeCompositesMayArriveWhole) {
  at::Tensor y;
  {
    const c10::InferenceMode inference;
    const ListenerGuard guard(names_);
    const ListeningGuard listening;
    y = at::linear(x_, x_);
  }
  EXPECT_FALSE(names_->heard.empty());
  EXPECT_TRUE(at::equal(y, at::full({4, 4}, 4)));
}

TEST_F(ListenerTest, HearsNothingOutsideItsGuards) {
  x_.neg();
  {
    const ListenerGuard guard(names_);
    x_.neg();  // not switched on
  }
  {
    const ListeningGuard listening;
    x_.neg();  // nobody there
    EXPECT_FALSE(isListening());
  }
  EXPECT_THAT(names_->heard, IsEmpty());
  EXPECT_THAT(names_->foreign, IsEmpty());
}

TEST_F(ListenerTest, ASecondListenerOnTheThreadIsAnErrorAndTheFirstGoesOn) {
  const ListenerGuard guard(names_);
  const ListeningGuard listening;
  const auto second = std::make_shared<Names>();
  EXPECT_THROW(ListenerGuard refused(second), Error);
  x_.neg();
  EXPECT_THAT(names_->heard, ElementsAre("aten::neg"));
  EXPECT_THAT(second->heard, IsEmpty());
}

TEST_F(ListenerTest, OpsOfThreadsThatInheritTheStateAreForeign) {
  at::Tensor there;
  {
    const ListenerGuard guard(names_);
    const ListeningGuard listening;
    const at::ThreadLocalState state;
    std::thread([&] {
      const at::ThreadLocalStateGuard as_caller(state);
      EXPECT_FALSE(isListening());
      there = x_.neg();
    }).join();
    std::thread([&] { x_.abs(); }).join();  // inherits nothing
  }
  EXPECT_THAT(names_->foreign, ElementsAre("aten::neg"));
  EXPECT_TRUE(names_->foreign_sees_arguments);
  EXPECT_THAT(names_->heard, IsEmpty());
  EXPECT_TRUE(at::equal(there, at::full({4, 4}, -1)));
}

TEST_F(ListenerTest, OpsOfAThreadThatHearsItselfAreForeignToTheOthersAlone) {
  const auto second = std::make_shared<Names>();
  {
    const ListenerGuard guard(names_);
    const ListeningGuard listening;
    x_.neg();
    std::thread([&] {
      const ListenerGuard own(second);
      const ListeningGuard listening_too;
      x_.abs();
    }).join();
  }
  EXPECT_THAT(names_->heard, ElementsAre("aten::neg"));
  EXPECT_THAT(names_->foreign, ElementsAre("aten::abs"));
  EXPECT_THAT(second->heard, ElementsAre("aten::abs"));
  EXPECT_THAT(second->foreign, IsEmpty());
}

TEST_F(ListenerTest, AnExceptionOfTheOpGoesThroughAndListeningGoesOn) {
  const ListenerGuard guard(names_);
  const ListeningGuard listening;
  EXPECT_THROW(x_.mm(at::ones({5, 5})), c10::Error);
  x_.neg();
  EXPECT_THAT(names_->heard.back(), "aten::neg");
}

}  // namespace
}  // namespace poet
