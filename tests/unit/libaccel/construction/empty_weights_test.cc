// Modules of LibTorch and of users, built without memory for their parameters. A new version of LibTorch is tried against
// this file.

#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include <accel/big_model.h>
#include <accel/error.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "tests/support/error_of.h"
#include "tests/support/peak_memory.h"

namespace accel::empty_weights_test {
namespace {

using ::testing::HasSubstr;
using Module = std::shared_ptr<torch::nn::Module>;
using Make = std::function<Module()>;

constexpr std::int64_t kMiB = 1 << 20;

Module empty(const Make& make, const InitEmptyWeightsOptions& options = {}) {
  const auto scope = init_empty_weights(options);
  return make();
}

// ---- LibTorch's own modules

class OfLibTorch : public ::testing::TestWithParam<std::pair<const char*, Make>> {};

TEST_P(OfLibTorch, HasParametersWithoutMemoryAndBuffersWithTheirValues) {
  const Module plain = GetParam().second();

  const Module made = empty(GetParam().second);

  const auto expected = plain->named_parameters();
  const auto found = made->named_parameters();
  ASSERT_EQ(found.keys(), expected.keys());
  for (const auto& item : expected) {
    const at::Tensor& parameter = found[item.key()];
    EXPECT_TRUE(parameter.is_meta()) << item.key();
    EXPECT_TRUE(parameter.requires_grad()) << item.key();
    EXPECT_EQ(parameter.sizes(), item.value().sizes()) << item.key();
    EXPECT_EQ(parameter.strides(), item.value().strides()) << item.key();
    EXPECT_EQ(parameter.scalar_type(), item.value().scalar_type()) << item.key();
  }
  for (const auto& item : plain->named_buffers())
    EXPECT_TRUE(made->named_buffers()[item.key()].equal(item.value())) << item.key();
}

TEST_P(OfLibTorch, CanBeGivenMemoryAndIsTheSameObjectThen) {
  const Module plain = GetParam().second();
  const Module made = empty(GetParam().second);
  const std::vector<at::Tensor> held = made->parameters();

  for (const at::Tensor& parameter : held)
    construction::give_memory(parameter, construction::memory_like(parameter));

  const at::NoGradGuard no_grad;
  const auto values = plain->named_parameters();
  for (auto& item : made->named_parameters()) item.value().copy_(values[item.key()]);
  for (std::size_t i = 0; i < held.size(); ++i)
    EXPECT_TRUE(held[i].equal(plain->parameters()[i])) << i;
}

INSTANTIATE_TEST_SUITE_P(
    EmptyWeights,
    OfLibTorch,
    ::testing::Values(
        std::pair{"Linear", Make([] { return torch::nn::Linear(7, 5).ptr(); })},
        std::pair{
            "Embedding", Make([] {
              return torch::nn::Embedding(torch::nn::EmbeddingOptions(9, 4).padding_idx(2)).ptr();
            })},
        std::pair{"LSTM", Make([] {
                    return torch::nn::LSTM(torch::nn::LSTMOptions(3, 4).num_layers(2)).ptr();
                  })},
        std::pair{"BatchNorm", Make([] { return torch::nn::BatchNorm2d(6).ptr(); })},
        std::pair{"Transformer", Make([] {
                    return torch::nn::TransformerEncoderLayer(
                               torch::nn::TransformerEncoderLayerOptions(8, 2))
                        .ptr();
                  })}),
    [](const auto& info) { return std::string(info.param.first); });

// ---- modules of users

// What constructors do with tensors besides registering them.
struct UsersImpl : torch::nn::Module {
  at::Tensor weight, scaled, tied, from_list;
  at::Tensor mask, frequencies;  // of its own, not registered
  std::vector<double> rates;

