// What the optimizer and the scheduler of DeepSpeed's file come to, and several plugins. What else a file says:
// deepspeed_file_test.cc.

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/lion.h>
#include <accel/muon.h>
#include <accel/schedulers.h>

#include "tests/support/rank_group.h"

namespace accel::deepspeed_objects_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;

struct Ones {
  [[nodiscard]] at::Tensor get(std::size_t /*index*/) const { return at::ones({4}); }
  [[nodiscard]] std::size_t size() const { return 64; }
};

AcceleratorOptions with_file(const json& sections, int stage = 2) {
  json file = {{"zero_optimization", {{"stage", stage}}}};
  file.update(sections);
  AcceleratorOptions options;
  options.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = file.dump()};
  return options;
}

json optimizer_of(const char* type, const json& params) {
  return {{"optimizer", {{"type", type}, {"params", params}}}};
}

void expect_refused(ErrorCode code, const char* message, const std::function<void()>& call) {
  try {
    call();
    ADD_FAILURE() << "nothing was refused; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

template <typename Optimizer>
const Optimizer* made(const json& section,
                      torch::nn::Linear& net,
                      AcceleratedOptimizer* kept = nullptr) {
  static std::vector<AcceleratedOptimizer> alive;
  Accelerator accelerator(with_file(section));
  auto prepared =
      accelerator.prepare(DummyOptim{.params = net->parameters(), .lr = 0.25, .weight_decay = 0.5});
  alive.push_back(prepared);
  if (kept != nullptr) *kept = prepared;
  return dynamic_cast<const Optimizer*>(&prepared.optimizer());
}

TEST(DeepSpeedObjects, TheOptimizerIsThatOfTheFileWithWhatTheStandInSaysForAuto) {
  torch::nn::Linear net(torch::nn::LinearOptions(4, 2).bias(false));
  const json automatic = {{"lr", "auto"}, {"weight_decay", "auto"}};
  const auto* const adamw = made<torch::optim::AdamW>(
      optimizer_of("Adam",
                   {{"lr", "auto"}, {"weight_decay", 0.1}, {"betas", {0.8, 0.9}}, {"eps", 1e-6}}),
      net);
  ASSERT_NE(adamw, nullptr);
  const auto& options =
      static_cast<const torch::optim::AdamWOptions&>(adamw->param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.25);
  EXPECT_EQ(options.weight_decay(), 0.1);
  EXPECT_EQ(options.betas(), std::make_tuple(0.8, 0.9));
  EXPECT_EQ(options.eps(), 1e-6);
  EXPECT_NE(made<torch::optim::Adam>(optimizer_of("Adam", {{"adam_w_mode", false}}), net), nullptr);
  EXPECT_NE(made<torch::optim::AdamW>(optimizer_of("AdamW", automatic), net), nullptr);
  EXPECT_NE(made<Lion>(optimizer_of("Lion", automatic), net), nullptr);
  EXPECT_NE(made<Muon>(optimizer_of("Muon", {{"momentum", 0.9}}), net), nullptr);
  const auto* const sgd =
      made<torch::optim::SGD>(optimizer_of("SGD", {{"lr", 0.125}, {"momentum", 0.9}}), net);
  ASSERT_NE(sgd, nullptr);
  EXPECT_EQ(sgd->param_groups()[0].options().get_lr(), 0.125);
}

TEST(DeepSpeedObjects, WhatTheFileCannotSayIsRefusedByItsKey) {
  const auto read = [](const json& section) { Accelerator{with_file(section)}; };
  expect_refused(ErrorCode::kConfigInvalidValue,
                 "`optimizer.params.betas` not found in kwargs. Please specify",
                 [&] {
                   read(optimizer_of("AdamW", {{"betas", "auto"}}));
                 });
  expect_refused(ErrorCode::kUnsupported, "optimizer.type is OneBitAdam", [&] {
    read(optimizer_of("OneBitAdam", json::object()));
  });
  expect_refused(ErrorCode::kUnsupported, "optimizer.params.freeze_step is not part", [&] {
    read(optimizer_of("AdamW", {{"freeze_step", 3}}));
  });
  expect_refused(ErrorCode::kConfigInvalidValue, "optimizer.params.lr is \"much\"", [&] {
    read(optimizer_of("AdamW", {{"lr", "much"}}));
  });
  expect_refused(ErrorCode::kUnsupported, "scheduler.type is OneCycle", [&] {
    read({{"scheduler", {{"type", "OneCycle"}}}});
  });
}

TEST(DeepSpeedObjects, TheProgramAndTheFileDoNotBothSayIt) {
  torch::nn::Linear net(4, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  const DummyOptim dummy{.params = net->parameters()};
  const json scheduler = {{"scheduler", {{"type", "WarmupLR"}}}};
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  expect_refused(
      kInvalid,
      "You cannot specify an optimizer in the config file and in the code at the same time",
      [&] { Accelerator(with_file(optimizer_of("AdamW", json::object()))).prepare(sgd); });
  expect_refused(
      kInvalid,
      "You cannot create a `DummyOptim` without specifying an optimizer in the config file",
      [&] { Accelerator(with_file(json::object())).prepare(dummy); });
  expect_refused(
      kInvalid, "You cannot create a `DummyOptim`", [&] { Accelerator().prepare(dummy); });
  expect_refused(
      kInvalid,
      "You cannot specify a scheduler in the config file and in the code at the same time",
      [&] { Accelerator(with_file(scheduler)).prepare(sgd, StepLR(sgd, 1)); });
  expect_refused(kInvalid, "Either specify a scheduler in the config file or pass in the", [&] {
    Accelerator(with_file(json::object())).prepare(sgd, DummyScheduler{});
  });
  expect_refused(kInvalid, "You can only specify `accel::DummyScheduler` in the code", [&] {
    Accelerator(with_file(optimizer_of("AdamW", json::object()))).prepare(dummy, StepLR(sgd, 1));
  });
  expect_refused(kInvalid, "was prepared before its optimizer", [&] {
    Accelerator(with_file(scheduler)).prepare(DummyScheduler{});
  });
}

// Rates of the optimizer's steps.
std::vector<double> rates(const json& params, const DummyScheduler& dummy, int steps) {
  json sections = optimizer_of("SGD", {{"lr", "auto"}});
  sections["scheduler"] = {{"type", "WarmupDecayLR"}, {"params", params}};
  Accelerator accelerator(with_file(sections));
  torch::nn::Linear net(4, 2);
  auto [model, optimizer, scheduler] =
      accelerator.prepare(net, DummyOptim{.params = net->parameters(), .lr = 0.5}, dummy);
  std::vector<double> rates;
  for (int step = 0; step < steps; ++step) {
    accelerator.backward(model(at::ones({1, 4})).sum());
    optimizer.step();
    scheduler.step();
    optimizer.zero_grad();
    rates.push_back(optimizer->param_groups()[0].options().get_lr());
  }
  return rates;
}

TEST(DeepSpeedObjects, TheScheduleIsTheFilesAndStepsOnceForEachStepOfTheOptimizer) {
  const json automatic = {{"warmup_min_lr", "auto"},
                          {"warmup_max_lr", "auto"},
                          {"warmup_num_steps", "auto"},
                          {"total_num_steps", "auto"},
                          {"warmup_type", "linear"}};
  const auto expect = [&](std::int64_t total) {
    EXPECT_THAT(rates(automatic, {.total_num_steps = total, .warmup_num_steps = 2}, 6),
                ElementsAre(0, 0.25, 0.5, 0.25, 0, 0));
  };
  test::run_ranks(1, [&] { expect(4); });
  // The number is that of one process; two read twice as much in a step.
  test::run_ranks(2, [&] { expect(8); });
}

TEST(DeepSpeedObjects, AScheduleWithoutItsLengthIsRefusedByTheKey) {
  expect_refused(
      ErrorCode::kConfigInvalidValue, "`scheduler.params.total_num_steps` not found in kwargs", [] {
        rates({{"total_num_steps", "auto"}}, {}, 1);
      });
}

TEST(DeepSpeedObjects, ACallableMakesTheScheduleWithoutASection) {
  Accelerator accelerator(with_file(optimizer_of("SGD", {{"lr", 1.0}})));
  torch::nn::Linear net(4, 2);
  auto [optimizer, scheduler] = accelerator.prepare(
      DummyOptim{.params = net->parameters()},
      DummyScheduler{.lr_scheduler_callable = [](torch::optim::Optimizer& made) {
        return std::make_shared<StepLR>(made, 1, 0.5);
      }});
  net->weight.mutable_grad() = at::ones({2, 4});
  optimizer.step();
  scheduler.step();
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
}

TEST(DeepSpeedObjects, AutoIsFilledByWhatWasPrepared) {
  test::run_ranks(2, [] {
    const json file = {{"train_batch_size", "auto"},
                       {"train_micro_batch_size_per_gpu", "auto"},
                       {"gradient_accumulation_steps", 3},
                       {"zero_optimization",
                        {{"stage", 2},
                         {"reduce_bucket_size", "auto"},
                         {"stage3_prefetch_bucket_size", "auto"},
                         {"stage3_param_persistence_threshold", "auto"}}}};
    for (const bool takes_least : {true, false}) {
      AcceleratorOptions options = with_file(file);
      options.deepspeed_plugin->hidden_size = 32;
      options.deepspeed_plugin->is_train_batch_min = takes_least;
      Accelerator accelerator(options);
      accelerator.prepare(DataLoader(Ones{}, {.batch_size = 4}),
                          DataLoader(Ones{}, {.batch_size = 8}));
      const json config = json::parse(accelerator.deepspeed_config());
      const int micro = takes_least ? 4 : 8;
      EXPECT_EQ(config.at("train_micro_batch_size_per_gpu"), micro);
      EXPECT_EQ(config.at("train_batch_size"), micro * 3 * 2);
      const json& zero = config.at("zero_optimization");
      EXPECT_EQ(zero.at("reduce_bucket_size"), 1024);
      EXPECT_EQ(zero.at("stage3_prefetch_bucket_size"), 921);
      EXPECT_EQ(zero.at("stage3_param_persistence_threshold"), 320);
    }
  });
}

TEST(DeepSpeedObjects, BatchSizesThatDoNotFitAreRefused) {
  const json both = {{"train_batch_size", 64}, {"train_micro_batch_size_per_gpu", 8}};
  expect_refused(ErrorCode::kInvalidArgument, "world_size 64 != 8 * 1 * 1", [&] {
    Accelerator{with_file(both)};
  });
  Accelerator accelerator(
      with_file({{"train_batch_size", 64}, {"train_micro_batch_size_per_gpu", "auto"}}));
  accelerator.prepare(DataLoader(Ones{}, {.batch_size = 4}));
  expect_refused(ErrorCode::kInvalidArgument, "world_size 64 != 4 * 1 * 1", [&] {
    std::ignore = accelerator.deepspeed_config();
  });
}

std::string printed(const AcceleratorOptions& options) {
  AcceleratorState::reset();
  Accelerator accelerator(options);
  std::ostringstream text;
  text << accelerator.state();
  return text.str();
}

// Texts: deepspeed_config of HF Accelerate 1.15's plugin, after set_mixed_precision().
TEST(DeepSpeedObjects, TheStateIsPrintedWithTheConfiguration) {
  AcceleratorOptions of_file{.mixed_precision = "bf16"};
  of_file.deepspeed_plugin = DeepSpeedPlugin{
      .hf_ds_config =
          R"({"zero_optimization": {"stage": 2, "offload_param": {"device": null}}, "bf16": {"enabled": "auto"},)"
          R"( "train_batch_size": "auto", "gradient_clipping": 0.5})"};
  EXPECT_THAT(
      printed(of_file),
      EndsWith("Mixed precision type: bf16\nds_config: {'zero_optimization': {'stage': 2, "
               "'offload_param': {'device': None}}, 'bf16': {'enabled': True}, 'train_batch_size': "
               "'auto', 'gradient_clipping': 0.5, 'gradient_accumulation_steps': 1, "
               "'steps_per_print': inf, 'fp16': {'enabled': False}}\n"));
  AcceleratorOptions of_plugin;
  of_plugin.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1, .offload_optimizer_device = "cpu"};
  EXPECT_THAT(printed(of_plugin),
              EndsWith("Mixed precision type: no\nds_config: {'train_batch_size': 'auto', "
                       "'train_micro_batch_size_per_gpu': 'auto', 'gradient_accumulation_steps': "
                       "'auto', 'zero_optimization': {'stage': 1, 'offload_optimizer': {'device': "
                       "'cpu', 'nvme_path': None}, 'offload_param': {'device': 'none', "
                       "'nvme_path': None}, 'stage3_gather_16bit_weights_on_model_save': False}, "
                       "'gradient_clipping': 'auto', 'steps_per_print': inf, 'fp16': {'enabled': "
                       "False}, 'bf16': {'enabled': False}}\n"));
  AcceleratorState::reset();
}

TEST(DeepSpeedObjects, OfSeveralPluginsTheSelectedOneDividesWhatIsPreparedNext) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.deepspeed_plugins = {{"student", DeepSpeedPlugin{.zero_stage = 1}},
                                 {"teacher", DeepSpeedPlugin{.zero_stage = 3}}};
    Accelerator accelerator(options);
    EXPECT_EQ(accelerator.deepspeed_plugin().zero_stage, 1);
    // Whether gradients are whole behind a backward: those of a model whose parameters are divided cannot be read.
    const auto has_whole_gradients = [&accelerator] {
      torch::nn::Linear net(4, 2);
      auto [model, optimizer] = accelerator.prepare(
          net,
          std::make_shared<torch::optim::SGD>(net->parameters(), torch::optim::SGDOptions(0.1)));
      accelerator.backward(model(at::ones({1, 4})).sum());
      try {
        return net->weight.grad().sum().item<double>() == 8;
      } catch (const std::exception&) {
        return false;
      }
    };
    EXPECT_TRUE(has_whole_gradients());
    accelerator.select_deepspeed_plugin("teacher");
    EXPECT_EQ(accelerator.deepspeed_plugin().zero_stage, 3);
    EXPECT_EQ(accelerator.get_deepspeed_plugin("student").zero_stage, 1);
    EXPECT_FALSE(has_whole_gradients());
    expect_refused(ErrorCode::kInvalidArgument, "there is no DeepSpeed plugin 'other'", [&] {
      accelerator.select_deepspeed_plugin("other");
    });
  });
}

TEST(DeepSpeedObjects, PluginsThatCannotBeToldApartOrMixedAreRefused) {
  AcceleratorOptions twice;
  twice.deepspeed_plugins = {{"one", {}}, {"one", {}}};
  expect_refused(ErrorCode::kInvalidArgument, "deepspeed_plugins has 'one' twice", [&] {
    Accelerator{twice};
  });
  AcceleratorOptions mixed;
  mixed.deepspeed_plugins = {{"copies", DeepSpeedPlugin{.zero_stage = 0}},
                             {"shards", DeepSpeedPlugin{.zero_stage = 3}}};
  Accelerator accelerator(mixed);
  expect_refused(ErrorCode::kUnsupported, "another kind of stage", [&] {
    accelerator.select_deepspeed_plugin("shards");
  });
  expect_refused(ErrorCode::kInvalidArgument,
                 "None of the registered DeepSpeed plugins are active",
                 [] { std::ignore = Accelerator().deepspeed_plugin(); });
}

}  // namespace
}  // namespace accel::deepspeed_objects_test
