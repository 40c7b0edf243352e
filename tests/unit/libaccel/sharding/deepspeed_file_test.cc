// Configuration files of DeepSpeed: what is taken, what has no effect, and what is refused by its key.

#include "libaccel/engine/settings/deepspeed_file.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::sharding::deepspeed_file_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

DeepSpeedFile parse_file(const std::string& text) {
  return parse_deepspeed_file(text, "ds.json");
}

Error error_of(const std::string& text) {
  return test::error_of([&] { std::ignore = parse_file(text); });
}

// As the documentation of Transformers and Accelerate has it for stage 3, without offload.
constexpr const char* kStage3 = R"({
  "fp16": {"enabled": "auto", "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16,
           "hysteresis": 2, "min_loss_scale": 1},
  "bf16": {"enabled": "auto"},
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": {"device": "none", "pin_memory": true},
    "offload_param": {"device": "none", "pin_memory": true},
    "overlap_comm": true,
    "contiguous_gradients": true,
    "sub_group_size": 1e9,
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
    "stage3_max_live_parameters": 1e9,
    "stage3_max_reuse_distance": 1e9,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "gradient_accumulation_steps": "auto",
  "gradient_clipping": "auto",
  "steps_per_print": 2000,
  "train_batch_size": "auto",
  "train_micro_batch_size_per_gpu": "auto",
  "wall_clock_breakdown": false
})";

TEST(DeepSpeedFile, OfStage3IsTakenWithAWordForWhatItDoesNotChange) {
  const DeepSpeedFile file = parse_file(kStage3);

  EXPECT_EQ(file.zero_stage, 3);
  EXPECT_EQ(file.offload_optimizer_device, "none");
  EXPECT_EQ(file.offload_param_device, "none");
  EXPECT_FALSE(file.gradient_accumulation_steps || file.gradient_clipping);
  EXPECT_TRUE(file.clips_automatically);
  EXPECT_FALSE(file.is_fp16 || file.is_bf16);
  EXPECT_THAT(file.notices,
              ElementsAre(AllOf(HasSubstr("ds.json: "),
                                HasSubstr("contiguous_gradients, overlap_comm"),
                                HasSubstr("stage3_max_reuse_distance"),
                                HasSubstr("steps_per_print"),
                                HasSubstr("have no effect"),
                                Not(HasSubstr("auto")),
                                Not(HasSubstr("wall_clock_breakdown"))),
                          AllOf(HasSubstr("stage3_max_live_parameters counts parameters"),
                                HasSubstr("ACCEL_FSDP_MAX_LIVE_BYTES"))));
}

TEST(DeepSpeedFile, HasNumbersPrecisionAndDevices) {
  const DeepSpeedFile file = parse_file(
      R"({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
          "gradient_accumulation_steps": 4, "gradient_clipping": 0.5, "bf16": {"enabled": true}})");

  EXPECT_EQ(file.zero_stage, 2);
  EXPECT_EQ(file.offload_optimizer_device, "cpu");
  EXPECT_EQ(file.gradient_accumulation_steps, 4);
  EXPECT_EQ(file.gradient_clipping, 0.5);
  EXPECT_EQ(file.is_bf16, true);
  EXPECT_THAT(file.notices, IsEmpty());
}

TEST(DeepSpeedFile, SaysWhichKeysOfAnOffloadHaveNoEffect) {
  const DeepSpeedFile file = parse_file(
      R"({"zero_optimization": {"stage": 3,
          "offload_optimizer": {"device": "cpu", "pin_memory": true, "buffer_count": 4, "ratio": 0.5},
          "offload_param": {"device": "cpu", "pin_memory": true, "max_in_cpu": 1e9}},
          "aio": {"block_size": 1048576, "queue_depth": 8, "overlap_events": true},
          "zero_force_ds_cpu_optimizer": true})");

  EXPECT_EQ(file.offload_optimizer_device, "cpu");
  EXPECT_EQ(file.offload_param_device, "cpu");
  ASSERT_EQ(file.notices.size(), 1U);
  for (const char* key : {"pin_memory",
                          "buffer_count",
                          "ratio",
                          "max_in_cpu",
                          "block_size",
                          "queue_depth",
                          "overlap_events",
                          "zero_force_ds_cpu_optimizer"})
    EXPECT_THAT(file.notices[0], HasSubstr(key));
  EXPECT_EQ(file.notices[0].find("pin_memory"), file.notices[0].rfind("pin_memory"));
}

