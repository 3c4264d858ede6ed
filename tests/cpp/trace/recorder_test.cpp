#include "trace/recorder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <algorithm>
#include <set>

#include "support/recording.h"
#include "support/torch_step.h"
#include "trace/kept_storages.h"

namespace poet::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kMiB = 1 << 20;

class RecorderTest : public ::testing::Test {
 protected:
  RecorderTest()
      : x_((at::set_num_threads(1), at::manual_seed(6), at::randn({16, 16}))),
        w_(at::randn({16, 16})) {}

  void record(const std::function<void()>& step, std::vector<KnownStorage> known = {}) {
    recording_ = recordStep(step, std::move(known));
  }
  const Graph& graph() const { return *recording_->graph; }
  const Op& op(int64_t k) const { return graph().op(OpId(k)); }
  ValueId in(int64_t k, size_t i = 0) const { return op(k).inputs.at(i); }
  ValueId out(int64_t k, size_t i = 0) const { return op(k).outputs.at(i); }
  const Value& value(ValueId v) const { return graph().value(v); }
  static KnownStorage known(const at::Tensor& t, ValueKind kind) {
    return {t.storage().getWeakStorageImpl(), static_cast<int64_t>(t.storage().nbytes()), kind};
  }
  uint64_t signatureOf(const std::function<void()>& step) {
    record(step);
    return graph().signature();
  }

  at::Tensor x_, w_;
  std::shared_ptr<const Recording> recording_;
};

TEST_F(RecorderTest, WhatNativeCodeFillsIsNotMadeAgain) {
  const auto isReplayable = [this](const std::function<void(at::Tensor)>& fill) {
    record([&] {
      const at::Tensor made = at::empty({16, 16});
      fill(made);
      made.mul(w_);
    });
    return op(0).replayable;
  };
  EXPECT_FALSE(isReplayable([](const at::Tensor& t) { t.data_ptr<float>()[0] = 1; }));
  EXPECT_FALSE(isReplayable([](const at::Tensor& t) { t.add_(1); })) << "reads what was there";
  EXPECT_FALSE(isReplayable([](const at::Tensor& t) {
    const at::Tensor look = t.view({256});
    look.data_ptr<float>()[0] = 1;
  }));
  EXPECT_TRUE(isReplayable([](const at::Tensor& t) { t.fill_(1); }));
  EXPECT_TRUE(isReplayable([](const at::Tensor& t) { t.view({256}).normal_(); }));
  EXPECT_TRUE(isReplayable([this](at::Tensor t) { at::add_out(t, x_, w_); }));
  EXPECT_TRUE(isReplayable([this](const at::Tensor& t) { t.copy_(x_); }));
}

TEST_F(RecorderTest, WhatReadsForeignMemoryIsNotMadeAgain) {
  std::vector<float> memory(256, 1);
  const at::Tensor batch = at::from_blob(memory.data(), {16, 16});
  record([&] {
    const at::Tensor a = batch.view({256}).mul(2);
    x_.mul(w_).add(a.view({16, 16}));
  });
  ASSERT_EQ(graph().numOps(), 5);  // view, mul, mul, view, add
  EXPECT_FALSE(op(1).replayable);
  EXPECT_TRUE(op(2).replayable);
  EXPECT_TRUE(op(4).replayable);
  at::Tensor weights = at::from_blob(memory.data(), {16, 16});
  weights.requires_grad_();
  record([&] { x_.mul(weights); });
  EXPECT_TRUE(op(0).replayable) << "parameters are trusted";
}

TEST_F(RecorderTest, AnOpThatThrowsIsRecordedAsOneThatDoes) {
  const auto step = [&](bool fails) {
    return [this, fails] {
      const at::Tensor a = x_.mul(w_);
      if (fails) {
        EXPECT_THROW(at::mm(a, w_.slice(0, 0, 3)), c10::Error);
      }
      a.add(w_);
    };
  };
  const uint64_t without = signatureOf(step(false));
  const uint64_t with = signatureOf(step(true));
  EXPECT_NE(without, with);
  EXPECT_EQ(signatureOf(step(true)), with);
  ASSERT_EQ(graph().numOps(), 4);  // mul, slice, mm, add
  EXPECT_EQ(op(2).name, "aten::mm");
  EXPECT_TRUE(recording_->ops[2].raises);
  EXPECT_FALSE(op(2).replayable);
  EXPECT_THAT(op(2).outputs, IsEmpty());
  EXPECT_EQ(recording_->prefix_hash.size(), recording_->ops.size() + 1);
}

