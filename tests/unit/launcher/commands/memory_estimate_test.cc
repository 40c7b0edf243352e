// What estimate-memory counts, against figures that are known of published models (without their heads, as AutoModel makes
// them; the parameters that `accelerate estimate-memory` and the models' cards give).

#include "checkpoint_tools/models/memory_estimate.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "checkpoint_tools/models/known_models.h"
#include "checkpoint_tools/models/model_files.h"
#include "launcher/commands/estimate_memory.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::memory_estimate_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Published {
  const char* name;
  const char* config;
  std::uint64_t parameters;
};

void PrintTo(const Published& model, std::ostream* out) {
  *out << model.name;
}

class PublishedModel : public ::testing::TestWithParam<Published> {};

TEST_P(PublishedModel, HasTheParametersThatItsConfigurationSays) {
  const auto model = inventory_of_config(nlohmann::json::parse(GetParam().config), "config.json");
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(num_parameters(*model), GetParam().parameters);
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    PublishedModel,
    ::testing::Values(
        Published{
            "bert_base_cased",
            R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 768, "num_hidden_layers": 12,
                      "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2})",
            108'310'272},
        Published{
            "roberta_base",
            R"({"model_type": "roberta", "vocab_size": 50265, "hidden_size": 768, "num_hidden_layers": 12,
                      "intermediate_size": 3072, "max_position_embeddings": 514, "type_vocab_size": 1})",
            124'645'632},
        Published{
            "distilbert_base_uncased",
            R"({"model_type": "distilbert", "vocab_size": 30522, "dim": 768, "n_layers": 6, "hidden_dim": 3072,
                      "max_position_embeddings": 512})",
            66'362'880},
        Published{
            "gpt2",
            R"({"model_type": "gpt2", "vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_positions": 1024,
                      "n_inner": null})",
            124'439'808},
        Published{
            "pythia_70m",
            R"({"model_type": "gpt_neox", "vocab_size": 50304, "hidden_size": 512, "num_hidden_layers": 6,
                      "intermediate_size": 2048})",
            44'670'976},
        Published{
            "bloom_560m",
            R"({"model_type": "bloom", "vocab_size": 250880, "n_embed": 1024, "n_layer": 24})",
            559'214'592},
        Published{"opt_125m",
                  R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 768, "ffn_dim": 3072,
                      "num_hidden_layers": 12, "max_position_embeddings": 2048, "word_embed_proj_dim": 768})",
                  125'239'296},
        Published{
            "opt_350m",
            R"({"model_type": "opt", "vocab_size": 50272, "hidden_size": 1024, "ffn_dim": 4096,
                      "num_hidden_layers": 24, "max_position_embeddings": 2048, "word_embed_proj_dim": 512,
                      "do_layer_norm_before": false})",
            331'196'416},
        Published{
            "llama_2_7b",
            R"({"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
                      "intermediate_size": 11008, "num_attention_heads": 32, "num_key_value_heads": 32})",
            6'607'343'616},
        Published{
            "mistral_7b",
            R"({"model_type": "mistral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
                      "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8})",
            7'110'660'096},
        Published{
            "mixtral_8x7b",
            R"({"model_type": "mixtral", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32,
                      "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
                      "num_local_experts": 8})",
            46'571'720'704},
        Published{
            "qwen2_0_5b",
            R"({"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "num_hidden_layers": 24,
                      "intermediate_size": 4864, "num_attention_heads": 14, "num_key_value_heads": 2})",
            494'032'768},
        Published{
            "qwen3_0_6b",
            R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
                      "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128})",
            596'049'920},
        Published{
            "gemma_2b",
            R"({"model_type": "gemma", "vocab_size": 256000, "hidden_size": 2048, "num_hidden_layers": 18,
                      "intermediate_size": 16384, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256})",
            2'506'172'416},
        Published{
            "gemma_2_2b",
            R"({"model_type": "gemma2", "vocab_size": 256000, "hidden_size": 2304, "num_hidden_layers": 26,
                      "intermediate_size": 9216, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256})",
            2'614'341'888},
        Published{
            "phi_2",
            R"({"model_type": "phi", "vocab_size": 51200, "hidden_size": 2560, "num_hidden_layers": 32,
                      "intermediate_size": 10240, "num_attention_heads": 32})",
            2'648'560'640},
        Published{
            "phi_3_mini",
            R"({"model_type": "phi3", "vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32,
                      "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32})",
            3'722'578'944},
        Published{
            "falcon_7b",
            R"({"model_type": "falcon", "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32,
                      "num_attention_heads": 71, "multi_query": true, "parallel_attn": true, "bias": false,
                      "new_decoder_architecture": false})",
            6'921'720'704},
        Published{
            "t5_small",
            R"({"model_type": "t5", "vocab_size": 32128, "d_model": 512, "d_ff": 2048, "d_kv": 64,
                      "num_heads": 8, "num_layers": 6})",
            60'506'624},
        Published{
            "vit_base_patch16_224",
            R"({"model_type": "vit", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
                      "image_size": 224, "patch_size": 16, "num_channels": 3})",
            86'389'248}),
    [](const auto& info) { return info.param.name; });

