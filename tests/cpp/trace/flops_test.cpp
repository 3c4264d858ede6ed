#include "trace/flops.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

namespace poet::testing {
namespace {

Slot slot(int arg, std::initializer_list<int64_t> sizes) {
  static SlotTable table;
  Slot made;
  made.value = ValueId(0);
  made.arg = static_cast<uint64_t>(arg) & Slot::kMostArgs;
  Look look;
  for (int64_t size : sizes) look.sizes.push_back(size);
  made.look = table.shared(0, std::move(look));
  return made;
}

double flops(std::string_view name, const std::vector<Slot>& in, const std::vector<Slot>& out) {
  return flopsOf(name, in, out);
}

TEST(Flops, OfMatrixProductsAreTwoAMultiplyAdd) {
  EXPECT_EQ(flops("aten::mm", {slot(0, {3, 5}), slot(1, {5, 7})}, {slot(0, {3, 7})}), 210);
  EXPECT_EQ(flops("aten::addmm", {slot(0, {7}), slot(1, {3, 5}), slot(2, {5, 7})}, {}), 210);
  EXPECT_EQ(flops("aten::bmm", {slot(0, {2, 3, 5}), slot(1, {2, 5, 7})}, {}), 420);
  EXPECT_EQ(flops("aten::mv", {slot(0, {3, 5}), slot(1, {5})}, {}), 30);
  EXPECT_EQ(flops("aten::linear", {slot(0, {2, 3, 5}), slot(1, {7, 5})}, {}), 420);
}

TEST(Flops, OfConvolutionsCountOutputPixelsGroupsAndStrides) {
  const Slot x = slot(0, {2, 4, 8, 8}), w = slot(1, {6, 4, 3, 3}), y = slot(0, {2, 6, 4, 4});
  const double forward = 2.0 * (2 * 6 * 4 * 4) * (4 * 3 * 3);
  EXPECT_EQ(flops("aten::convolution", {x, w}, {y}), forward);
  // Depthwise: one input channel a filter.
  EXPECT_EQ(flops("aten::convolution", {slot(0, {1, 6, 8, 8}), slot(1, {6, 1, 3, 3})},
                  {slot(0, {1, 6, 8, 8})}),
            2.0 * 6 * 64 * 9);
}

TEST(Flops, OfTransposedConvolutionsCountInputPixels) {
  for (const int64_t out : {4, 8}) {
    const Slot x = slot(0, {1, 8, 4, 4}), w = slot(1, {8, out, 2, 2});
    EXPECT_EQ(flops("aten::convolution", {x, w}, {slot(0, {1, out, 8, 8})}),
              2.0 * 16 * 8 * static_cast<double>(out) * 4);
  }
}

TEST(Flops, OfAConvolutionsGradientCountWhatIsAskedFor) {
  const Slot g = slot(0, {1, 6, 8, 8}), x = slot(1, {1, 4, 8, 8}), w = slot(2, {6, 4, 3, 3});
  const double forward = 2.0 * 6 * 64 * 36;
  const Slot gx = slot(0, {1, 4, 8, 8}), gw = slot(1, {6, 4, 3, 3}), gb = slot(2, {6});
  EXPECT_EQ(flops("aten::convolution_backward", {g, x, w}, {gw}), forward);
  EXPECT_EQ(flops("aten::convolution_backward", {g, x, w}, {gx, gw, gb}), 2 * forward + 6 * 64);
}

TEST(Flops, OfAttentionAreTwoProductsForwardAndFiveBackward) {
  const auto qkv = [](int first) {
    return std::vector<Slot>{slot(first, {1, 2, 5, 4}), slot(first + 1, {1, 2, 7, 4}),
                             slot(first + 2, {1, 2, 7, 4})};
  };
  const double one = 2.0 * 2 * 5 * 7 * 4;
  const std::string name = "aten::_scaled_dot_product_flash_attention_for_cpu";
  EXPECT_EQ(flops(name, qkv(0), {}), 2 * one);
  EXPECT_EQ(flops(name + "_backward", qkv(1), {}), 5 * one);
}

TEST(Flops, OfAllElseAreTheNumbersOfTheLargestArgumentOrResult) {
  EXPECT_EQ(flops("aten::sum", {slot(0, {10, 10})}, {slot(0, {})}), 100);
  EXPECT_EQ(flops("aten::add.Tensor", {slot(0, {10, 1}), slot(1, {10})}, {slot(0, {10, 10})}), 100);
  EXPECT_EQ(flops("aten::embedding", {slot(0, {30000, 8}), slot(1, {4})}, {slot(0, {4, 8})}), 32);
  Slot second = slot(0, {50});
  second.element = 1;
  EXPECT_EQ(flops("aten::_foreach_add_.List", {slot(0, {100}), second}, {}), 150);
  EXPECT_EQ(flops("aten::sgd", {}, {}), 0);
}

}  // namespace
}  // namespace poet::testing
