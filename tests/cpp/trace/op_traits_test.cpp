#include "trace/op_traits.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

namespace poet {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const OpTraits& of(const char* name, const char* overload = "") {
  return traitsOf(c10::Dispatcher::singleton().findSchemaOrThrow(name, overload));
}

TEST(OpTraitsTest, NamesHaveTheirOverload) {
  EXPECT_EQ(of("aten::add", "Tensor").name, "aten::add.Tensor");
  EXPECT_EQ(of("aten::relu").name, "aten::relu");
}

TEST(OpTraitsTest, AreMadeOnce) { EXPECT_EQ(&of("aten::relu"), &of("aten::relu")); }

TEST(OpTraitsTest, KnowWhichArgumentsAreWritten) {
  EXPECT_THAT(of("aten::add", "Tensor").writes_arg, ElementsAre(false, false, false));
  EXPECT_THAT(of("aten::add_", "Tensor").writes_arg, ElementsAre(true, false, false));
  EXPECT_THAT(of("aten::mm", "out").writes_arg, ElementsAre(false, false, true));
  EXPECT_THAT(of("aten::view").writes_arg, ElementsAre(false, false)) << "it aliases only";
}

TEST(OpTraitsTest, KnowWhatIsRandom) {
  for (const char* name : {"aten::bernoulli", "aten::native_dropout", "aten::normal_",
                           "aten::randn_like", "aten::randperm"}) {
    EXPECT_TRUE(of(name).random) << name;
  }
  EXPECT_FALSE(of("aten::relu").random);
}

TEST(OpTraitsTest, KnowWhatOnlyLooksAtShapes) {
  for (const char* name :
       {"aten::empty_like", "aten::zeros_like", "aten::ones_like", "aten::randn_like",
        "aten::new_zeros", "aten::new_empty_strided", "aten::randint_like"}) {
    EXPECT_TRUE(of(name).reads_no_data) << name;
  }
  EXPECT_FALSE(of("aten::clone").reads_no_data);
  EXPECT_FALSE(of("aten::zero_").reads_no_data);
}

TEST(OpTraitsTest, KnowWhatRebindsAStorage) {
  EXPECT_TRUE(of("aten::set_", "source_Tensor").rebinds_storage);
  EXPECT_TRUE(of("aten::resize_").rebinds_storage);
  EXPECT_FALSE(of("aten::copy_").rebinds_storage);
}

TEST(OpTraitsTest, KnowWhatIsNoPartOfAStep) {
  EXPECT_TRUE(of("profiler::_record_function_enter_new").without_tensors);
  EXPECT_FALSE(of("aten::relu").without_tensors);
  EXPECT_FALSE(of("aten::empty", "memory_format").without_tensors) << "it returns one";
  EXPECT_FALSE(of("aten::cat").without_tensors) << "tensors in a list";
  EXPECT_FALSE(of("aten::item").without_tensors) << "it takes one";
}

TEST(OpTraitsTest, TrustOnlyPyTorchsOwnOps) {
  torch::Library library(torch::Library::DEF, "poet_test_traits", std::nullopt, __FILE__, __LINE__);
  library.def("mine(Tensor x) -> Tensor");
  EXPECT_FALSE(of("poet_test_traits::mine").known_pure);
  EXPECT_TRUE(of("aten::relu").known_pure);
}

TEST(OpTraitsTest, FindTheStatisticsOfBatchNorm) {
  const OpTraits& traits = of("aten::native_batch_norm");
  EXPECT_THAT(traits.statistic_args, ElementsAre(3, 4));
  EXPECT_EQ(traits.training_arg, 5);
  std::vector<c10::IValue> args(8);
  args[5] = true;
  EXPECT_TRUE(traits.updatesStatistics(args.data()));
  args[5] = false;
  EXPECT_FALSE(traits.updatesStatistics(args.data())) << "evaluation reads them";

  EXPECT_THAT(of("aten::native_batch_norm_backward").statistic_args, IsEmpty());
  EXPECT_THAT(of("aten::native_layer_norm").statistic_args, IsEmpty());
  EXPECT_FALSE(of("aten::relu").updatesStatistics(args.data()));
  const OpTraits& always = of("aten::batch_norm_update_stats");
  EXPECT_FALSE(always.statistic_args.empty());
  EXPECT_TRUE(always.updatesStatistics(args.data())) << "it has no training flag";
}

}  // namespace
}  // namespace poet
