#include "trace/known_tensor.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

namespace poet {
namespace {

TEST(KnownTensorTest, RefersToATensorForAsLongAsItLives) {
  EXPECT_FALSE(KnownTensor().lock());
  at::Tensor tensor = at::ones({2});
  const KnownTensor known(tensor), same(tensor);
  EXPECT_EQ(known.lock().get(), tensor.unsafeGetTensorImpl());
  EXPECT_EQ(tensor.use_count(), 1);
  EXPECT_EQ(tensor.weak_use_count(), 2);  // one for its own references together
  tensor.reset();
  EXPECT_FALSE(known.lock());
  EXPECT_FALSE(same.lock());
}

TEST(KnownTensorTest, LetsGoWhileTwoAreSwapped) {
  at::Tensor a = at::ones({2}), b = at::zeros({2});
  const KnownTensor of_a(a), of_b(b);
  c10::TensorImpl* const first = a.unsafeGetTensorImpl();
  KnownTensor::whileSwapped(a.unsafeGetTensorImpl(), b.unsafeGetTensorImpl(), [&] {
    EXPECT_EQ(a.weak_use_count(), 1);
    EXPECT_EQ(b.weak_use_count(), 1);
    EXPECT_FALSE(of_a.lock());
    std::swap(a, b);
  });
  EXPECT_EQ(of_a.lock().get(), a.unsafeGetTensorImpl());
  EXPECT_EQ(of_b.lock().get(), first);
  // And with one that nobody knows.
  at::Tensor c = at::ones({2});
  KnownTensor::whileSwapped(a.unsafeGetTensorImpl(), c.unsafeGetTensorImpl(),
                            [&] { std::swap(a, c); });
  EXPECT_EQ(of_a.lock().get(), a.unsafeGetTensorImpl());
  EXPECT_EQ(c.weak_use_count(), 1);
}

TEST(KnownTensorTest, ASwapThatFailsLeavesThemKnown) {
  const at::Tensor a = at::ones({2}), b = at::zeros({2});
  const KnownTensor of_a(a), of_b(b);
  EXPECT_THROW(KnownTensor::whileSwapped(a.unsafeGetTensorImpl(), b.unsafeGetTensorImpl(),
                                         [] { throw std::runtime_error("no"); }),
               std::runtime_error);
  EXPECT_EQ(of_a.lock().get(), a.unsafeGetTensorImpl());
  EXPECT_EQ(of_b.lock().get(), b.unsafeGetTensorImpl());
}

TEST(KnownTensorTest, ManyThreadsKnowTheSameTensors) {
  const std::vector<at::Tensor> tensors = {at::ones({2}), at::ones({3}), at::ones({4})};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 2000; ++round) {
        for (const at::Tensor& t : tensors) {
          const KnownTensor known(t);
          ASSERT_EQ(KnownTensor(known).lock().get(), t.unsafeGetTensorImpl());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const at::Tensor& t : tensors) EXPECT_EQ(t.weak_use_count(), 1);
}

}  // namespace
}  // namespace poet