TEST(DeepSpeedFile, KnowsTheOlderNamesOfAnOffloadToHostMemory) {
  const DeepSpeedFile older =
      parse_file(R"({"zero_optimization": {"cpu_offload": true, "cpu_offload_param": true}})");
  EXPECT_EQ(older.offload_optimizer_device, "cpu");
  EXPECT_EQ(older.offload_param_device, "cpu");
  const DeepSpeedFile disk = parse_file(
      R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/fast"}}})");
  EXPECT_EQ(disk.offload_optimizer_device, "nvme");
  EXPECT_EQ(disk.offload_optimizer_nvme_path, "/fast");
  EXPECT_TRUE(disk.notices.empty());
  const DeepSpeedFile said_elsewhere = parse_file(
      R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "auto"}}})");
  EXPECT_EQ(said_elsewhere.offload_optimizer_nvme_path, std::nullopt);
  const DeepSpeedFile parameters = parse_file(
      R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/fast"}}})");
  EXPECT_EQ(parameters.offload_param_device, "nvme");
  EXPECT_EQ(parameters.offload_param_nvme_path, "/fast");
  const DeepSpeedFile off = parse_file(R"({"zero_optimization": {"cpu_offload": false}})");
  EXPECT_EQ(off.offload_optimizer_device, std::nullopt);
}

TEST(DeepSpeedFile, RefusesAnUnknownKeyOfAnOffloadByName) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"zero_optimization": {"offload_optimizer": {"device": "cpu", "bufer_count": 4}}})",
       "zero_optimization.offload_optimizer.bufer_count is not part of this build"},
      {R"({"zero_optimization": {}, "aio": {"depth": 8}})", "aio.depth is not part of this build"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_THAT(test::error_of([&, text = text] { (void)parse_file(text); }).message(),
                HasSubstr(message));
  }
}

TEST(DeepSpeedFile, HasTheScaleOfTheLossWithDeepSpeedsDefaults) {
  const auto scale =
      parse_file(R"({"zero_optimization": {}, "fp16": {"enabled": true}})").loss_scale;
  ASSERT_TRUE(scale);
  EXPECT_TRUE(scale->dynamic);
  EXPECT_EQ(scale->init_scale, 65536.0);
  EXPECT_EQ(scale->growth_interval, 1000);
  EXPECT_EQ(scale->hysteresis, 2);
  EXPECT_EQ(scale->min_scale, 1.0);
  const auto given = parse_file(R"({"zero_optimization": {}, "fp16": {"enabled": "auto",
      "loss_scale": 0, "initial_scale_power": 8, "loss_scale_window": 5, "hysteresis": 3,
      "min_loss_scale": 4, "consecutive_hysteresis": true}})")
                         .loss_scale;
  ASSERT_TRUE(given);
  EXPECT_EQ(given->init_scale, 256.0);
  EXPECT_EQ(given->growth_interval, 5);
  EXPECT_EQ(given->hysteresis, 3);
  EXPECT_EQ(given->min_scale, 4.0);
  EXPECT_TRUE(given->consecutive_hysteresis);
  const auto fixed =
      parse_file(R"({"zero_optimization": {}, "fp16": {"enabled": true, "loss_scale": 128}})")
          .loss_scale;
  ASSERT_TRUE(fixed);
  EXPECT_FALSE(fixed->dynamic);
  EXPECT_EQ(fixed->init_scale, 128.0);
  EXPECT_FALSE(parse_file(R"({"zero_optimization": {}, "fp16": {"enabled": false}})").loss_scale);
}

TEST(DeepSpeedFile, AccumulatesNothingWithoutAWordAsInThePeer) {
  EXPECT_EQ(parse_file(R"({"zero_optimization": {}})").gradient_accumulation_steps, 1);
}

