#include "trace/unshown_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "support/recording.h"

namespace poet::testing {
namespace {

constexpr int64_t kBytes = 8192;

c10::DataPtr take(int64_t bytes) { return c10::GetCPUAllocator()->allocate(bytes); }

// The values that no op makes or uses.
std::vector<Value> unshown(const Recording& recording) {
  std::vector<Value> found;
  for (size_t v = 0; v < recording.first_shown.size(); ++v) {
    if (recording.first_shown[v] == recording.graph->endOfStep())
      found.push_back(recording.graph->values()[v]);
  }
  return found;
}

TEST(UnshownMemoryTest, WhatIsTakenBetweenOpsCountsUntilItIsGivenBack) {
  const at::Tensor x = at::ones({4});
  const auto recording = recordStep([&] {
    c10::DataPtr early = take(kBytes);
    x.add(1);
    x.t();
    x.add(1);
    c10::DataPtr late = take(2 * kBytes);
    x.add(1);
    late.clear();
    x.add(1);
    early.clear();
    x.add(1);
  });
  const std::vector<Value> found = unshown(*recording);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(recording->unshown_bytes, kBytes) << "of what no op precedes";
  EXPECT_EQ(found[0].bytes, kBytes);
  EXPECT_FALSE(found[0].producer.valid());
  EXPECT_EQ(found[0].death, OpId(4));
  EXPECT_EQ(found[1].bytes, 2 * kBytes);
  EXPECT_EQ(found[1].producer, OpId(1)) << "the view: nothing is made again with it";
  EXPECT_EQ(found[1].death, OpId(3));
  const Graph& graph = *recording->graph;
  EXPECT_FALSE(graph.op(OpId(1)).replayable);
  EXPECT_TRUE(graph.op(OpId(2)).replayable);
  for (const Value& value : found) EXPECT_FALSE(value.evictable);
}

TEST(UnshownMemoryTest, WhatStaysLivesToTheEnd) {
  const at::Tensor x = at::ones({4});
  c10::DataPtr kept;
  const auto recording = recordStep([&] {
    x.add(1);
    kept = take(kBytes);
    x.add(1);
    x.add(1);
  });
  const std::vector<Value> found = unshown(*recording);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].death, recording->graph->endOfStep());
}

TEST(UnshownMemoryTest, WhatIsGoneBeforeTheFirstOpOrSmallOrShownIsLeftOut) {
  const at::Tensor x = at::ones({4});
  const auto recording = recordStep([&] {
    take(kBytes).clear();
    x.add(1);
    const c10::DataPtr small = take(UnshownMemory::kLeastBytes - 1);
    x.add(1);
    const at::Tensor storage_alone = at::detail::empty_cpu(
        {kBytes / 4}, c10::CppTypeToScalarType<float>::value, false, c10::MemoryFormat::Contiguous);
    x.add(1);
    storage_alone.neg();  // an operator shows it: it is a value of its own
  });
  EXPECT_EQ(unshown(*recording).size(), 0u);
  EXPECT_EQ(recording->unshown_bytes, 0);
}

// It begins when it comes, and what came before it is run again without it.
TEST(UnshownMemoryTest, WhatComesInTheMiddleOfTheStepAndIsShownLaterCountsFromThenOn) {
  const at::Tensor x = at::ones({kBytes / 4});
  const auto recording = recordStep([&] {
    x.add(1);
    x.t();
    x.add(1);
    const at::Tensor came = at::detail::empty_cpu(
        {kBytes / 4}, c10::CppTypeToScalarType<float>::value, false, c10::MemoryFormat::Contiguous);
    x.add(1);
    came.neg();
    x.add(came);
  });
  const Graph& graph = *recording->graph;
  const ValueId came = recording->ops[4].in()[0].value;
  EXPECT_EQ(graph.value(came).bytes, kBytes);
  EXPECT_EQ(graph.value(came).producer, OpId(1)) << "the view";
  EXPECT_EQ(graph.value(came).death, OpId(5));
  EXPECT_FALSE(graph.value(came).evictable);
  EXPECT_TRUE(recording->ops[4].in()[0].outside);
  EXPECT_TRUE(graph.op(OpId(2)).replayable);
  EXPECT_FALSE(graph.op(OpId(4)).replayable) << "native code may go on working on it";
  EXPECT_EQ(recording->first_shown[static_cast<size_t>(came.index)], OpId(4));
  for (const OutsideValue& outside : recording->outside) EXPECT_NE(outside.value, came);
}

