// Weights for others: shards, tied weights, and what a file must have in common with a model.

#include <filesystem>
#include <fstream>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/non_persistent_buffers.h>
#include <accel/safetensors_file.h>
#include <accel/state.h>

#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/shard_split.h"
#include "tests/support/error_of.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::model_files_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::names_in;
using test::SameTensor;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// 236 bytes of parameters and statistics: the model that HF Accelerate's own tests use.
struct ThreeLayersImpl : torch::nn::Module {
  ThreeLayersImpl()
      : linear1(register_module("linear1", torch::nn::Linear(3, 4))),
        batchnorm(register_module("batchnorm", torch::nn::BatchNorm1d(4))),
        linear2(register_module("linear2", torch::nn::Linear(4, 5))) {}
  torch::nn::Linear linear1;
  torch::nn::BatchNorm1d batchnorm;
  torch::nn::Linear linear2;
};
TORCH_MODULE(ThreeLayers);

// A table that it computes itself, as rotary embeddings have.
struct ComputedTable : torch::nn::Module, NonPersistentBuffers {
  ComputedTable() {
    register_buffer("table", at::ones({3}));
    register_buffer("mean", at::ones({2}));
  }
  [[nodiscard]] bool is_persistent_buffer(const std::string& name) const override {
    return name != "table";
  }
};

class ModelFiles : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;
  fs::path folder_ = scratch_.path() / "weights";
};

TEST(ShardSize, UnderstandsDecimalAndBinaryUnits) {
  const auto bytes = [](std::string_view text) {
    const auto size = checkpoint::parse_shard_size(text);
    return size ? *size : 0;
  };
  EXPECT_EQ(bytes("10GB"), 10'000'000'000u);
  EXPECT_EQ(bytes("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(bytes("2GiB"), std::uint64_t{2} << 30);
  EXPECT_EQ(bytes("5MB"), 5'000'000u);
  EXPECT_EQ(bytes("8Gb"), 1'000'000'000u);
  EXPECT_EQ(bytes("100"), 100u);
  for (const char* text : {"5MBB", "5k0MB", "-1GB", "", "GB", "nanGB", "infGB", "1e99TB", "0"}) {
    EXPECT_EQ(bytes(text), 0u) << text;
  }
}

TEST(ShardSplit, TensorAboveTheLimitGetsItsOwnShard) {
  const auto shards =
      checkpoint::split_into_shards({{"a", 40}, {"big", 500}, {"b", 60}, {"c", 1}}, 100);

  EXPECT_THAT(shards, ElementsAre(ElementsAre("big"), ElementsAre("a", "b"), ElementsAre("c")));
}

TEST_F(ModelFiles, ThreeLayersWithALimitOfHundredBytesMakeThreeShards) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100"});

  EXPECT_THAT(names_in(folder_),
              ElementsAre("model-00001-of-00003.safetensors",
                          "model-00002-of-00003.safetensors",
                          "model-00003-of-00003.safetensors",
                          "model.safetensors.index.json"));
  std::ifstream index(folder_ / "model.safetensors.index.json");
  const auto root = nlohmann::json::parse(index);
  EXPECT_EQ(root["metadata"]["total_size"], 236);
  EXPECT_EQ(root["weight_map"]["linear2.bias"], "model-00003-of-00003.safetensors");

  ThreeLayers loaded;
  load_checkpoint_in_model(*loaded, folder_);
  EXPECT_THAT(loaded->linear2->weight, SameTensor(net->linear2->weight));
  EXPECT_THAT(loaded->batchnorm->running_var, SameTensor(net->batchnorm->running_var));
}

TEST_F(ModelFiles, ShardsOfAnEarlierSaveAreRemovedAndOtherFilesAreNot) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100"});
  std::ofstream(folder_ / "README.md") << "x";

  save_model(*net, folder_);

  EXPECT_THAT(names_in(folder_), ElementsAre("README.md", "model.safetensors"));
}

TEST_F(ModelFiles, TiedWeightsAreWrittenOnceAndComeBackTied) {
  torch::nn::Linear encoder(3, 3);
  torch::nn::Linear decoder(3, 3);
  decoder->weight.set_data(encoder->weight.data());
  torch::nn::Module net;
  net.register_module("encoder", encoder);
  net.register_module("decoder", decoder);

  save_model(net, folder_);

  const auto saved = safetensors::load_file(folder_ / "model.safetensors");
  EXPECT_TRUE(saved.contains("encoder.weight"));
  EXPECT_FALSE(saved.contains("decoder.weight"));
  EXPECT_EQ(safetensors::load_metadata(folder_ / "model.safetensors").at("decoder.weight"),
            "encoder.weight");
  {
    const at::NoGradGuard no_grad;
    encoder->weight.zero_();
  }
  load_checkpoint_in_model(net, folder_);
  EXPECT_THAT(decoder->weight, SameTensor(saved.at("encoder.weight")));
}

TEST_F(ModelFiles, BuffersThatAreNotPersistentAreNeitherSavedNorAskedFor) {
  struct Net : torch::nn::Module {
    Net() : part(register_module("part", std::make_shared<ComputedTable>())) {}
    std::shared_ptr<ComputedTable> part;
  };
  Net net;
  net.part->named_buffers()["mean"].fill_(3);
  save_model(net, folder_);
  Net loaded;
  loaded.part->named_buffers()["table"].fill_(7);

  load_checkpoint_in_model(loaded, folder_);

  EXPECT_EQ(safetensors::load_file(folder_ / "model.safetensors").size(), 1u);
  EXPECT_THAT(loaded.part->named_buffers()["mean"], SameTensor(at::full({2}, 3.0f)));
  EXPECT_THAT(loaded.part->named_buffers()["table"], SameTensor(at::full({3}, 7.0f)));
}

TEST_F(ModelFiles, WhatDoesNotFitIsListedAndNothingIsChanged) {
  ThreeLayers net;
  const at::Tensor before = net->linear1->bias.detach().clone();
  safetensors::save_file({{"linear1.weight", at::ones({4, 3})},
                          {"linear1.bias", at::ones({7})},
                          {"batchnorm.weight", at::ones({4})},
                          {"batchnorm.bias", at::ones({4})},
                          {"batchnorm.running_mean", at::ones({4})},
                          {"batchnorm.running_var", at::ones({4})},
                          {"linear2.weight", at::ones({5, 4})},
                          {"head.weight", at::ones({1})}},
                         scratch_.path() / "other.safetensors");

  const Error error = error_of([&] {
    load_checkpoint_in_model(*net, scratch_.path() / "other.safetensors", {.strict = true});
  });

  EXPECT_EQ(error.code(), ErrorCode::kSafetensorsMismatch);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("2 missing in the file: batchnorm.num_batches_tracked, linear2.bias"),
                    HasSubstr("1 unknown to the model: head.weight"),
                    HasSubstr("linear1.bias (Float[7] in the file, Float[4] in the model)")));
  EXPECT_THAT(net->linear1->bias, SameTensor(before));
}