// NumPy gets an activation, an input that no op has shown yet, and a value for a moment.
TEST_F(RecorderTest, WhatIsReadBesideTheStepStaysAndWhatIsMadeOfItIsNotMadeAgain) {
  registerListener();
  const auto listener = std::make_shared<RecordingListener>(std::vector<KnownStorage>());
  Recorder& recorder = listener->recorder;
  {
    const AllocatorTap::Guard tap;
    const ListenerGuard guard(listener);
    const ListeningGuard listening;
    EXPECT_FALSE(recorder.knows(w_));
    recorder.noteRead(w_, /*may_write=*/false);
    const at::Tensor a = x_.mul(2);
    EXPECT_TRUE(recorder.knows(a));
    const at::Tensor before = a.t().relu();
    recorder.noteRead(a, /*may_write=*/true);
    const at::Tensor after = a.sigmoid();
    const at::Tensor beyond = after.add(w_);
  }
  recording_ = recorder.finish();
  ASSERT_EQ(graph().numOps(), 5);  // mul, t, relu, sigmoid, add
  const std::vector<Op>& ops = graph().ops();
  EXPECT_TRUE(ops[0].replayable) << "it makes what is read, of something else";
  EXPECT_FALSE(ops[2].replayable) << "what it read may have been written since";
  EXPECT_FALSE(ops[3].replayable);
  EXPECT_TRUE(ops[4].replayable);
  EXPECT_FALSE(value(out(0)).evictable);
  EXPECT_TRUE(value(out(2)).evictable);
  EXPECT_FALSE(value(in(4, 1)).evictable) << "read before an op has shown it";
}

// A later step finds an old gradient at its parameter and an input among its arguments, also where
// this step has dropped them.
TEST_F(RecorderTest, WhatALaterStepCanLookForMayDieInThisOne) {
  at::Tensor w = at::randn({64, 64}).requires_grad_();
  at::Tensor batch = at::randn({64, 64}), other = at::randn({64, 64});
  w.mutable_grad() = at::ones({64, 64});
  record(
      [&] {
        at::mm(batch, w).sum().backward();
        batch.reset();
        w.mutable_grad().reset();
        other.add(1);
        other.reset();
        x_.add(1);
      },
      {known(batch, ValueKind::kInput), known(w.grad(), ValueKind::kGradient)});
  std::set<ValueKind> kinds;
  for (const OutsideValue& outside : recording_->outside) {
    const Value& one = value(outside.value);
    if (one.death == graph().endOfStep()) continue;
    kinds.insert(one.kind);
    EXPECT_TRUE(outside.is_gradient || outside.input_position == 0) << outside.value.index;
    EXPECT_TRUE(one.evictable);
  }
  EXPECT_THAT(kinds, ElementsAre(ValueKind::kInput, ValueKind::kGradient));
}

TEST_F(RecorderTest, PartsOfASparseTensorTakeMemoryAndStay) {
  const at::Tensor indices = at::tensor({1, 1, 3}, at::kLong).view({1, 3});
  const at::Tensor values = at::randn({3, 64});
  const at::Tensor twice = at::sparse_coo_tensor(indices, values, {8, 64});
  record([&] { twice.coalesce()._values().mul(2); });
  const auto& ops = graph().ops();
  const auto made = std::find_if(ops.begin(), ops.end(),
                                 [](const Op& one) { return one.name == "aten::_coalesce"; });
  ASSERT_NE(made, ops.end());
  ASSERT_EQ(made->outputs.size(), 2);  // its indices and its values
  for (const ValueId part : made->outputs) EXPECT_FALSE(value(part).evictable);
  EXPECT_GE(value(made->outputs[1]).bytes, 2 * 64 * 4);
  EXPECT_FALSE(made->replayable);
}

TEST_F(RecorderTest, QuantizedTensorsAreNotManaged) {
  record([&] {
    const at::Tensor q = at::quantize_per_tensor(x_, 0.1, 0, at::kQUInt8);
    q.dequantize().mul(w_);
  });
  for (const RecordedOp& one : recording_->ops) {
    if (one.handle.schema().name() != "aten::dequantize") continue;
    EXPECT_FALSE(one.in()[0].value.valid());
  }
  EXPECT_FALSE(op(0).replayable);
  EXPECT_FALSE(value(in(0)).evictable);  // what it is made of
}

