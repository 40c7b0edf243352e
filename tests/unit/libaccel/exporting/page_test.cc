// The code that docs/guides/exporting-models.md shows, compiled and run. tests/integration/documents/run.py compares the two.

#include <tuple>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <accel/export_model.h>
#include <accel/exported_model.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/working_folder.h"

namespace accel::exporting_page_test {
namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t classes) {
    weight = register_parameter("weight", at::randn({classes, 3}));
  }
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Net);

TEST(ExportingPage, ExportsAsItShows) {
  const test::ScratchFolder scratch;
  const test::WorkingFolder working(scratch.path());
  const std::int64_t options = 4;
  const at::Tensor x = at::randn({2, 3});
  const at::Tensor labels = at::randint(4, {2}, at::kLong);

  Net net(options);
  accel::export_model(net, std::make_tuple(x), "net.pt2");

  const auto with_loss = [&](const std::vector<at::Tensor>& in) {
    const at::Tensor logits = net(in[0]);
    return std::vector<at::Tensor>{at::cross_entropy_loss(logits, in[1]), logits};
  };
  accel::export_model(*net,
                      with_loss,
                      {x, labels},
                      "net.pt2",
                      {.input_names = {"x", "labels"}, .output_names = {"loss", "logits"}});

  ExportedModel model("net.pt2");
  const auto outputs = model(x, labels);
  const at::Tensor logits = net(x);
  EXPECT_TRUE(outputs["logits"].equal(logits));
  EXPECT_TRUE(outputs["loss"].equal(at::cross_entropy_loss(logits, labels)));
}

}  // namespace
}  // namespace accel::exporting_page_test
