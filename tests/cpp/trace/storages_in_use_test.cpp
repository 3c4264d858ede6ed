#include "trace/storages_in_use.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>
#include <vector>

namespace poet {
namespace {

bool usedElsewhere(const at::Tensor& t) {
  return StoragesInUse::elsewhere(*t.storage().unsafeGetStorageImpl());
}

torch::jit::Stack stackOf(const std::vector<at::Tensor>& tensors) {
  return {c10::IValue(tensors), c10::IValue(0)};
}

class StoragesInUseTest : public ::testing::Test {
 protected:
  // What `look` says while another thread runs aten::cat on those, having run it on `inside`
  // inside.
  template <class Look>
  bool during(const std::vector<at::Tensor>& tensors, Look look,
              const std::vector<at::Tensor>& inside = {}) const {
    std::promise<void> noted, seen;
    std::thread other([&] {
      const StoragesInUse::Guard guard(cat_, stackOf(tensors));
      if (!inside.empty()) const StoragesInUse::Guard inner(cat_, stackOf(inside));
      noted.set_value();
      seen.get_future().wait();
    });
    noted.get_future().wait();
    const bool found = look();
    seen.set_value();
    other.join();
    return found;
  }

  const c10::OperatorHandle cat_ = c10::Dispatcher::singleton().findSchemaOrThrow("aten::cat", "");
  const at::Tensor x_ = at::ones({4}), y_ = at::ones({4});
};

TEST_F(StoragesInUseTest, WhatAnOpOnAnotherThreadTouchesIsInUseAsLongAsItRuns) {
  EXPECT_TRUE(during({x_.narrow(0, 1, 2)}, [&] { return usedElsewhere(x_); }));
  EXPECT_FALSE(during({y_}, [&] { return usedElsewhere(x_); }));
  EXPECT_FALSE(usedElsewhere(x_));
}

TEST_F(StoragesInUseTest, AThreadsOwnOpIsNotElsewhere) {
  const StoragesInUse::Guard guard(cat_, stackOf({x_}));
  EXPECT_FALSE(usedElsewhere(x_));
}

TEST_F(StoragesInUseTest, AnOpWithVeryManyTensorsUsesEverything) {
  EXPECT_TRUE(during(std::vector<at::Tensor>(1000, y_), [&] { return usedElsewhere(x_); }));
}

TEST_F(StoragesInUseTest, AnOpInsideAnotherLeavesTheOuterOnesNoted) {
  EXPECT_TRUE(during({x_}, [&] { return usedElsewhere(x_); }, {y_}));
}

TEST_F(StoragesInUseTest, WhatAStepOnAnotherThreadClaimsIsInUseUntilItEnds) {
  const auto claimed = [](const at::Tensor& t) {
    return std::vector<const c10::StorageImpl*>{t.storage().unsafeGetStorageImpl()};
  };
  std::promise<void> made, seen;
  std::thread other([&] {
    StoragesInUse::Claim claim;
    claim.add(claimed(x_));
    claim.add(claimed(x_));
    made.set_value();
    seen.get_future().wait();
  });
  made.get_future().wait();
  StoragesInUse::Claim own;
  own.add(claimed(y_));
  EXPECT_TRUE(usedElsewhere(x_));
  EXPECT_FALSE(usedElsewhere(y_)) << "this thread's own";
  seen.set_value();
  other.join();
  EXPECT_FALSE(usedElsewhere(x_));
}

}  // namespace
}  // namespace poet
