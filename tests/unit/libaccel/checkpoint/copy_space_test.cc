// Copies of a state while it changes, and the memory that they are in.

#include "libaccel/engine/checkpoint/files/copy_space.h"

#include <cstdint>

#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "libaccel/tensors/large_tensor.h"
#include "tests/support/tensor_matchers.h"

namespace accel::checkpoint::copy_space_test {
namespace {

at::Tensor copy_of(CopySpace& space, const at::Tensor& tensor) {
  at::Tensor copy = tensor;
  space.replace_by_copies({&copy});
  return copy;
}

TEST(CopySpace, CopiesKeepValuesTypesAndStridesWhenTheOriginalsChange) {
  const at::Tensor numbers = at::arange(24, at::kFloat);
  const at::Tensor turned = at::arange(6, at::kDouble).view({2, 3}).t();
  const at::Tensor flags = at::arange(3).remainder(2).to(at::kBool);
  const at::Tensor odd = at::arange(5).to(at::kBFloat16);
  const at::Tensor gaps = numbers.narrow(0, 0, 12).view({3, 4}).narrow(1, 1, 2);
  const at::Tensor conjugate = at::complex(at::arange(2, at::kFloat), at::ones({2})).conj();
  const at::Tensor none = at::empty({0, 3});
  std::vector<at::Tensor> copies = {numbers, turned, flags, odd, gaps, conjugate, none};
  std::vector<at::Tensor> expected;
  for (const at::Tensor& tensor : copies) expected.push_back(tensor.clone());
  CopySpace space;

  std::vector<at::Tensor*> places;
  for (at::Tensor& tensor : copies) places.push_back(&tensor);
  space.replace_by_copies(places);
  for (const at::Tensor& tensor : {numbers, turned, odd}) tensor.fill_(9);

  for (std::size_t i = 0; i < copies.size(); ++i) {
    EXPECT_TRUE(test::same_tensor(copies[i], expected[i])) << i;
    EXPECT_EQ(copies[i].strides(), expected[i].strides()) << i;
  }
}

TEST(CopySpace, MemoryIsUsedAgainWhenNobodyHasTheCopiesOfBefore) {
  CopySpace space;
  const void* const first = copy_of(space, at::arange(1000)).data_ptr();

  EXPECT_EQ(copy_of(space, at::arange(500)).data_ptr(), first);
  EXPECT_EQ(space.bytes(), 8000u);

  space.release();
  EXPECT_EQ(space.bytes(), 0u);
}

TEST(CopySpace, CopiesThatAreStillUsedStayAsTheyAre) {
  CopySpace space;
  const at::Tensor used = copy_of(space, at::arange(1000));

  const at::Tensor next = copy_of(space, at::arange(1000, 2000));

  EXPECT_TRUE(test::same_tensor(used, at::arange(1000)));
  EXPECT_TRUE(test::same_tensor(next, at::arange(1000, 2000)));
}

TEST(LargeTensor, IsAnOrdinaryTensorThatBeginsAtAHugePage) {
  constexpr std::int64_t kElements = (std::int64_t{9} << 20) / 4 + 1;
  at::Tensor tensor = empty_large_tensor({kElements}, at::kFloat);

  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % (std::uintptr_t{2} << 20), 0u);
  tensor.fill_(1);
  EXPECT_EQ(tensor.sum().item<double>(), static_cast<double>(kElements));
  tensor.resize_({2 * kElements});
  EXPECT_EQ(tensor.narrow(0, 0, kElements).sum().item<double>(), static_cast<double>(kElements));
  EXPECT_EQ(empty_large_tensor({0, 3}, at::kHalf).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_TRUE(empty_large_tensor({3}, at::TensorOptions(at::kHalf).device(at::kMeta)).is_meta());
}

}  // namespace
}  // namespace accel::checkpoint::copy_space_test