TEST(MemoryEstimate, GivesTheBytesThatThePeerGives) {
  const ModelInventory model{
      .name = "m",
      .source = "",
      .tensors = {{"fc.weight", 1'000'000}, {"fc.bias", 24}, {"out.weight", 500'000}},
      .whole_modules = {}};
  const auto rows = estimate_memory(model, {"float32", "float16", "int8", "int4"});
  const double total = 4 * 1'500'024.0;
  const double largest = 4 * 1'000'024.0;
  ASSERT_EQ(rows.size(), 4U);
  const double divisors[] = {1, 2, 4, 8};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(rows[i].total, total / divisors[i]);
    EXPECT_EQ(rows[i].largest_layer, largest / divisors[i]);
  }
  EXPECT_EQ(rows[0].training, 4 * total);
  EXPECT_EQ(rows[1].training, 2 * total);
  EXPECT_EQ(rows[2].training, std::nullopt);
  EXPECT_EQ(rows[3].training, std::nullopt);
}

TEST(MemoryEstimate, BlocksWithAttentionStayWholeAndOthersDoNot) {
  ModelInventory model;
  model.tensors = {{"model.layers.0.self_attn.q.weight", 10},
                   {"model.layers.0.mlp.weight", 20},
                   {"model.layers.1.self_attn.q.weight", 10},
                   {"model.layers.1.mlp.weight", 21},
                   {"head.weight", 30}};
  EXPECT_EQ(largest_layer(model), 31U);
  model.tensors = {{"layer4.0.conv1.weight", 10}, {"layer4.0.conv2.weight", 12}};
  EXPECT_EQ(largest_layer(model), 12U);
}

TEST(MemoryEstimate, EmbeddingsOfBertStayWhole) {
  const auto model = inventory_of_config(
      nlohmann::json::parse(
          R"({"model_type": "bert", "vocab_size": 28996, "hidden_size": 768, "num_hidden_layers": 12,
              "intermediate_size": 3072, "max_position_embeddings": 512})"),
      "config.json");
  ASSERT_TRUE(model);
  EXPECT_EQ(4 * largest_layer(*model), 90'669'056U);  // CLI22
  EXPECT_EQ(4 * num_elements(*model), 433'249'280U);
}

constexpr const char* kIdefics80b = R"({"model_type": "idefics", "additional_vocab_size": 2,
    "alpha_type": "float", "cross_layer_interval": 4, "hidden_size": 8192, "intermediate_size": 22016,
    "num_attention_heads": 64, "num_hidden_layers": 80, "qk_layer_norms": true, "use_resampler": true,
    "vocab_size": 32000, "vision_config": {"embed_dim": 1280, "image_size": 224, "intermediate_size": 5120,
    "num_attention_heads": 16, "num_hidden_layers": 32, "patch_size": 14}, "perceiver_config":
    {"qk_layer_norms_perceiver": true, "resampler_depth": 6, "resampler_head_dim": 96,
    "resampler_n_heads": 16, "resampler_n_latents": 64}})";