TEST(UnshownMemoryTest, ForeignMemoryHasComeOnlyWhereAllElseIsKnown) {
  const at::Tensor x = at::ones({kBytes / 4});
  std::vector<float> array(kBytes / 4);
  for (const bool all_are_known : {false, true}) {
    registerListener();
    const AllocatorTap::Guard tap;
    const auto listener =
        std::make_shared<RecordingListener>(std::vector<KnownStorage>(), nullptr, all_are_known);
    {
      const ListenerGuard guard(listener);
      const ListeningGuard listening;
      x.t();
      at::from_blob(array.data(), {kBytes / 4}).neg();
    }
    const auto recording = listener->recorder.finish();
    const ValueId came = recording->ops[1].in()[0].value;
    EXPECT_EQ(recording->graph->value(came).producer, all_are_known ? OpId(0) : kNoOp);
  }
}

TEST(UnshownMemoryTest, WhatOpsTakeInsideIsTheirs) {
  const at::Tensor x = at::ones({64, 64});
  at::Tensor kept;
  const auto recording = recordStep([&] { kept = x.mul(2).add(1).softmax(0); });
  EXPECT_EQ(recording->unshown_bytes, 0);
}

// A tensor of oneDNN's has no storage: its bytes must count all the same, for as long as it lives.
TEST(UnshownMemoryTest, WhatAnOpaqueResultIsMadeOfIsAValueOfItsOp) {
  if (!at::globalContext().userEnabledMkldnn() || !at::hasMKLDNN()) GTEST_SKIP() << "no oneDNN";
  const at::Tensor x = at::ones({64, 64});
  const auto recording = recordStep([&] {
    x.add(1);
    at::Tensor opaque = x.to_mkldnn();
    x.add(1);
    opaque.reset();
    x.add(1);
  });
  const std::vector<Value> found = unshown(*recording);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_GE(found[0].bytes, x.nbytes());
  EXPECT_LT(found[0].bytes, x.nbytes() + 4096) << "alignment at most";
  EXPECT_EQ(found[0].producer, OpId(1));
  EXPECT_EQ(found[0].death, OpId(2));
  EXPECT_FALSE(found[0].evictable);
  EXPECT_LT(recording->graph->op(OpId(1)).workspace_bytes, 4096) << "it is not counted twice";
  EXPECT_FALSE(recording->graph->op(OpId(1)).replayable);
}

TEST(UnshownMemoryTest, OtherThreadsAreNotSeen) {
  const at::Tensor x = at::ones({4});
  c10::DataPtr kept;
  const auto recording = recordStep([&] {
    x.add(1);
    std::thread([&] { kept = take(kBytes); }).join();
    x.add(1);
  });
  EXPECT_EQ(recording->unshown_bytes, 0);
}

TEST(UnshownMemoryTest, ALogThatNobodyReadsEnds) {
  const AllocatorTap::Guard tap;
  AllocatorTap::logBlocks(true);
  for (int i = 0; i < 40000; ++i) take(64).clear();
  std::vector<AllocatorTap::BlockEvent> events;
  AllocatorTap::readLog(events);
  EXPECT_EQ(events.size(), 0u);
  take(64).clear();
  AllocatorTap::readLog(events);
  EXPECT_EQ(events.size(), 0u) << "it has ended";
}

}  // namespace
}  // namespace poet::testing