TEST(DeepSpeedFile, NamesWhatIsNotThere) {
  const Error optimizer =
      error_of(R"({"zero_optimization": {"stage": 1}, "optimizer": {"type": "Lamb"}})");
  EXPECT_EQ(optimizer.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(optimizer.message(), HasSubstr("ds.json: optimizer.type is Lamb"));
  EXPECT_THAT(optimizer.remedy(), HasSubstr("construct it in the program"));
  const Error mics = error_of(R"({"zero_optimization": {"stage": 3, "mics_shard_size": 4}})");
  EXPECT_EQ(mics.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(mics.message(), HasSubstr("zero_optimization.mics_shard_size"));
  EXPECT_THAT(
      error_of(R"({"zero_optimization": {}, "fp16": {"enabled": true, "new": 1}})").message(),
      HasSubstr("fp16.new"));
  EXPECT_NO_THROW(std::ignore = parse_file(
                      R"({"zero_optimization": {"zero_quantized_weights": false},
                          "amp": {"enabled": false, "opt_level": "O1"}, "optimizer": null})"));
}

TEST(DeepSpeedFile, NamesTheKeyAndTheValueThatDoNotFit) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"zero_optimization": {"stage": 4}})", "zero_optimization.stage is 4, expected"},
      {R"({"zero_optimization": {}, "fp16": {"enabled": true, "loss_scale": -1}})",
       "fp16.loss_scale is -1, expected a number from 0 on"},
      {R"({"zero_optimization": {}, "fp16": {"enabled": true, "hysteresis": 0}})",
       "fp16.hysteresis is 0, expected a whole number from 1 on"},
      {R"({"zero_optimization": {"stage": 1.5}})", "zero_optimization.stage is 1.5"},
      {R"({"zero_optimization": {"stage": "two"}})", R"(zero_optimization.stage is "two")"},
      {R"({"zero_optimization": 3})", "zero_optimization is 3, expected a map"},
      {R"({"zero_optimization": {"offload_param": "cpu"}})", "zero_optimization.offload_param"},
      {R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": 1}}})",
       "offload_optimizer.nvme_path is 1"},
      {R"({"zero_optimization": {"offload_param": {"device": 1}}})", "offload_param.device is 1"},
      {R"({"zero_optimization": {"cpu_offload": 1}})", "zero_optimization.cpu_offload is 1"},
      {R"({"zero_optimization": {}, "aio": 8})", "aio is 8, expected a map"},
      {R"({"zero_optimization": {}, "gradient_accumulation_steps": 0})",
       "gradient_accumulation_steps is 0, expected a whole number from 1 on"},
      {R"({"zero_optimization": {}, "gradient_clipping": []})", "gradient_clipping is []"},
      {R"({"zero_optimization": {}, "gradient_clipping": -1})", "gradient_clipping is -1"},
      {R"({"zero_optimization": {}, "fp16": true})", "fp16.enabled is true, expected a map"},
      {R"({"zero_optimization": {}, "bf16": {"enabled": 1}})", "bf16.enabled is 1"},
      {R"({"train_batch_size": 1})", "zero_optimization is null, expected a section"},
      {"[1]", "the file is [1], expected a map"},
  };
  for (const auto& [text, expected] : cases) {
    const Error error = error_of(text);
    EXPECT_EQ(error.code(), ErrorCode::kConfigInvalidValue) << text;
    EXPECT_THAT(error.message(), HasSubstr(expected));
  }
  const Error broken = error_of("{\"a\": 1,\n oops}");
  EXPECT_EQ(broken.code(), ErrorCode::kConfigSyntax);
  EXPECT_THAT(broken.message(), HasSubstr("ds.json"));
}

void use_file(const std::string& path) {
  ::setenv("ACCELERATE_USE_DEEPSPEED", "true", 1);
  ::setenv("ACCELERATE_DEEPSPEED_CONFIG_FILE", path.c_str(), 1);
  // The file goes before it.
  ::setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "2", 1);
}

TEST(DeepSpeedFile, IsWhatAnAcceleratorGoesBy) {
  const test::ScratchFolder folder;
  const auto exits = test::run_ranks(2, [&] {
    const std::string path = folder.file("ds" + std::to_string(test::rank_of_this_process()));
    std::ofstream(path) << R"({"zero_optimization": {"stage": 3, "stage3_max_live_parameters": 1e9},
                               "gradient_accumulation_steps": 3, "bf16": {"enabled": true}})";
    use_file(path);
    Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 0}});
    torch::nn::Linear net(4, 4);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);

    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kDeepspeed);
    EXPECT_EQ(accelerator.mixed_precision(), PrecisionType::kBf16);
    EXPECT_EQ(accelerator.gradient_accumulation_steps(), 3);
    std::int64_t own = 0;
    for (const at::Tensor& piece : sgd.param_groups()[0].params()) own += piece.numel();
    EXPECT_LT(own, 4 * 4 + 4) << "nothing was divided";
    accelerator.wait_for_everyone();
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_THAT(exits.at(0).output, HasSubstr("stage3_max_live_parameters counts parameters"));
}

TEST(DeepSpeedFile, MayBeTheJsonItselfOrItsBase64) {
  test::run_ranks(1, [] {
    // {"zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 5}
    use_file(
        "eyJ6ZXJvX29wdGltaXphdGlvbiI6IHsic3RhZ2UiOiAxfSwgImdyYWRpZW50X2FjY3VtdWxhdGlvbl9zdGVwcyI6ID"
        "V9");
    EXPECT_EQ(Accelerator().gradient_accumulation_steps(), 5);
    const DeepSpeedPlugin plugin{
        .hf_ds_config = R"({"zero_optimization": {}, "gradient_accumulation_steps": 6})"};
    EXPECT_EQ(Accelerator({.deepspeed_plugin = plugin}).gradient_accumulation_steps(), 6);
    try {
      const Accelerator accelerator({.deepspeed_plugin = DeepSpeedPlugin{.hf_ds_config = "{oops"}});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfigSyntax);
      EXPECT_THAT(error.message(), HasSubstr("the JSON of DeepSpeed's configuration is no JSON"));
    }
  });
}

TEST(DeepSpeedFile, ThatCannotBeReadIsNamed) {
  test::run_ranks(1, [] {
    use_file("/no/such/ds.json");
    try {
      const Accelerator accelerator;
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kConfigUnreadable);
      EXPECT_THAT(error.message(), HasSubstr("/no/such/ds.json"));
      EXPECT_THAT(error.remedy(), HasSubstr("deepspeed_config_file"));
    }
  });
}

}  // namespace
}  // namespace accel::sharding::deepspeed_file_test
