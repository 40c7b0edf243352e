// Regions of exported models: run in order they are the whole, to the bit.

#include <map>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/exported_model.h>

#include "libaccel/tensors/unique_parameters.h"
#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/tensor_matchers.h"

namespace accel::region_test {
namespace {

using test::error_of;
using test::exported_model;
using test::SameTensor;

using ::testing::ElementsAre;
using ::testing::HasSubstr;

at::Tensor ids() {
  return at::arange(12).view({3, 4});
}

void seed() {
  at::manual_seed(5);
}

TEST(ExportedRegion, IsOneCallOfAModule) {
  ExportedModel net(exported_model("blocks"));
  net->eval();
  const ExportedRegion block = net->region("blocks.0");
  EXPECT_THAT(block.inputs(), ElementsAre("add"));
  ASSERT_EQ(block.outputs().size(), 1u);

  const at::Tensor x = at::randn({3, 4, 8});
  const at::Tensor y = block({x})[0].toTensor();

  const auto p = net->named_parameters();
  const at::Tensor h =
      at::layer_norm(x, {8}, p["blocks.0.norm.weight"], p["blocks.0.norm.bias"], 1e-5, false);
  const at::Tensor up = at::gelu(at::linear(h, p["blocks.0.up.weight"], p["blocks.0.up.bias"]));
  EXPECT_THAT(y,
              SameTensor(x + at::linear(up, p["blocks.0.down.weight"], p["blocks.0.down.bias"])));
}

TEST(ExportedRegion, AllInOrderAreTheWhole) {
  ExportedModel net(exported_model("blocks"));
  seed();
  const ExportedOutputs whole = net(ids(), ids());
  whole["loss"].backward();
  std::vector<at::Tensor> gradients;
  const std::vector<at::Tensor> parameters = unique_parameters(net->parameters());
  for (const at::Tensor& parameter : parameters) {
    gradients.push_back(parameter.grad().clone());
    parameter.mutable_grad() = at::Tensor();
  }

  seed();
  const std::vector<ExportedRegion> regions = net->regions({"blocks.1", "blocks.0"});
  EXPECT_EQ(regions.size(), 4u);  // before, both blocks, after
  std::map<std::string, c10::IValue> values{{"ids", ids()}, {"labels", ids()}};
  std::vector<std::string> last;
  for (const ExportedRegion& region : regions) {
    std::vector<c10::IValue> inputs;
    for (const std::string& name : region.inputs()) inputs.push_back(values.at(name));
    const std::vector<c10::IValue> outputs = region(std::move(inputs));
    last = region.outputs();
    for (std::size_t i = 0; i < outputs.size(); ++i) values[last[i]] = outputs[i];
  }
  const at::Tensor loss = values.at("cross_entropy_loss").toTensor();
  loss.backward();

  EXPECT_THAT(loss, SameTensor(whole["loss"]));
  std::size_t next = 0;
  for (const at::Tensor& parameter : parameters)
    EXPECT_THAT(parameter.grad(), SameTensor(gradients[next++]));
}

TEST(ExportedRegion, NamesWhatIsNoModuleAndWhatOverlaps) {
  ExportedModel net(exported_model("blocks"));
  const Error unknown = error_of([&] { static_cast<void>(net->region("blocks.7")); });
  EXPECT_EQ(unknown.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(unknown.message(), HasSubstr("'blocks.7'"));
  const Error overlap = error_of([&] {
    static_cast<void>(net->regions({"blocks.0", "blocks.0.up"}));
  });
  EXPECT_THAT(overlap.message(), HasSubstr("overlap"));
  EXPECT_THAT(error_of([&] { static_cast<void>(net->region("blocks.0")({})); }).message(),
              HasSubstr("takes 1 values, got 0"));
}

}  // namespace
}  // namespace accel::region_test
