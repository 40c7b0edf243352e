// Operators that a program gives to exported models, and those that libaccel brings.

#include "libaccel/exported/operator_table.h"

#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/exported_model.h>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/tensor_matchers.h"

namespace accel::operator_table_test {
namespace {

using test::error_of;
using test::exported_model;
using test::SameTensor;

using ::testing::HasSubstr;

at::Tensor times(const at::Tensor& x, std::int64_t number) {
  return x * number;
}

TEST(RegisterOperator, GivesAGraphItsFunction) {
  EXPECT_THAT(error_of([&] { ExportedModel net(exported_model("custom")); }).message(),
              HasSubstr("accel_test::twice"));

  register_operator("accel_test::twice(Tensor x, int times=2) -> Tensor", times);

  ExportedModel net(exported_model("custom"));
  const at::Tensor x = at::randn({2, 4});
  const at::Tensor output = net(x);
  const auto p = net->named_parameters();
  EXPECT_THAT(output, SameTensor(at::linear(x, p["line.weight"], p["line.bias"]) * 2));
  output.sum().backward();
  EXPECT_TRUE(p["line.weight"].grad().defined());

  register_operator(
      "accel_test::twice", +[](const at::Tensor& value) { return value + 1; });
  ExportedModel later(exported_model("custom"));
  EXPECT_THAT(at::Tensor(later(x)),
              SameTensor(at::linear(x, p["line.weight"], p["line.bias"]) + 1));
  EXPECT_THAT(at::Tensor(net(x)),
              SameTensor(output.detach()));  // has what was known when it was loaded
}

TEST(RegisterOperator, RefusesWhatIsNoSchema) {
  EXPECT_EQ(error_of([] { register_operator("a::b(Tensor", times); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([] { register_operator("twice", times); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(GroupedMm, IsTheProductOfEachExpertsRows) {
  const auto custom = exported::custom_operator("transformers::grouped_mm_fallback");
  ASSERT_TRUE(custom.has_value());
  const at::Tensor input = at::randn({6, 3}).set_requires_grad(true);
  const at::Tensor weight = at::randn({4, 3, 2}).set_requires_grad(true);
  const at::Tensor ends = at::tensor({2, 2, 5, 6}, at::kInt);  // the second expert has no rows

  const at::Tensor output = (*custom->function)({input, weight, ends})[0].toTensor();
  const at::Tensor expected = at::cat({at::mm(input.narrow(0, 0, 2), weight[0]),
                                       at::mm(input.narrow(0, 2, 3), weight[2]),
                                       at::mm(input.narrow(0, 5, 1), weight[3])});
  EXPECT_THAT(output, SameTensor(expected));

  output.square().sum().backward();
  const at::Tensor of_input = input.grad().clone();
  const at::Tensor of_weight = weight.grad().clone();
  input.mutable_grad() = at::Tensor();
  weight.mutable_grad() = at::Tensor();
  expected.square().sum().backward();
  EXPECT_THAT(of_input, SameTensor(input.grad()));
  EXPECT_THAT(of_weight, SameTensor(weight.grad()));
}

}  // namespace
}  // namespace accel::operator_table_test