TEST_F(RecorderTest, WhatIsKeptIsNotEvictable) {
  at::Tensor kept;
  record([&] {
    kept = x_.mul(w_);
    KeptStorages::add(StorageHold::reclaim_copy(kept.storage().unsafeGetStorageImpl()));
    kept.add(x_.sin());
  });
  EXPECT_FALSE(AllocatorTap::mayRelease(*kept.storage().unsafeGetStorageImpl()));
  record([&] { kept.mul(2); });
  EXPECT_FALSE(value(in(0)).evictable);
  EXPECT_TRUE(value(out(0)).evictable);
}

TEST_F(RecorderTest, AValueIsAStorage) {
  record([&] {
    const at::Tensor a = x_.mul(w_);
    const at::Tensor row = a.view({-1}).slice(0, 0, 16);
    row.add(a.t());
  });
  ASSERT_EQ(graph().numOps(), 5);
  const ValueId a = out(0);
  EXPECT_EQ(value(a).bytes, 16 * 16 * 4);
  EXPECT_EQ(value(a).producer, OpId(0));
  for (int64_t view : {1, 2, 3}) {
    EXPECT_THAT(op(view).inputs, ElementsAre(a)) << view;
    EXPECT_THAT(op(view).outputs, ElementsAre(a)) << view;
    EXPECT_TRUE(op(view).metadata_only);
    EXPECT_EQ(op(view).workspace_bytes, 0);
  }
  EXPECT_EQ(in(4, 0), a);
  EXPECT_EQ(in(4, 1), a);
  EXPECT_FALSE(op(0).metadata_only);
  EXPECT_EQ(graph().numValues(), 4) << "x, w, a, sum";
}

TEST_F(RecorderTest, AnOpWithSeveralOutputsMakesSeveralValues) {
  record([&] { auto sorted = x_.sort(1); });
  ASSERT_EQ(op(0).outputs.size(), 2u);
  EXPECT_EQ(value(out(0, 0)).bytes, 16 * 16 * 4);
  EXPECT_EQ(value(out(0, 1)).bytes, 16 * 16 * 8);
}

TEST_F(RecorderTest, InPlaceOpsMakeVersionsNotValues) {
  record([&] {
    const at::Tensor a = x_.mul(w_);
    a.add_(1);
    a.slice(0, 0, 4).zero_();
    at::mul_out(const_cast<at::Tensor&>(a), x_, w_);
  });
  const ValueId a = out(0);
  EXPECT_THAT(graph().writersOf(a), ElementsAre(OpId(1), OpId(3), OpId(4)));
  EXPECT_THAT(op(1).mutates, ElementsAre(a));
  EXPECT_THAT(op(2).mutates, IsEmpty());
  EXPECT_FALSE(op(1).metadata_only);
}

TEST_F(RecorderTest, ValuesDieWhenTheyReallyDo) {
  at::Tensor stays;
  record([&] {
    {
      const at::Tensor a = x_.mul(w_);
      const at::Tensor b = a.neg();
    }
    x_.abs();
    stays = x_.exp();
  });
  EXPECT_EQ(value(out(0)).death, OpId(1)) << "held until op 1 was over";
  EXPECT_EQ(value(out(1)).death, OpId(1));
  EXPECT_EQ(value(out(2)).death, OpId(2)) << "dropped at once";
  EXPECT_EQ(value(out(3)).death, graph().endOfStep());
  EXPECT_EQ(value(in(0)).death, graph().endOfStep());
  EXPECT_EQ(recording_->dead_begin[1], recording_->dead_begin[0]);
  const std::set<ValueId> after_1(recording_->dead_after.begin() + recording_->dead_begin[1],
                                  recording_->dead_after.begin() + recording_->dead_begin[2]);
  EXPECT_EQ(after_1, (std::set<ValueId>{out(0), out(1)}));
}

