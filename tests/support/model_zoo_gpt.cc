// By itself: the example includes all of LibTorch.
#include "examples/char_gpt.h"
#include "tests/support/model_zoo.h"

namespace accel::test {
namespace {

struct CharGpt : ZooModel {
  CharGpt() { register_module("gpt", gpt); }
  torch::Tensor forward(const torch::Tensor& x) override {
    return gpt((x.abs() * 7).to(torch::kLong).clamp_max(31));
  }
  Gpt gpt{GptConfig{.width = 16, .num_layers = 2, .num_heads = 2, .context = 16, .vocabulary = 32}};
};

}  // namespace

std::shared_ptr<ZooModel> make_zoo_gpt() {
  return std::make_shared<CharGpt>();
}

}  // namespace accel::test