TEST_F(ModelFiles, WithoutStrictOnlyCommonNamesAreLoadedAndDtypesAreConverted) {
  ThreeLayers net;
  safetensors::save_file({{"linear2.bias", at::ones({5}, at::kBFloat16)}, {"head", at::ones({1})}},
                         scratch_.path() / "part.safetensors");

  const LoadModelReport report =
      load_checkpoint_in_model(*net, scratch_.path() / "part.safetensors");

  EXPECT_THAT(net->linear2->bias, SameTensor(at::ones({5})));
  EXPECT_THAT(report.unexpected_keys, ElementsAre("head"));
  EXPECT_EQ(report.missing_keys.size(), 8u);
  EXPECT_EQ(report.missing_keys.front(), "batchnorm.bias");
}

TEST_F(ModelFiles, IndexThatLeavesItsFolderIsRefused) {
  fs::create_directories(folder_);
  std::ofstream(folder_ / "model.safetensors.index.json")
      << R"({"weight_map": {"linear1.weight": "../secret.safetensors"}})";
  ThreeLayers net;

  EXPECT_THAT(error_of([&] { load_checkpoint_in_model(*net, folder_); }).message(),
              HasSubstr("the file of linear1.weight is no name of a file beside it"));
}

TEST_F(ModelFiles, PickledShardsHaveAnIndexOfTheirOwn) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100", .safe_serialization = false});

  EXPECT_THAT(names_in(folder_),
              ElementsAre("pytorch_model-00001-of-00003.bin",
                          "pytorch_model-00002-of-00003.bin",
                          "pytorch_model-00003-of-00003.bin",
                          "pytorch_model.bin.index.json"));
  ThreeLayers loaded;
  const LoadModelReport report = load_checkpoint_in_model(*loaded, folder_, {.strict = true});
  EXPECT_THAT(loaded->linear2->weight, SameTensor(net->linear2->weight));
  EXPECT_THAT(report.missing_keys, ElementsAre());

  save_model(*net, folder_, {.safe_serialization = false});
  EXPECT_THAT(names_in(folder_), ElementsAre("pytorch_model.bin"));
  ThreeLayers again;
  load_checkpoint_in_model(*again, folder_ / "pytorch_model.bin", {.strict = true});
  EXPECT_THAT(again->batchnorm->running_var, SameTensor(net->batchnorm->running_var));
}