TEST_F(RecorderTest, AutogradHoldsWhatItSavesUntilItsNodeHasRun) {
  const at::Tensor w = w_.clone().requires_grad_();
  record([&] {
    at::Tensor loss;
    {
      const at::Tensor a = x_.mul(w);
      const at::Tensor b = a.tanh();  // saves its result
      loss = b.sum();
    }
    loss.backward();
  });
  const OpId backward = opNamed(graph(), "aten::tanh_backward");
  EXPECT_EQ(value(out(0)).death, OpId(2)) << "mul saves x and w only";
  EXPECT_GE(value(out(1)).death, backward);
  EXPECT_EQ(graph().op(backward).phase, Phase::kBackward);
  EXPECT_EQ(op(1).phase, Phase::kForward);
}

TEST_F(RecorderTest, AStoragesAddressThatComesAgainIsANewValue) {
  std::set<c10::StorageImpl*> addresses;
  record([&] {
    for (int i = 0; i < 50; ++i) addresses.insert(x_.neg().storage().unsafeGetStorageImpl());
  });
#ifndef __SANITIZE_ADDRESS__  // which keeps freed memory back
  EXPECT_LT(addresses.size(), 50u) << "no address came again: the test tests nothing";
#endif
  std::set<ValueId> made;
  for (int64_t k = 0; k < graph().numOps(); ++k) made.insert(out(k));
  EXPECT_EQ(made.size(), 50u);
}

at::Tensor withScratch(const at::Tensor& x) {
  const at::Tensor scratch = at::empty({kMiB}, at::kByte);
  at::empty({kMiB / 2}, at::kByte);
  return x.neg();
}

int64_t twice(int64_t x) { return 2 * x; }

at::Tensor drawsSecretly(const at::Tensor& x) { return x.add(at::rand({1})); }

class CustomOpsTest : public RecorderTest {
 protected:
  CustomOpsTest()
      : library_(torch::Library::DEF, "poet_test_recorder", std::nullopt, __FILE__, __LINE__) {
    library_.def("scratch(Tensor x) -> Tensor");
    library_.impl("scratch", c10::DispatchKey::CPU, TORCH_FN(withScratch));
    library_.def("draws(Tensor x) -> Tensor");
    library_.impl("draws", c10::DispatchKey::CPU, TORCH_FN(drawsSecretly));
  }
  static at::Tensor call(const char* name, const at::Tensor& x) {
    return c10::Dispatcher::singleton()
        .findSchemaOrThrow((std::string("poet_test_recorder::") + name).c_str(), "")
        .typed<at::Tensor(const at::Tensor&)>()
        .call(x);
  }
  torch::Library library_;
};

TEST_F(CustomOpsTest, WorkspaceIsWhatAnOpTakesBesideItsOutputs) {
  record([&] {
    call("scratch", x_);
    x_.neg();
  });
  ASSERT_EQ(graph().numOps(), 2) << "ops inside an op do not count";
  // At its peak the output was not there yet; the simulator counts it all through the op.
  EXPECT_EQ(op(0).workspace_bytes + value(out(0)).bytes, kMiB + kMiB / 2);
  EXPECT_EQ(op(1).workspace_bytes, 0);
  EXPECT_GT(op(0).seconds, 0);
}

TEST_F(CustomOpsTest, AnOpThatDrawsWithoutSayingSoIsRandom) {
  record([&] {
    call("draws", x_);
    call("scratch", x_);
    x_.bernoulli(0.5);
    x_.neg();
  });
  EXPECT_TRUE(op(0).random);
  EXPECT_FALSE(op(1).random);
  EXPECT_TRUE(op(2).random);
  EXPECT_FALSE(op(3).random);
}

TEST_F(CustomOpsTest, OpsOfOthersAreNotReplayable) {
  record([&] {
    call("scratch", x_);
    x_.neg();
    x_.clone().resize_({4});
  });
  EXPECT_FALSE(op(0).replayable);
  EXPECT_TRUE(op(1).replayable);
  EXPECT_FALSE(op(3).replayable);
  EXPECT_FALSE(value(out(2)).evictable) << "its storage is rebound";
}

TEST_F(RecorderTest, WhatPoetDoesNotOwnOrMustNotMoveIsNotEvictable) {
  std::vector<float> memory(4);
  const at::Tensor blob = at::from_blob(memory.data(), {4});
  record([&] {
    blob.neg();
    at::arange(5);
    at::arange(6).view({2, 3}).mul(2);
  });
  EXPECT_FALSE(value(in(0)).evictable);
  EXPECT_TRUE(value(out(0)).evictable);
  EXPECT_FALSE(value(out(1)).evictable) << "an index list";
  EXPECT_TRUE(value(out(4)).evictable);
}

