#include "trace/native_writes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "runtime/variants.h"
#include "support/recording.h"

namespace poet::testing {
namespace {

void writeRaw(const at::Tensor& t, int byte) {
  std::memset(t.mutable_data_ptr(), byte, t.nbytes());
}

// The graph of a step of which op 0 makes what is looked at.
std::shared_ptr<const Graph> graphOf(const std::function<void()>& step,
                                     std::vector<KnownStorage> known = {}) {
  return recordStep(step, std::move(known))->graph;
}

// Whether what op 0 makes may be evicted and made again.
bool mayBeMadeAgain(const Graph& graph) {
  return graph.op(OpId(0)).replayable && graph.value(graph.madeBy(OpId(0)).front()).evictable;
}

TEST(NativeWritesTest, WhatNativeCodeFillsIsNotMadeAgain) {
  const at::Tensor x = at::ones({8, 8});
  const auto filled = graphOf([&] {
    const at::Tensor y = at::empty_like(x);
    writeRaw(y, 1);
    y.mul(x);
  });
  EXPECT_FALSE(mayBeMadeAgain(*filled));
  const auto at_once = graphOf([&] { at::empty_like(x).clamp_min_(1); });
  EXPECT_FALSE(mayBeMadeAgain(*at_once)) << "an op that writes, and reads what was there";
  const auto in_part = graphOf([&] {
    const at::Tensor y = at::empty_like(x);
    y[0].zero_();
    y.mul(x);
  });
  EXPECT_FALSE(mayBeMadeAgain(*in_part));
}

TEST(NativeWritesTest, WhatOperatorsFillIsMadeAgain) {
  const at::Tensor x = at::ones({8, 8});
  const auto whole = graphOf([&] {
    const at::Tensor y = at::empty_like(x);
    y.copy_(x);
    y.mul(x);
  });
  EXPECT_TRUE(mayBeMadeAgain(*whole));
  const auto by_rows = graphOf([&] {
    const at::Tensor y = at::empty_like(x);
    for (int64_t i = 0; i < 8; ++i) y[i].copy_(x[i]);
    y.mul(x);
  });
  EXPECT_TRUE(mayBeMadeAgain(*by_rows));
  const auto as_result = graphOf([&] {
    at::Tensor y = at::empty_like(x);
    at::mul_out(y, x, x);
    y.mul(x);
  });
  EXPECT_TRUE(mayBeMadeAgain(*as_result));
}

TEST(NativeWritesTest, WhatIsWrittenIntoAResultIsNotMadeAgain) {
  const at::Tensor x = at::ones({8, 8});
  const auto read = graphOf([&] { x.mul(x).neg(); });
  EXPECT_TRUE(mayBeMadeAgain(*read));
  for (const auto& make : std::vector<std::function<at::Tensor()>>{
           [&] { return at::zeros_like(x); }, [&] { return x.clone(); }, [&] { return x.mm(x); }}) {
    const auto written = graphOf([&] {
      const at::Tensor y = make();
      writeRaw(y, 1);
      y.neg();
    });
    EXPECT_FALSE(mayBeMadeAgain(*written)) << written->op(OpId(0)).name;
  }
  const auto after_in_place = graphOf([&] {
    const at::Tensor y = x.mul(x);
    y.add_(1);
    writeRaw(y, 1);
    y.neg();
  });
  EXPECT_FALSE(after_in_place->op(OpId(1)).replayable);
}

TEST(NativeWritesTest, OperatorsMayWriteAndReadInParts) {
  const at::Tensor x = at::ones({64, 4096});  // 16 chunks, four rows each
  const auto by_rows = graphOf([&] {
    const at::Tensor y = at::zeros_like(x);
    for (int64_t i = 1; i < 64; ++i) y[i].copy_(y[i - 1] + x[i]);
    y.mul(x);
  });
  EXPECT_TRUE(mayBeMadeAgain(*by_rows));
  const auto between = graphOf([&] {
    const at::Tensor y = at::zeros_like(x);
    y[1].copy_(x[1]);
    writeRaw(y[2], 1);  // in the same chunk
    y[3].copy_(x[3]);
    y.mul(x);
  });
  EXPECT_FALSE(between->value(between->madeBy(OpId(0)).front()).evictable);
  const auto overwritten = graphOf([&] {
    const at::Tensor y = at::zeros_like(x);
    writeRaw(y, 1);
    y.copy_(x);
    y.mul(x);
  });
  EXPECT_TRUE(mayBeMadeAgain(*overwritten)) << "nobody has seen it";
}

TEST(NativeWritesTest, WhatTakesTooLongToLookAtIsNotMadeAgain) {
  const at::Tensor x = at::ones({1024, 256});
  const auto by_columns = [&](int64_t columns) {
    return graphOf([&] {
      const at::Tensor y = at::zeros_like(x);
      for (int64_t i = 0; i < columns; ++i) y.select(1, i).copy_(x.select(1, i));
      y.mul(x);
    });
  };
  EXPECT_TRUE(mayBeMadeAgain(*by_columns(16)));
  EXPECT_FALSE(mayBeMadeAgain(*by_columns(128)));
}

TEST(NativeWritesTest, WhatOneOfTwoRecordingsShowsCounts) {
  VariantSet variants;
  const at::Tensor x = at::ones({8, 8});
  bool is_stable = false;
  int id = -1;
  for (const bool writes : {true, false}) {
    auto recording = recordStep([&] {
      const at::Tensor y = x.mul(x);
      if (writes) writeRaw(y, 1);
      y.neg();
    });
    id = variants.add(std::make_unique<Recording>(*recording), is_stable);
  }
  EXPECT_TRUE(is_stable);
  EXPECT_FALSE(mayBeMadeAgain(*variants.find(id)->recording->graph));
}

TEST(SharingTest, WhatIsMadeOfMemoryThatOthersMayWriteIsNotMadeAgain) {
  std::vector<float> buffer(64, 1);
  const at::Tensor shared = at::from_blob(buffer.data(), {8, 8});
  const at::Tensor own = at::ones({8, 8});
  const auto step = [](const at::Tensor& x) { return [&x] { x.sin().neg(); }; };
  const auto of_shared = recordStep(step(shared)), of_own = recordStep(step(own));
  EXPECT_FALSE(of_shared->graph->op(OpId(0)).replayable);
  EXPECT_TRUE(of_shared->graph->op(OpId(1)).replayable);
  EXPECT_TRUE(of_own->graph->op(OpId(0)).replayable);
  EXPECT_NE(of_shared->signature(), of_own->signature());
  const KnownStorage parameter{shared.storage().getWeakStorageImpl(),
                               static_cast<int64_t>(shared.nbytes()), ValueKind::kParameter};
  EXPECT_TRUE(graphOf(step(shared), {parameter})->op(OpId(0)).replayable);
  const auto written = graphOf(
      [&] {
        shared.sin();
        buffer[3] = 2;
      },
      {parameter});
  EXPECT_FALSE(written->op(OpId(0)).replayable) << "a parameter, and not to be trusted";
}

}  // namespace
}  // namespace poet::testing
