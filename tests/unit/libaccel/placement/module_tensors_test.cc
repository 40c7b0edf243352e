#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/big_model.h>
#include <accel/device_map.h>
#include <accel/error.h>
#include <accel/module_tensors.h>
#include <accel/non_persistent_buffers.h>
#include <accel/offload.h>

#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"

namespace accel::module_tensors_test {
namespace {

using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layer whose weight has two names, a saved buffer and one that is not saved.
struct Rotary : torch::nn::Cloneable<Rotary>, NonPersistentBuffers {
  Rotary() { reset(); }
  void reset() override {
    inner = register_module("inner", torch::nn::Linear(3, 2));
    weight = register_parameter("weight", inner->weight);
    scale = register_buffer("scale", torch::ones({2}));
    angles = register_buffer("angles", torch::arange(2));
  }
  bool is_persistent_buffer(const std::string& name) const override { return name != "angles"; }
  torch::nn::Linear inner = nullptr;
  torch::Tensor weight;
  torch::Tensor scale;
  torch::Tensor angles;
};

std::vector<std::string> names(const torch::nn::Module& module,
                               const ModuleTensorsOptions& options = {}) {
  std::vector<std::string> all;
  for (const auto& [name, tensor] : named_module_tensors(module, options)) all.push_back(name);
  return all;
}

torch::nn::Linear empty_linear() {
  const auto scope = init_empty_weights();
  return torch::nn::Linear(3, 2);
}

TEST(ModuleTensors, AreListedAsAccelerateDoes) {
  const Rotary model;
  EXPECT_THAT(names(model), ElementsAre("weight", "scale", "angles"));
  EXPECT_THAT(names(model, {.include_buffers = false, .recurse = true}),
              ElementsAre("weight", "inner.bias"));
  EXPECT_THAT(names(model, {.recurse = true, .remove_non_persistent = true}),
              ElementsAre("weight", "inner.bias", "scale"));
}

TEST(ModuleTensors, AnEmptyWeightGetsItsValueAndStaysTheSameTensor) {
  torch::nn::Linear model = empty_linear();
  const torch::Tensor field = model->weight;
  const torch::Tensor value = torch::rand({2, 3}, at::kDouble);

  set_module_tensor_to_device(*model, "weight", at::kCPU, {.value = value});

  EXPECT_TRUE(model->weight.is_same(field));
  EXPECT_TRUE(torch::equal(model->weight, value.to(at::kFloat)));
  EXPECT_TRUE(model->weight.requires_grad());
  set_module_tensor_to_device(*model, "weight", at::kCPU, {.value = value, .dtype = at::kBFloat16});
  EXPECT_TRUE(torch::equal(model->weight, value.to(at::kBFloat16)));
}

TEST(ModuleTensors, MemoryGoesToMetaAndAWeightOnDiskComesBack) {
  const ScratchFolder folder;
  torch::nn::Linear model(3, 2);
  const torch::Tensor before = model->weight.clone();
  disk_offload(*model, folder.file("weights"));
  ASSERT_TRUE(has_offloaded_params(*model));

  set_module_tensor_to_device(*model, "weight", at::kCPU);
  set_module_tensor_to_device(*model, "bias", at::kMeta, {.dtype = at::kHalf});

  EXPECT_FALSE(has_offloaded_params(*model));
  EXPECT_TRUE(torch::equal(model->weight, before));
  EXPECT_TRUE(model->bias.is_meta());
  EXPECT_EQ(model->bias.scalar_type(), at::kHalf);
}

TEST(ModuleTensors, WhatCannotBeSetIsRefusedInAcceleratesWords) {
  torch::nn::Sequential model(empty_linear());
  const auto message = [&](const std::string& name,
                           at::Device device = at::kCPU,
                           const SetTensorOptions& options = {}) {
    return test::error_of([&] { set_module_tensor_to_device(*model, name, device, options); })
        .message();
  };
  EXPECT_EQ(message("0.weight"),
            "weight is on the meta device, we need a `value` to put in on cpu.");
  EXPECT_EQ(message("0.weight", at::kCPU, {.value = torch::ones({4})}),
            "Trying to set a tensor of shape torch.Size([4]) in \"weight\" (which has shape "
            "torch.Size([2, 3])), this looks incorrect.");
  EXPECT_THAT(message("0.wait"), HasSubstr("does not have a parameter or a buffer named wait."));
  EXPECT_THAT(message("1.weight"), HasSubstr("has no attribute 1."));
  EXPECT_THAT(message("0.weight", at::kCUDA), HasSubstr("was to go to cuda"));
  EXPECT_THAT(
      message("0.weight", at::kCPU, {.value = torch::ones({2, 3}, at::kLong), .dtype = at::kFloat}),
      HasSubstr("requires a gradient"));
  EXPECT_TRUE(model[0]->as<torch::nn::Linear>()->weight.is_meta());
}

TEST(ModuleTensors, DevicesAreTheSameWhereOneHasNoNumber) {
  EXPECT_TRUE(check_device_same(at::Device("cuda"), at::Device("cuda:0")));
  EXPECT_FALSE(check_device_same(at::Device("cuda"), at::Device("cuda:1")));
  EXPECT_FALSE(check_device_same(at::kCPU, at::kMeta));
  EXPECT_TRUE(check_device_same(at::kCPU, at::kCPU));
}

TEST(ModuleTensors, TiesThatACopyBrokeShareMemoryAgain) {
  struct Two : torch::nn::Module {
    Two() {
      first = register_module("first", torch::nn::Linear(3, 2));
      second = register_module("second", torch::nn::Linear(3, 2));
      third = register_module("third", torch::nn::Linear(4, 2));
    }
    torch::nn::Linear first = nullptr;
    torch::nn::Linear second = nullptr;
    torch::nn::Linear third = nullptr;
  } model;
  set_module_tensor_to_device(model, "first.weight", at::kMeta);

  retie_parameters(model, {{"first.weight", "second.weight"}});

  EXPECT_TRUE(model.first->weight.is_alias_of(model.second->weight));
  EXPECT_TRUE(torch::equal(model.first->weight, model.second->weight));
  const torch::Tensor bias = model.first->bias.clone();
  EXPECT_THAT(
      test::error_of([&] {
        retie_parameters(model, {{"second.bias", "first.bias"}, {"second.weight", "third.weight"}});
      }).message(),
      HasSubstr("Trying to set a tensor of shape torch.Size([2, 3])"));
  EXPECT_FALSE(model.first->bias.is_alias_of(model.second->bias));
  EXPECT_TRUE(torch::equal(model.first->bias, bias));
}

TEST(ModuleTensors, AlignedWeightsOfDiskMayBeWrittenAndAreBackAfterwards) {
  const ScratchFolder folder;
  torch::nn::Sequential model(torch::nn::Linear(3, 2), torch::nn::Linear(2, 2));
  torch::nn::Linear first(model->ptr<torch::nn::LinearImpl>(0));
  const torch::Tensor before = first->weight.clone();
  disk_offload(*model, folder.file("weights"));
  {
    const auto aligned = align_module_device(*first, at::kCPU);
    EXPECT_FALSE(has_offloaded_params(*first));
    EXPECT_TRUE(has_offloaded_params(*model));  // the other layer
    EXPECT_EQ(*first->weight.data_ptr<float>(), *before.data_ptr<float>());
    first->weight.zero_();
  }
  EXPECT_TRUE(has_offloaded_params(*first));
  EXPECT_TRUE(torch::equal(first->weight, before));
  EXPECT_THAT(
      test::error_of([&] { (void)align_module_device(*first, at::Device(at::kCUDA)); }).message(),
      HasSubstr("asked for cuda"));
}

}  // namespace
}  // namespace accel::module_tensors_test