TEST_F(RecorderTest, UnmanagedTensorsMakeAnOpNotReplayable) {
  at::Tensor dense;
  record([&] {
    const at::Tensor sparse = x_.to_sparse();
    dense = sparse.to_dense();
  });
  bool some = false;
  for (size_t k = 0; k < recording_->ops.size(); ++k) {
    for (const Slot& slot : recording_->ops[k].all()) {
      if (slot.value.valid()) continue;
      some = true;
      EXPECT_FALSE(graph().ops()[k].replayable) << graph().ops()[k].name;
    }
  }
  EXPECT_TRUE(some);
}

TEST_F(RecorderTest, EqualStepsHaveEqualSignatures) {
  const auto step = [&] { x_.mul(w_).tanh().sum(); };
  EXPECT_EQ(signatureOf(step), signatureOf(step));
  EXPECT_EQ(recording_->prefix_hash.size(), recording_->ops.size() + 1);
  EXPECT_EQ(recording_->signature(), graph().signature());
}

TEST_F(RecorderTest, SignaturesTellOpsShapesTypesAndWiringButNoScalars) {
  const uint64_t one = signatureOf([&] { x_.mul(w_).neg(); });
  EXPECT_NE(signatureOf([&] { x_.mul(w_).abs(); }), one);
  EXPECT_NE(signatureOf([&] { x_.mul(x_).neg(); }), one) << "the same storage twice";
  EXPECT_NE(signatureOf([&] { x_.mul(w_).neg().neg(); }), one);
  EXPECT_NE(signatureOf([&] { x_.slice(0, 0, 8).mul(w_.slice(0, 0, 8)).neg(); }), one);
  const at::Tensor xd = x_.to(at::kDouble), wd = w_.to(at::kDouble);
  EXPECT_NE(signatureOf([&] { xd.mul(wd).neg(); }), one);
  const at::Tensor xt = x_.t();
  EXPECT_NE(signatureOf([&] { xt.mul(w_).neg(); }), one) << "other strides";
  EXPECT_EQ(signatureOf([&] { w_.mul(x_).neg(); }), one) << "which tensors they are is no matter";
  EXPECT_EQ(signatureOf([&] { x_.mul(2); }), signatureOf([&] { x_.mul(3); }));
}

TEST_F(RecorderTest, KindsSayWhatAValueIs) {
  const TorchStep step = residualNet();
  LiveStep live(step, false);
  live.trace();
  std::map<ValueKind, int> count;
  for (const Value& v : live.graph().values()) ++count[v.kind];
  // Two convolutions, two norms and a linear layer have ten parameters; AdamW has two moments of
  // each; the norms have three buffers each.
  EXPECT_EQ(count[ValueKind::kParameter], 10);
  EXPECT_GE(count[ValueKind::kGradient], 10);
  EXPECT_GE(count[ValueKind::kOptimizerState], 20);
  EXPECT_EQ(count[ValueKind::kBuffer], 6);
  EXPECT_GT(count[ValueKind::kActivation], 10);
  const Op& norm = live.graph().op(opNamed(live.graph(), "aten::native_batch_norm"));
  EXPECT_EQ(norm.statistics.size(), 2u);
  for (ValueId v : norm.statistics) {
    EXPECT_EQ(live.graph().value(v).kind, ValueKind::kBuffer);
    EXPECT_THAT(norm.mutates, ::testing::Contains(v));
  }
}

TEST_F(RecorderTest, BatchNormInEvaluationMovesNothing) {
  at::Tensor mean = at::zeros({4}), var = at::ones({4}), scale = at::ones({4}),
             shift = at::zeros({4});
  const at::Tensor image = at::randn({2, 4, 3, 3});
  for (const bool training : {true, false}) {
    record([&] { at::native_batch_norm(image, scale, shift, mean, var, training, 0.1, 1e-5); });
    EXPECT_EQ(op(0).statistics.size(), training ? 2u : 0u);
    EXPECT_EQ(op(0).mutates.size(), training ? 2u : 0u);
  }
}

