#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/offload.h>

#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"

namespace accel::cpu_offload_test {
namespace {

using test::ScratchFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

torch::nn::Sequential layers() {
  return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
}

torch::nn::Sequential empty_layers() {
  const auto scope = init_empty_weights({.include_buffers = true});
  return layers();
}

Tensors state_of(const torch::nn::Module& model) {
  Tensors state;
  for (const auto& item : model.named_parameters()) state[item.key()] = item.value().detach();
  for (const auto& item : model.named_buffers()) state[item.key()] = item.value();
  return state;
}

std::vector<std::string> names_of(const Tensors& tensors) {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  return names;
}

TEST(CpuOffload, BringsWeightsOfDiskToMemoryAndSaysOnceThatNothingMoves) {
  const ScratchFolder folder;
  auto model = layers();
  const torch::Tensor input = torch::rand({5, 3});
  model->eval();
  const torch::Tensor expected = model->forward(input);
  disk_offload(*model, folder.file("weights"), /*offload_buffers=*/true);
  ::testing::internal::CaptureStderr();

  cpu_offload(*model);
  cpu_offload(*model);

  EXPECT_FALSE(has_offloaded_params(*model));
  EXPECT_TRUE(torch::equal(model->forward(input), expected));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_LE(said.size(), 200u) << "said twice: " << said;
}

TEST(CpuOffload, AnEmptyModelComputesWithTheStateDictItself) {
  auto whole = layers();
  const Tensors state = state_of(*whole);
  auto model = empty_layers();

  cpu_offload(*model, {.offload_buffers = true, .state_dict = state});

  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(item.value().is_alias_of(state.at(item.key()))) << item.key();
    EXPECT_TRUE(item.value().requires_grad());
  }
  const torch::Tensor input = torch::rand({5, 3});
  EXPECT_TRUE(torch::equal(model->forward(input), whole->forward(input)));
}

TEST(CpuOffload, WhatHasNoValuesIsNamedAndNothingIsChanged) {
  auto model = empty_layers();
  const auto message = [&](const CpuOffloadOptions& options) {
    return test::error_of([&] { cpu_offload(*model, options); }).message();
  };
  EXPECT_THAT(message({}), HasSubstr("'0.weight'"));
  Tensors state = state_of(*layers());
  EXPECT_THAT(message({.state_dict = state}), HasSubstr("'1.running_mean'"));
  state.erase("1.bias");
  EXPECT_THAT(message({.state_dict = state}), HasSubstr("state_dict lacks '1.bias'"));
  state["1.bias"] = torch::ones({7});
  EXPECT_THAT(message({.state_dict = state}), HasSubstr("'1.bias' is of shape [7]"));
  EXPECT_THAT(message({.execution_device = at::Device(at::kCUDA)}),
              HasSubstr("execution_device is cuda"));
  for (const torch::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
}

TEST(CpuOffload, HooksLeaveModelsInHostMemory) {
  auto first = layers();
  auto second = layers();
  const void* const weight = first->parameters()[0].const_data_ptr();
  auto first_hook = cpu_offload_with_hook(*first);
  auto second_hook = cpu_offload_with_hook(*second, at::Device(at::kCPU), &first_hook);

  (void)second->forward(first->forward(torch::rand({5, 3})).narrow(1, 0, 3));
  first_hook.offload();
  second_hook.remove();
  second_hook.offload();

  EXPECT_EQ(first->parameters()[0].const_data_ptr(), weight);
  EXPECT_THAT(test::error_of([] { (void)cpu_offload_with_hook(*empty_layers()); }).message(),
              HasSubstr("Cannot copy out of meta tensor; no data!"));
}

TEST(CpuOffload, AHookRefusesAModelOnDiskInAcceleratesWords) {
  const ScratchFolder folder;
  auto model = layers();
  auto hook = cpu_offload_with_hook(*model);
  disk_offload(*model, folder.file("weights"));
  const std::string words =
      "You can't move a model that has some modules offloaded to cpu or disk.";
  EXPECT_EQ(test::error_of([&] { (void)cpu_offload_with_hook(*model); }).message(), words);
  EXPECT_EQ(test::error_of([&] { hook.offload(); }).message(), words);
}

TEST(CpuOffload, TheStateOfAnOffloadedModelIsWholeAndInMemory) {
  const ScratchFolder folder;
  auto model = layers();
  const Tensors before = [&] {
    Tensors state;
    for (const auto& [name, tensor] : state_of(*model)) state[name] = tensor.clone();
    return state;
  }();
  dispatch_model(*model, {{"0", "disk"}, {"1", "cpu"}}, {.offload_dir = folder.file("weights")});

  Tensors state = get_state_dict_offloaded_model(*model);

  EXPECT_EQ(names_of(state), names_of(before));
  for (const auto& [name, tensor] : before) EXPECT_TRUE(torch::equal(state.at(name), tensor));
  state.at("0.weight").zero_();  // a copy: the file stays
  EXPECT_TRUE(torch::equal(model[0]->as<torch::nn::Linear>()->weight, before.at("0.weight")));
  EXPECT_TRUE(get_state_dict_offloaded_model(*empty_layers()).empty());
}

TEST(CpuOffload, TheStateOfAModuleIsPutIntoThatOfItsModel) {
  const ScratchFolder folder;
  torch::nn::Linear module(3, 4);
  const torch::Tensor weight = module->weight.detach().clone();
  disk_offload(*module, folder.file("weights"));

  const Tensors state = get_state_dict_from_offload(
      *module, "net.first.weight", {{"net.first.weight", {}}, {"net.other.bias", {}}});

  EXPECT_TRUE(torch::equal(state.at("net.first.weight"), weight));
  EXPECT_FALSE(state.at("net.other.bias").defined());
  EXPECT_EQ(state.size(), 2u);
}

TEST(CpuOffload, PartsOfAStateAreFoundByTheNamesOfModules) {
  const torch::Tensor tensor = torch::ones({1});
  const Tensors state = {{"h.1.weight", tensor}, {"h.10.weight", tensor}, {"scale", tensor}};
  EXPECT_THAT(names_of(extract_submodules_state_dict(state, {"h.1", "scale"})),
              ElementsAre("h.1.weight", "scale"));

  const PrefixedDataset part(OffloadedWeightsLoader(state), "h.1.");
  EXPECT_THAT(part.keys(), ElementsAre("h.1.weight"));
  EXPECT_TRUE(part.at("weight").is_same(tensor));
  EXPECT_THAT(test::error_of([&] { (void)part.at("bias"); }).message(), HasSubstr("'h.1.bias'"));
}

}  // namespace
}  // namespace accel::cpu_offload_test
