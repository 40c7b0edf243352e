#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accel/error.h>
#include <accel/layerwise_casting.h>

#include "tests/support/error_of.h"

namespace accel::layerwise_casting_test {
namespace {

using ::testing::HasSubstr;

struct Block : torch::nn::Module {
  Block() {
    conv = register_module("conv", torch::nn::Conv1d(4, 8, 3));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    linear = register_module("linear", torch::nn::Linear(6, 5));
  }
  torch::Tensor forward(const torch::Tensor& input) { return linear(norm(conv(input))); }
  torch::nn::Conv1d conv = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear linear = nullptr;
};

// As attach_layerwise_casting_hooks() should leave it, without any hook.
void round_weights(torch::nn::Module& module, at::ScalarType storage, at::ScalarType compute) {
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : module.parameters())
    parameter.set_data(parameter.to(storage).to(compute));
}

TEST(LayerwiseCasting, ComputesWithTheStoredValues) {
  for (const at::ScalarType storage : {at::kFloat8_e4m3fn, at::kFloat8_e5m2, at::kBFloat16}) {
    torch::manual_seed(3);
    Block cast;
    torch::manual_seed(3);
    Block expected;
    const torch::Tensor input = torch::rand({2, 4, 8});
    round_weights(*expected.conv, storage, at::kFloat);
    round_weights(*expected.linear, storage, at::kFloat);

    attach_layerwise_casting_hooks(cast, storage, at::kFloat);

    for (int forward = 0; forward < 2; ++forward)
      EXPECT_TRUE(torch::equal(cast.forward(input), expected.forward(input))) << storage;
    EXPECT_EQ(cast.linear->weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(torch::equal(cast.linear->bias, expected.linear->bias));
  }
}

TEST(LayerwiseCasting, SkipsWhatPatternsAndClassesName) {
  Block block;
  const torch::Tensor conv = block.conv->weight.clone();
  const torch::Tensor linear = block.linear->weight.clone();
  const torch::Tensor norm = block.norm->weight.clone();

  attach_layerwise_casting_hooks(
      block, at::kFloat8_e4m3fn, at::kFloat, {.skip_modules_pattern = {"^con"}});

  EXPECT_TRUE(torch::equal(block.conv->weight, conv));
  EXPECT_TRUE(torch::equal(block.norm->weight, norm));
  EXPECT_FALSE(torch::equal(block.linear->weight, linear));
  attach_layerwise_casting_hooks(
      block, at::kFloat8_e4m3fn, at::kFloat, {.skip_modules_classes = {"Conv1d", "Linear"}});
  EXPECT_TRUE(torch::equal(block.conv->weight, conv));
}

// Bytes of private memory that the process may not give back to a file.
std::size_t private_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  long size = 0;
  long resident = 0;
  long shared = 0;
  const int read = std::fscanf(file, "%ld %ld %ld", &size, &resident, &shared);
  std::fclose(file);
  return read == 3 ? static_cast<std::size_t>(resident - shared) * 4096 : 0;
}

TEST(LayerwiseCasting, MemoryFalls) {
  constexpr std::int64_t kSide = 2048;
  constexpr std::size_t kWeight = kSide * kSide * 4;  // 16 MiB
  torch::nn::Sequential model;
  for (int i = 0; i < 12; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kSide, kSide).bias(false)));
  const std::size_t before = private_bytes();

  attach_layerwise_casting_hooks(*model, at::kFloat8_e4m3fn, at::kFloat);
  (void)model->forward(torch::ones({1, kSide}));

  // A quarter of twelve weights, and two of them cast up: five of twelve; the rest for the libraries' own.
  EXPECT_LT(private_bytes(), before - 6 * kWeight);
}

TEST(LayerwiseCasting, WhatCannotBeCastIsNamed) {
  Block block;
  EXPECT_THAT(test::error_of([&] {
                attach_layerwise_casting_hooks(block, at::kChar, at::kFloat);
              }).message(),
              HasSubstr("storage_dtype is Char"));
  EXPECT_THAT(test::error_of([&] {
                attach_layerwise_casting_hooks(
                    block, at::kBFloat16, at::kFloat, {.skip_modules_pattern = {"("}});
              }).message(),
              HasSubstr("no regular expression"));
  attach_layerwise_casting_hooks(block, at::kBFloat16, at::kFloat);
  const Error error =
      test::error_of([&] { attach_layerwise_casting_hooks(block, at::kBFloat16, at::kFloat); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("'conv.weight' cannot be paged: it is paged already"));
}

}  // namespace
}  // namespace accel::layerwise_casting_test