TEST_F(RecorderTest, KnownStoragesThatNoOpTouchesAreTheBase) {
  const at::Tensor idle = at::zeros({1000});
  at::Tensor leaving = at::zeros({500}), gone = at::zeros({300});
  const std::vector<KnownStorage> all = {
      known(x_, ValueKind::kInput), known(idle, ValueKind::kBuffer),
      known(idle, ValueKind::kBuffer), known(leaving, ValueKind::kGradient),
      known(gone, ValueKind::kBuffer)};
  record(
      [&] {
        gone.reset();
        x_.neg();
        leaving.reset();
        x_.abs();
      },
      all);
  EXPECT_EQ(graph().baseBytes(), 4000)
      << "counted once; what left before the first op is no matter";
  ASSERT_EQ(graph().numValues(), 4);
  const Value& left = value(ValueId(3));
  EXPECT_EQ(left.bytes, 2000);
  EXPECT_EQ(left.kind, ValueKind::kGradient);
  EXPECT_EQ(left.death, OpId(0));
  EXPECT_FALSE(left.evictable);
  EXPECT_EQ(recording_->first_shown[3], graph().endOfStep());
  EXPECT_EQ(value(in(0)).kind, ValueKind::kInput);
}

// Python knows its tensors in the order in which they lie in memory.
TEST_F(RecorderTest, TheOrderInWhichStoragesAreKnownIsNoPartOfTheGraph) {
  std::vector<std::string> graphs;
  for (const bool turned : {false, true}) {
    std::vector<at::Tensor> old = {at::zeros({500}), at::zeros({64}), at::zeros({5})};
    std::vector<KnownStorage> all = {known(x_, ValueKind::kInput)};
    for (const at::Tensor& t : old) all.push_back(known(t, ValueKind::kGradient));
    if (turned) std::reverse(all.begin(), all.end());
    record(
        [&] {
          x_.neg();
          old[1].reset();
          x_.abs();
          old.clear();
          x_.sin();
        },
        all);
    std::vector<Op> ops = graph().ops();
    for (Op& op : ops) op.seconds = 0;
    graphs.push_back(Graph(std::move(ops), graph().values(), graph().baseBytes()).toJson());
  }
  EXPECT_EQ(graphs[0], graphs[1]);
}

TEST_F(RecorderTest, SmallThingsFromOutsideStayToTheEnd) {
  record([&] {
    { const at::Tensor number = x_.mul(3.5); }
    x_.neg();
  });
  for (const Value& v : graph().values()) {
    if (!v.producer.valid()) {
      EXPECT_EQ(v.death, graph().endOfStep());
    }
  }
}

TEST_F(RecorderTest, WhatAStorageGrowsByIsAValueOfItsOwn) {
  record([&] {
    at::Tensor buffer = at::empty({0});
    at::mul_out(buffer, x_, w_);  // op 1
    buffer.resize_({32, 16});     // op 2
    x_.neg();
  });
  ASSERT_EQ(graph().numOps(), 4);
  const ValueId buffer = out(0);
  EXPECT_EQ(value(buffer).bytes, 0);
  EXPECT_FALSE(value(buffer).evictable);
  const auto bytes = static_cast<int64_t>(x_.nbytes());
  for (int64_t k : {1, 2}) {
    ASSERT_THAT(op(k).outputs, ElementsAre(buffer, ::testing::_));
    const Value& more = value(out(k, 1));
    EXPECT_EQ(more.bytes, bytes);
    EXPECT_EQ(more.death, value(buffer).death);
    EXPECT_FALSE(more.evictable);
    EXPECT_FALSE(op(k).replayable);
  }
  EXPECT_EQ(op(1).workspace_bytes, 0);
  EXPECT_EQ(op(2).workspace_bytes, bytes) << "the old memory, while the new one is filled";
  EXPECT_EQ(value(buffer).death, OpId(3));
}

TEST_F(RecorderTest, OpsWithoutTensorsAreNotRecorded) {
  torch::Library library(torch::Library::DEF, "poet_test_plain", std::nullopt, __FILE__, __LINE__);
  library.def("twice(int x) -> int");
  library.impl("twice",
               torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, TORCH_FN(twice)));
  int64_t four = 0;
  record([&] {
    x_.neg();
    four = c10::Dispatcher::singleton()
               .findSchemaOrThrow("poet_test_plain::twice", "")
               .typed<int64_t(int64_t)>()
               .call(2);
  });
  EXPECT_EQ(four, 4);
  EXPECT_EQ(graph().numOps(), 1);
}