// The largest layer is the figure of Accelerate's own test of `estimate-memory` (CLI22).
TEST(MemoryEstimate, ADecoderLayerOfIdeficsStaysWholeWithItsRotaryTables) {
  const auto model = inventory_of_config(nlohmann::json::parse(kIdefics80b), "config.json");

  ASSERT_TRUE(model) << model.error().what();
  EXPECT_EQ(4 * largest_layer(*model), 3'240'165'632U);
  // Text, its gated layers, the vision transformer, the resampler; each worked out from the shapes of its modules.
  constexpr std::uint64_t kLayer = 4 * 8192 * 8192 + 3 * 8192 * 22016 + 2 * 8192;
  constexpr std::uint64_t kGated =
      2 * 8192 * 8192 + 2 * 1280 * 8192 + 2 * 128 + 3 * 8192 * 22016 + 2 * 8192 + 2;
  constexpr std::uint64_t kVisionLayer =
      4 * (1280 * 1280 + 1280) + 4 * 1280 + 2 * 1280 * 5120 + 5120 + 1280;
  constexpr std::uint64_t kVision =
      1280 + 3 * 14 * 14 * 1280 + 257 * 1280 + 4 * 1280 + 32 * kVisionLayer;
  constexpr std::uint64_t kResamplerBlock =
      4 * 1280 + 4 * 96 + 4 * 1280 * 1536 + 2 * 1280 + 8 * 1280 * 1280;
  constexpr std::uint64_t kResampler = 64 * 1280 + 6 * kResamplerBlock + 2 * 1280;
  constexpr std::uint64_t kText = 32'002 * 8192 + 80 * kLayer + 20 * kGated + 8192;
  EXPECT_EQ(num_parameters(*model), kText + kVision + kResampler);
}

TEST(MemoryEstimate, NumbersInsideOfIdeficsAreNamedWithTheirPlace) {
  const auto model = inventory_of_config(
      nlohmann::json::parse(R"({"model_type": "idefics", "vision_config": {"patch_size": 0}})"),
      "config.json");

  ASSERT_FALSE(model);
  EXPECT_THAT(model.error().message(), HasSubstr("vision_config: patch_size is 0"));
}

TEST(MemoryEstimate, ResNetsOfTimmHaveTheirClassesAndRunningAverages) {
  const auto model = inventory_of_config(
      nlohmann::json::parse(R"({"architecture": "resnet50", "num_classes": 1000})"), "config.json");
  ASSERT_TRUE(model);
  EXPECT_EQ(4 * largest_layer(*model), 9'437'184U);  // CLI22
  EXPECT_EQ(4 * num_elements(*model), 102'441'032U);
  EXPECT_EQ(num_parameters(*model), 25'557'032U);
}

TEST(MemoryEstimate, ResNetsOfTransformersKeepAConvolutionAndItsNormTogether) {
  const auto of = [](const char* text) {
    return inventory_of_config(nlohmann::json::parse(text), "config.json");
  };
  const auto model = of(
      R"({"model_type": "resnet", "embedding_size": 64, "hidden_sizes": [256, 512, 1024, 2048],
          "depths": [3, 4, 6, 3], "layer_type": "bottleneck"})");
  ASSERT_TRUE(model);
  EXPECT_EQ(4 * num_elements(*model), 102'441'032U - 4 * (2048 * 1000 + 1000));  // no classes
  EXPECT_EQ(4 * largest_layer(*model), 9'437'184U + 4 * 4 * 512 + 8);
  const auto small = of(
      R"({"model_type": "resnet", "hidden_sizes": [64, 128, 256, 512], "depths": [2, 2, 2, 2],
          "layer_type": "basic"})");
  ASSERT_TRUE(small);
  // 11689512 parameters of resnet18 without 513000 of its classes; 4800 channels in 20 norms.
  EXPECT_EQ(4 * num_elements(*small), 4 * (11'689'512U - 513'000) + 4 * 2 * 4800 + 20 * 8);
  const auto uneven = of(R"({"model_type": "resnet", "hidden_sizes": [64, 128], "depths": [2]})");
  ASSERT_FALSE(uneven);
  EXPECT_THAT(uneven.error().message(), testing::HasSubstr("depths is no list of 2 numbers"));
}

TEST(MemoryEstimate, RoundsAsPythonDoes) {
  EXPECT_EQ(readable_bytes(0), "0 bytes");
  EXPECT_EQ(readable_bytes(1023), "1023 bytes");
  EXPECT_EQ(readable_bytes(1024), "1.0 KB");
  EXPECT_EQ(readable_bytes(1536), "1.5 KB");
  EXPECT_EQ(readable_bytes(433'249'280), "413.18 MB");
  EXPECT_EQ(readable_bytes(90'669'056), "86.47 MB");
}

TEST(MemoryEstimate, NamesTheKeyThatIsMissingOrAbsurd) {
  const auto message_of = [](const char* config) {
    const auto model = inventory_of_config(nlohmann::json::parse(config), "c.json");
    return model ? "no error" : model.error().render("accel");
  };
  EXPECT_THAT(message_of(R"({"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_positions": 4})"),
              HasSubstr("c.json: vocab_size is missing"));
  EXPECT_THAT(message_of(R"({"model_type": "llama", "hidden_size": -3})"),
              HasSubstr("is -3, expected a whole number"));
  EXPECT_THAT(
      message_of(
          R"({"model_type": "mixtral", "vocab_size": 1, "hidden_size": 1, "num_hidden_layers": 1048576,
                             "intermediate_size": 1, "num_attention_heads": 1, "num_local_experts": 1048576})"),
      HasSubstr("more than 200000 tensors"));
  EXPECT_THAT(message_of(R"({"model_type": "made_up"})"),
              AllOf(HasSubstr("model_type made_up is not known"), HasSubstr("xlm-roberta")));
  EXPECT_THAT(message_of("{}"), HasSubstr("it has no model_type"));
  EXPECT_THAT(message_of("[]"), HasSubstr("it is no JSON object"));
}