  explicit UsersImpl(const at::Tensor& given) {
    weight = register_parameter("weight", torch::randn({64, 32}));
    scaled = register_parameter("scaled", torch::randn({32, 64}).mul(0.02).t().contiguous());
    tied = register_parameter("tied", weight);
    from_list = register_parameter("from_list", torch::tensor({1.0F, 2.0F, 3.0F}));
    register_buffer("positions", torch::arange(5).expand({1, -1}));
    register_buffer("shifted", torch::ones({3}) + given);
    register_buffer("scalar", torch::tensor(7, torch::kLong));
    mask = torch::ones({4, 4}).triu(1).to(torch::kBool);
    frequencies = torch::arange(0, 8, 2).to(torch::kFloat).div(8).exp();
    frequencies.index_put_({torch::arange(2)}, torch::zeros({2}));
    const at::Tensor rate = torch::linspace(0, 0.3, 4);
    for (int i = 0; i < 4; ++i) rates.push_back(rate[i].item<double>());
    const torch::NoGradGuard no_grad;
    weight.select(0, 3).zero_();
  }
};

Make users(const at::Tensor& given) {
  return [given] { return std::make_shared<UsersImpl>(given); };
}

TEST(EmptyWeights, UsersModulesKeepEverythingThatIsNoParameter) {
  const at::Tensor given = at::arange(3, at::kFloat);
  UsersImpl plain(given);

  const auto made = std::static_pointer_cast<UsersImpl>(empty(users(given)));

  for (const auto& item : made->named_parameters())
    EXPECT_TRUE(item.value().is_meta()) << item.key();
  EXPECT_TRUE(made->tied.is_same(made->weight));
  EXPECT_EQ(made->scaled.sizes(), (at::IntArrayRef{64, 32}));
  EXPECT_EQ(made->from_list.sizes(), (at::IntArrayRef{3}));
  for (const auto& item : plain.named_buffers())
    EXPECT_TRUE(made->named_buffers()[item.key()].equal(item.value())) << item.key();
  EXPECT_TRUE(made->mask.equal(plain.mask));
  EXPECT_TRUE(made->frequencies.equal(plain.frequencies));
  EXPECT_EQ(made->rates, plain.rates);
}

TEST(EmptyWeights, IncludeBuffersLeavesEverythingEmpty) {
  const auto made =
      empty([] { return torch::nn::BatchNorm1d(6).ptr(); }, {.include_buffers = true});

  for (const at::Tensor& buffer : made->buffers()) EXPECT_TRUE(buffer.is_meta());
}

TEST(EmptyWeights, BuffersThatShareMemoryShareItAfterwards) {
  std::vector<at::Tensor> tensors;
  {
    const auto scope = init_empty_weights();
    tensors.push_back(torch::zeros({4}));
    tensors.push_back(tensors[0].slice(0, 1, 3));
    tensors[1].add_(2);
  }
  EXPECT_TRUE(tensors[0].equal(at::tensor({0.0F, 2.0F, 2.0F, 0.0F})));
  tensors[0].fill_(5);
  EXPECT_TRUE(tensors[1].equal(at::tensor({5.0F, 5.0F})));
}

TEST(EmptyWeights, BuffersHaveWhatTheirSourcesHeldWhenTheyWereCopied) {
  std::vector<at::Tensor> buffers(2);
  {
    const auto scope = init_empty_weights();
    auto values = std::make_unique<std::vector<float>>(3, 1.5F);
    buffers[0] = torch::zeros({3});
    buffers[0].copy_(torch::from_blob(values->data(), {3}));
    std::fill(values->begin(), values->end(), -1.0F);
    values.reset();
    at::Tensor row = torch::tensor({1.0F, 2.0F});
    buffers[1] = torch::zeros({2, 2});
    buffers[1][0].copy_(row);
    row.mul_(10);
    buffers[1][1].copy_(row);
  }
  EXPECT_TRUE(buffers[0].equal(at::full({3}, 1.5F)));
  EXPECT_TRUE(buffers[1].equal(torch::tensor({{1.0F, 2.0F}, {10.0F, 20.0F}})));
}

// ---- the scope

TEST(EmptyWeights, ConcernsItsThreadAndItsScopeAlone) {
  bool is_meta_elsewhere = true;
  {
    const auto scope = init_empty_weights();
    std::thread([&] { is_meta_elsewhere = torch::zeros({2}).is_meta(); }).join();
    EXPECT_TRUE(torch::zeros({2}).is_meta());
  }
  EXPECT_FALSE(is_meta_elsewhere);
  EXPECT_FALSE(torch::zeros({2}).is_meta());
  EXPECT_FALSE(EmptyWeights().is_active());
  const EmptyWeights inactive;
  EXPECT_FALSE(torch::zeros({2}).is_meta());
}

TEST(EmptyWeights, ScopesMayBeNested) {
  Module inner, outer;
  {
    const auto scope = init_empty_weights();
    inner = empty([] { return torch::nn::BatchNorm1d(3).ptr(); });
    outer = torch::nn::BatchNorm1d(3).ptr();
    EXPECT_FALSE(inner->buffers()[0].is_meta());
    EXPECT_TRUE(outer->buffers()[0].is_meta());
  }
  EXPECT_FALSE(outer->buffers()[0].is_meta());
  for (const Module& module : {inner, outer})
    for (const at::Tensor& parameter : module->parameters()) EXPECT_TRUE(parameter.is_meta());
}

TEST(EmptyWeights, ThatAConstructorThrowsLeavesLibTorchAsItWas) {
  EXPECT_THROW(empty([]() -> Module { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_FALSE(torch::zeros({2}).is_meta());
}

TEST(EmptyWeights, TheAddressOfAnEmptyParameterThrowsAndSaysWhy) {
  const auto made = empty([] { return torch::nn::Linear(2, 2).ptr(); });
  try {
    made->parameters()[0].data_ptr<float>();
    FAIL() << "an address was given";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(), HasSubstr("init_empty_weights()"));
  }
}

TEST(EmptyWeights, TheAddressOfATensorInsideOfTheScopeThrows) {
  const auto scope = init_empty_weights();
  const at::Tensor tensor = torch::zeros({2});
  EXPECT_THROW(tensor.data_ptr<float>(), c10::Error);
}

// ---- memory

Module layers(int count) {
  auto module = std::make_shared<torch::nn::Module>();
  for (int i = 0; i < count; ++i)
    module->register_module("layer" + std::to_string(i), torch::nn::Linear(1024, 1024).ptr());
  return module;
}

// 16 layers of 4 MiB. What remembering 64 operators takes is far below one; but code that runs for the first time counts, and
// the kernel keeps the count by core, some MiB apart.
TEST(EmptyWeights, ThePeakOfMemoryDoesNotGrowByTheModel) {
  const test::PeakMemory plain_peak;
  const Module plain = layers(16);
  EXPECT_GT(plain_peak.growth_bytes(), 60 * kMiB) << "the measure does not see memory";

  const test::PeakMemory peak;
  const Module made = empty([] { return layers(16); });

  EXPECT_LT(peak.growth_bytes(), 16 * kMiB);
}

TEST(EmptyWeights, AModelLargerThanAnyMachineIsBuilt) {
  const auto made =
      empty([] { return torch::nn::Linear(std::int64_t{1} << 24, std::int64_t{1} << 24).ptr(); });

  EXPECT_EQ(made->parameters()[0].numel(), std::int64_t{1} << 48);
}

// Sets ACCELERATE_INIT_INCLUDE_BUFFERS for a test.
class IncludeBuffersVariable {
 public:
  explicit IncludeBuffersVariable(const char* value) { ::setenv(kName, value, 1); }
  ~IncludeBuffersVariable() { ::unsetenv(kName); }
  IncludeBuffersVariable(const IncludeBuffersVariable&) = delete;
  IncludeBuffersVariable& operator=(const IncludeBuffersVariable&) = delete;

 private:
  static constexpr const char* kName = "ACCELERATE_INIT_INCLUDE_BUFFERS";
};

TEST(EmptyWeights, TheVariableDecidesAboutBuffersWhereTheArgumentDoesNot) {
  const auto norm = [] { return torch::nn::BatchNorm1d(6).ptr(); };
  {
    const IncludeBuffersVariable on("yes");
    EXPECT_TRUE(empty(norm)->buffers()[0].is_meta());
    EXPECT_FALSE(empty(norm, {.include_buffers = false})->buffers()[0].is_meta());
  }
  {
    const IncludeBuffersVariable off("0");
    EXPECT_FALSE(empty(norm)->buffers()[0].is_meta());
  }
  const IncludeBuffersVariable wrong("maybe");
  EXPECT_EQ(test::error_of([] { (void)init_empty_weights(); }).code(), ErrorCode::kEnvInvalid);
}

TEST(EmptyWeights, ModulesAreMadeOnTheDeviceThatIsNamed) {
  const auto weight_on = [](at::Device device) {
    const auto scope = init_on_device(device);
    return torch::nn::Linear(3, 2)->weight;
  };
  EXPECT_TRUE(weight_on(at::kMeta).is_meta());
  EXPECT_TRUE(weight_on(at::kCPU).is_cpu());
  EXPECT_THAT(test::error_of([&] { (void)weight_on(at::kCUDA); }).message(),
              HasSubstr("init_on_device was asked for cuda"));
}

}  // namespace
}  // namespace accel::empty_weights_test