TEST_F(RecorderTest, GoingOnFromAPlansFirstOpsGivesTheWholeStep) {
  at::Tensor kept;
  std::vector<WeakStorage> bound;
  const auto first_half = [&] {
    const at::Tensor a = x_.mul(w_);
    kept = a.tanh();
    bound = {x_.storage().getWeakStorageImpl(), w_.storage().getWeakStorageImpl(),
             a.storage().getWeakStorageImpl(), kept.storage().getWeakStorageImpl()};
  };
  const auto second_half = [&] {
    kept.add_(x_);
    kept.neg();
  };
  record([&] { first_half(), second_half(); });
  const auto whole = recording_;
  record([&] { first_half(), x_.exp(); });
  const auto prefix = recording_;

  first_half();
  registerListener();
  class Continued final : public Listener {
   public:
    Continued(const Recording& first, size_t done, const std::vector<WeakStorage>& storages,
              const std::vector<WeakStorage>& inputs)
        : recorder(first, done, storages, std::vector<int64_t>(storages.size() + 1, 0), inputs) {}
    void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
              torch::jit::Stack* stack) override {
      recorder.run(op, below, stack);
    }
    void onForeignOp(const c10::OperatorHandle&, torch::jit::Stack*) override {}
    Recorder recorder;
  };
  const AllocatorTap::Guard tap;
  const auto listener = std::make_shared<Continued>(*prefix, 2, bound, std::vector<WeakStorage>());
  {
    const ListenerGuard guard(listener);
    const ListeningGuard listening;
    second_half();
  }
  const std::unique_ptr<Recording> joined = listener->recorder.finish();
  EXPECT_EQ(joined->signature(), whole->signature());
  ASSERT_EQ(joined->graph->numValues(), whole->graph->numValues());
  for (size_t v = 0; v < joined->graph->values().size(); ++v) {
    EXPECT_EQ(joined->graph->values()[v].death, whole->graph->values()[v].death) << "value " << v;
    EXPECT_EQ(joined->graph->values()[v].kind, whole->graph->values()[v].kind) << "value " << v;
  }
  EXPECT_EQ(joined->graph->baseBytes(), whole->graph->baseBytes());
  EXPECT_EQ(joined->first_shown, whole->first_shown);
  EXPECT_EQ(joined->dead_after, whole->dead_after);
}

// After a departure, too, an argument and an old gradient are known as such, for later steps.
TEST_F(RecorderTest, WhatIsShownAfterADepartureIsFoundAgain) {
  at::Tensor w = w_.clone().requires_grad_();
  w.mutable_grad() = at::ones({16, 16});
  const at::Tensor batch = at::randn({16, 16});
  at::Tensor h;
  std::vector<WeakStorage> bound;
  const auto first_half = [&] {
    h = at::mm(x_, w);
    bound = {x_.storage().getWeakStorageImpl(), w.storage().getWeakStorageImpl(),
             h.storage().getWeakStorageImpl()};
  };
  record([&] { first_half(), x_.exp(); });
  ASSERT_EQ(op(0).name, "aten::mm");
  first_half();
  const std::vector<int64_t> shifts(bound.size() + 1, 0);
  Recorder recorder(*recording_, 1, bound, shifts, {batch.storage().getWeakStorageImpl()});
  class Continued final : public Listener {
   public:
    explicit Continued(Recorder& recorder) : recorder_(recorder) {}
    void onOp(const c10::OperatorHandle& op, c10::DispatchKeySet below,
              torch::jit::Stack* stack) override {
      recorder_.run(op, below, stack);
    }
    void onForeignOp(const c10::OperatorHandle&, torch::jit::Stack*) override {}

   private:
    Recorder& recorder_;
  };
  registerListener();
  {
    const AllocatorTap::Guard tap;
    const ListenerGuard guard(std::make_shared<Continued>(recorder));
    const ListeningGuard listening;
    (h * batch).sum().backward();
  }
  recording_ = recorder.finish();
  int inputs = 0, gradients = 0;
  for (const OutsideValue& outside : recording_->outside) {
    inputs += outside.input_position == 0 && value(outside.value).kind == ValueKind::kInput;
    gradients += outside.is_gradient && value(outside.value).kind == ValueKind::kGradient;
  }
  EXPECT_EQ(inputs, 1);
  EXPECT_EQ(gradients, 1) << "backward added to it";
}

}  // namespace
}  // namespace poet::testing