// A safetensors file of which the data is a hole.
void write_model(const std::filesystem::path& path,
                 const std::vector<safetensors::TensorSpec>& tensors) {
  const auto layout = safetensors::plan_layout(tensors, {});
  ASSERT_TRUE(layout);
  std::ofstream(path, std::ios::binary) << layout->bytes;
  std::filesystem::resize_file(path, layout->header.data_offset + layout->header.data_bytes);
}

class ModelFiles : public ::testing::Test {
 protected:
  test::ScratchFolder folder_;
  std::filesystem::path path(const std::string& name) const { return folder_.path() / name; }
};

TEST_F(ModelFiles, ReadsFilesIndicesAndFoldersByTheirHeaders) {
  using safetensors::Dtype;
  write_model(path("a.safetensors"),
              {{"fc.weight", Dtype::kBF16, {3, 5}}, {"fc.bias", Dtype::kF32, {3}}});
  write_model(path("b.safetensors"), {{"out.weight", Dtype::kF16, {1'000'000, 1000}}});
  const auto one = find_model(path("a.safetensors").string(), {});
  ASSERT_TRUE(one) << one.error().message();
  EXPECT_EQ(num_parameters(*one), 18U);
  const auto both = find_model(folder_.path().string(), {});
  ASSERT_TRUE(both);
  EXPECT_EQ(num_parameters(*both), 1'000'000'018U);
  std::ofstream(path("model.safetensors.index.json"))
      << R"({"weight_map": {"out.weight": "b.safetensors"}})";
  const auto indexed = find_model(folder_.path().string(), {});
  ASSERT_TRUE(indexed);
  EXPECT_EQ(num_parameters(*indexed), 1'000'000'000U);
}

TEST_F(ModelFiles, FindsAModelOfTheHubInTheLocalCache) {
  const auto snapshot = path("hub") / "models--org--tiny" / "snapshots" / "abc";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(path("hub") / "models--org--tiny" / "refs");
  std::ofstream(path("hub") / "models--org--tiny" / "refs" / "main") << "abc";
  write_model(snapshot / "model.safetensors", {{"w", safetensors::Dtype::kF32, {7}}});
  const EnvMap homes[] = {
      {{"HF_HOME", folder_.path().string()}},
      {{"HF_HUB_CACHE", path("hub").string()}},
      {{"HUGGINGFACE_HUB_CACHE", path("hub").string()}, {"HF_HOME", "/absent"}}};
  for (const EnvMap& environment : homes) {
    const auto model = find_model("org/tiny", environment);
    ASSERT_TRUE(model) << model.error().message();
    EXPECT_EQ(model->name, "org/tiny");
    EXPECT_EQ(num_parameters(*model), 7U);
  }
}

TEST_F(ModelFiles, SaysWithWhichCommandAMissingModelIsFetched) {
  const auto model = find_model("org/absent", {{"HF_HOME", folder_.path().string()}});
  ASSERT_FALSE(model);
  EXPECT_EQ(model.error().remedy(), "fetch it with `hf download org/absent config.json`");
}

TEST_F(ModelFiles, NamesWhatIsWrongWithAFile) {
  std::ofstream(path("bad.safetensors")) << "short";
  std::ofstream(path("model.index.json")) << R"({"weight_map": {"w": "../../etc/passwd"}})";
  std::ofstream(path("none.index.json")) << "[1]";
  std::ofstream(path("config.json")) << "{";
  std::ofstream(path("model.bin")) << "x";
  const auto message_of = [&](const char* name) {
    const auto model = find_model(path(name).string(), {});
    return model ? "no error" : model.error().render("accel");
  };
  EXPECT_THAT(message_of("bad.safetensors"), HasSubstr("bad.safetensors"));
  EXPECT_THAT(message_of("model.index.json"), HasSubstr("no name of a file beside it"));
  EXPECT_THAT(message_of("none.index.json"), HasSubstr("it has no weight_map"));
  std::ofstream(path("empty.index.json")) << R"({"weight_map": {}})";
  EXPECT_THAT(message_of("empty.index.json"), HasSubstr("its weight_map is empty"));
  EXPECT_THAT(message_of("config.json"), HasSubstr("it is no JSON"));
  EXPECT_THAT(message_of("model.bin"), HasSubstr("neither a .safetensors file"));
  EXPECT_THAT(message_of("absent.json"), HasSubstr("no such file or folder"));
}

TEST_F(ModelFiles, WhatIsMissingOrOfAnotherKindIsNamedWithItsRemedy) {
  const auto error_of = [&](const std::string& name) {
    const auto model = find_model(name.empty() ? name : path(name).string(), {});
    return model ? "no error" : model.error().message() + " | " + model.error().remedy();
  };
  folder_.write("shards/model-00001-of-00002.safetensors", "");
  folder_.write("index/model.safetensors.index.json",
                R"({"weight_map": {"a": "gone.safetensors"}})");
  folder_.write("pickled/pytorch_model.bin.index.json", R"({"weight_map": {"a": "b.bin"}})");
  folder_.write("model.gguf", "GGUF");
  std::filesystem::create_symlink("loop.safetensors", path("loop.safetensors"));
  std::filesystem::create_directories(path("empty"));
  std::filesystem::create_directories(path("folder.safetensors") / "inner");
  folder_.write("odd/model.safetensors/file", "");

  EXPECT_THAT(
      error_of("shards"),
      AllOf(HasSubstr("model-00002-of-00002.safetensors is missing"), HasSubstr("fetch it")));
  EXPECT_THAT(error_of("index"),
              AllOf(HasSubstr("gone.safetensors, which it names, is not beside it"),
                    HasSubstr("fetch that file too")));
  EXPECT_THAT(error_of("pickled"), HasSubstr("only pytorch_model.bin.index.json"));
  EXPECT_THAT(error_of("pickled/pytorch_model.bin.index.json"), HasSubstr("pickled weights"));
  EXPECT_THAT(error_of("model.gguf"), HasSubstr("GGUF files are not read"));
  EXPECT_THAT(error_of("loop.safetensors"), HasSubstr("Too many levels of symbolic links"));
  EXPECT_THAT(error_of("empty"), HasSubstr("name the folder that has the model's weights"));
  EXPECT_THAT(error_of("odd"), HasSubstr("model.safetensors: it is no file"));
  EXPECT_THAT(error_of(""), HasSubstr("no model is named"));
  for (const std::string name : {"shards",
                                 "index",
                                 "pickled",
                                 "model.gguf",
                                 "loop.safetensors",
                                 "empty",
                                 "odd",
                                 "no/such/x"})
    EXPECT_THAT(error_of(name), Not(HasSubstr("--config_file"))) << name;
}

// As save_state() writes it: the optimizer's tensors are not the model's.
TEST_F(ModelFiles, OfACheckpointTheModelIsCounted) {
  std::filesystem::create_directories(path("checkpoint"));
  write_model(path("checkpoint/model.safetensors"), {{"w", safetensors::Dtype::kF32, {3}}});
  write_model(path("checkpoint/optimizer.safetensors"),
              {{"w.exp_avg", safetensors::Dtype::kF32, {3}}});
  const auto model = find_model(path("checkpoint").string(), {});
  ASSERT_TRUE(model) << model.error().message();
  EXPECT_EQ(num_parameters(*model), 3U);
}

TEST_F(ModelFiles, AFolderOrADeviceIsNoConfiguration) {
  std::filesystem::create_directories(path("model") / "config.json");
  std::filesystem::create_symlink("/dev/zero", path("endless.json"));
  const auto folder = find_model(path("model").string(), {});
  const auto device = find_model(path("endless.json").string(), {});

  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message(), HasSubstr("config.json is a folder"));
  ASSERT_FALSE(device);
  EXPECT_THAT(device.error().message(), HasSubstr("has more than 268435456 bytes"));
}

// With letters for the lines that it is drawn with (U+2500 and on, three bytes each).
std::string ascii(const std::string& table) {
  std::string text;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (static_cast<unsigned char>(table[i]) < 0x80) {
      text += table[i];
      continue;
    }
    const std::string line = table.substr(i, 3);
    text += line == "\u2500" ? '-' : line == "\u2502" ? '|' : '+';
    i += 2;
  }
  return text;
}

TEST(MemoryTable, IsThatOfThePeer) {
  ModelInventory model{
      .name = "x", .source = "", .tensors = {{"w.weight", 262'144}}, .whole_modules = {}};
  EXPECT_EQ(ascii(render_table(model, estimate_memory(model, {"float32", "int4"}))),
            "+----------------------------------------------------+\n"
            "|            Memory Usage for loading `x`            |\n"
            "+-------+-------------+----------+-------------------+\n"
            "| dtype |Largest Layer|Total Size|Training using Adam|\n"
            "+-------+-------------+----------+-------------------+\n"
            "|float32|    1.0 MB   |  1.0 MB  |       4.0 MB      |\n"
            "|  int4 |   128.0 KB  | 128.0 KB |        N/A        |\n"
            "+-------+-------------+----------+-------------------+\n");
}

}  // namespace
}  // namespace accel::launcher::memory_estimate_test