TEST_F(ModelFiles, AnIndexMayMapNamesToFilesAtOnce) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100", .safe_serialization = false});
  const fs::path index = folder_ / "pytorch_model.bin.index.json";
  std::ifstream in(index);
  const auto map = nlohmann::json::parse(in).at("weight_map");
  std::ofstream(index) << map.dump();

  ThreeLayers loaded;
  load_checkpoint_in_model(*loaded, index, {.strict = true});

  EXPECT_THAT(loaded->linear1->weight, SameTensor(net->linear1->weight));
}

TEST_F(ModelFiles, AShardThatIsMissingIsNamedAndNothingIsChanged) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100", .safe_serialization = false});
  fs::remove(folder_ / "pytorch_model-00002-of-00003.bin");
  ThreeLayers loaded;
  const at::Tensor before = loaded->linear1->weight.detach().clone();

  const Error error = error_of([&] { load_checkpoint_in_model(*loaded, folder_); });

  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr("pytorch_model-00002-of-00003.bin"));
  EXPECT_THAT(loaded->linear1->weight, SameTensor(before));
}

TEST_F(ModelFiles, AFolderWithTwoIndexesIsRefused) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100"});
  save_model(*net, folder_, {.max_shard_size = "100", .safe_serialization = false});

  EXPECT_THAT(error_of([&] { load_checkpoint_in_model(*net, folder_); }).message(),
              HasSubstr("more than one index"));
}

TEST_F(ModelFiles, ADtypeIsTheModelsAndSomeModulesStayInFp32) {
  ThreeLayers net;
  save_model(*net, folder_);
  ThreeLayers half;
  load_checkpoint_in_model(
      *half, folder_, {.dtype = "torch.float16", .keep_in_fp32_modules = {"batchnorm"}});

  EXPECT_EQ(half->linear1->weight.scalar_type(), at::kHalf);
  EXPECT_EQ(half->batchnorm->weight.scalar_type(), at::kFloat);
  EXPECT_EQ(half->named_buffers()["batchnorm.num_batches_tracked"].scalar_type(), at::kLong);
  EXPECT_THAT(half->linear1->weight, SameTensor(net->linear1->weight.to(at::kHalf)));
  EXPECT_EQ(error_of([&] { load_checkpoint_in_model(*half, folder_, {.dtype = "int8"}); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(ModelFiles, WhatIsNotServedIsRefusedByName) {
  ThreeLayers net;
  save_model(*net, folder_);
  const auto message = [&](const LoadModelOptions& options) {
    const Error error = error_of([&] { load_checkpoint_in_model(*net, folder_, options); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.message();
  };

  EXPECT_THAT(message({.device_map = {{"", "cpu"}}}), HasSubstr("device_map"));
  EXPECT_THAT(message({.offload_folder = "x"}), HasSubstr("offload_folder"));
  EXPECT_THAT(message({.offload_state_dict = true}), HasSubstr("offload_state_dict"));
  EXPECT_THAT(message({.offload_buffers = true}), HasSubstr("offload_buffers"));
  EXPECT_THAT(message({.full_state_dict = false}), HasSubstr("full_state_dict"));
}

TEST_F(ModelFiles, RankZeroReadsForAll) {
  ThreeLayers net;
  if (test::rank_of_this_process() < 0) save_model(*net, folder_);
  test::run_ranks(2, [&] {
    const PartialState state;
    // Another rank has no such folder.
    const fs::path folder = state.is_main_process() ? folder_ : scratch_.path() / "nowhere";
    ThreeLayers loaded;
    load_checkpoint_in_model(*loaded, folder, {.strict = true, .broadcast_from_rank0 = true});
    ThreeLayers direct;
    load_checkpoint_in_model(*direct, folder_, {.strict = true});
    EXPECT_THAT(loaded->linear2->weight, SameTensor(direct->linear2->weight));
    EXPECT_THAT(loaded->batchnorm->running_mean, SameTensor(direct->batchnorm->running_mean));
    const Error error = error_of([&] {
      load_checkpoint_in_model(
          *loaded, scratch_.path() / "nowhere", {.broadcast_from_rank0 = true});
    });
    EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  });
}

TEST_F(ModelFiles, FailedSaveLeavesTheEarlierFiles) {
  ThreeLayers net;
  save_model(*net, folder_, {.max_shard_size = "100"});
  const auto before = names_in(folder_);
  net->register_buffer("ghost", at::empty({5}, at::TensorOptions().device(at::kMeta)));

  const Error error = error_of([&] { save_model(*net, folder_); });

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(), HasSubstr("\"ghost\" is on the meta device"));
  EXPECT_EQ(names_in(folder_), before);
  EXPECT_THAT(error_of([&] { save_model(*net, folder_, {.max_shard_size = "5MBB"}); }).code(),
              ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace accel::model_files_test
