#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/offload.h>
#include <accel/safetensors_file.h>

#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"

namespace accel::offload_test {
namespace {

using test::ScratchFolder;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A language model whose embedding is its head as well.
struct Tied : torch::nn::Module {
  Tied() {
    embedding = register_module("embedding", torch::nn::Embedding(8, 6));
    first = register_module("first", torch::nn::Linear(6, 6));
    head = register_module("head", std::make_shared<Head>(embedding->weight));
    scale = register_buffer("scale", torch::full({6}, 2.0));
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    return torch::relu(first(embedding(tokens)) * scale).matmul(head->weight.t());
  }
  struct Head : torch::nn::Module {
    explicit Head(const torch::Tensor& tied) : weight(register_parameter("weight", tied)) {}
    torch::Tensor weight;
  };
  torch::nn::Embedding embedding = nullptr;
  torch::nn::Linear first = nullptr;
  std::shared_ptr<Head> head;
  torch::Tensor scale;
};

std::shared_ptr<Tied> seeded() {
  torch::manual_seed(7);
  return std::make_shared<Tied>();
}

std::shared_ptr<Tied> empty() {
  const auto scope = init_empty_weights();
  return std::make_shared<Tied>();
}

torch::Tensor tokens() {
  return torch::arange(8);
}

TEST(Offload, AModelOnDiskComputesTheSameBits) {
  const ScratchFolder folder;
  const auto model = seeded();
  const torch::Tensor expected = model->forward(tokens());

  disk_offload(*model, folder.file("weights"));

  EXPECT_TRUE(torch::equal(model->forward(tokens()), expected));
  EXPECT_TRUE(has_offloaded_params(*model));
  EXPECT_TRUE(model->head->weight.is_same(model->embedding->weight));
  EXPECT_FALSE(model->first->weight.requires_grad());
}

TEST(Offload, OnlyWhatTheMapSaysGoesToDisk) {
  const ScratchFolder folder;
  const auto model = seeded();
  const torch::Tensor expected = model->forward(tokens());

  dispatch_model(*model,
                 {{"embedding", "cpu"}, {"head", "cpu"}, {"first", "disk"}, {"scale", "cpu"}},
                 {.offload_dir = folder.file("weights")});

  EXPECT_TRUE(has_offloaded_params(*model->first));
  EXPECT_FALSE(has_offloaded_params(*model->embedding));
  EXPECT_TRUE(model->embedding->weight.requires_grad());
  EXPECT_TRUE(torch::equal(model->forward(tokens()), expected));
  std::vector<std::string> names;
  for (const auto& [name, weight] : read_offload_index(folder.file("weights")))
    names.push_back(name);
  EXPECT_THAT(names, ElementsAre("first.bias", "first.weight"));
}

TEST(Offload, AnEmptyModelIsLoadedFromWhereItsFilesLie) {
  const ScratchFolder folder;
  const auto whole = seeded();
  save_model(*whole, folder.path());
  const auto model = empty();

  const LoadModelReport report = load_checkpoint_and_dispatch(
      *model, folder.path(), {.device_map = DeviceMap{{"", "disk"}}, .strict = true});
  EXPECT_FALSE(std::filesystem::exists(folder.file("index.json")));

  EXPECT_TRUE(report.missing_keys.empty());
  EXPECT_TRUE(report.unexpected_keys.empty());
  EXPECT_TRUE(has_offloaded_params(*model->first));
  // Another order of six sums of products below 4: a few units in the last place (2^-24 each).
  EXPECT_TRUE(torch::allclose(model->forward(tokens()), whole->forward(tokens()), 0, 2e-5));

  const auto exact = empty();
  (void)load_checkpoint_and_dispatch(
      *exact,
      folder.path(),
      {.device_map = DeviceMap{{"", "disk"}}, .offload_folder = folder.file("offload")});
  EXPECT_TRUE(torch::equal(exact->forward(tokens()), whole->forward(tokens())));
}

TEST(Offload, AMapIsMadeOfAWord) {
  const ScratchFolder folder;
  const auto layers = [] {
    torch::nn::Sequential model;
    for (int i = 0; i < 3; ++i) model->push_back(torch::nn::Linear(6, 6));
    return model;
  };
  auto whole = layers();
  save_model(*whole, folder.path());
  for (const std::string word : {"auto", "balanced", "balanced_low_0", "sequential"}) {
    auto model = [&] {
      const auto scope = init_empty_weights();
      return layers();
    }();

    // One layer (168 bytes), and room for another one.
    (void)load_checkpoint_and_dispatch(*model,
                                       folder.path(),
                                       {.device_map = word,
                                        .max_memory = {{{"cpu", 340}}},
                                        .offload_folder = folder.file("offload-" + word)});

    EXPECT_FALSE(has_offloaded_params(*model[0])) << word;
    EXPECT_TRUE(has_offloaded_params(*model[1]) && has_offloaded_params(*model[2])) << word;
    const torch::Tensor input = torch::ones({1, 6});
    EXPECT_TRUE(torch::equal(model->forward(input), whole->forward(input))) << word;
  }
  EXPECT_THAT(test::error_of([&] {
                (void)load_checkpoint_and_dispatch(
                    *layers(), folder.path(), {.device_map = "fast"});
              }).message(),
              HasSubstr("please choose 'auto', 'balanced', 'balanced_low_0' or 'sequential'"));
}

TEST(Offload, AnotherDtypeIsWrittenToTheFolder) {
  const ScratchFolder folder;
  const auto whole = seeded();
  save_model(*whole, folder.path());
  const auto load = [&](const std::filesystem::path& offload_folder) {
    auto model = seeded();
    (void)load_checkpoint_and_dispatch(*model,
                                       folder.path(),
                                       {.device_map = DeviceMap{{"first", "disk"}, {"", "cpu"}},
                                        .offload_folder = offload_folder,
                                        .dtype = "bfloat16"});
    return model;
  };

  EXPECT_THAT(test::error_of([&] { (void)load({}); }).message(), HasSubstr("`offload_folder`"));
  const auto model = load(folder.file("offload"));

  EXPECT_EQ(model->first->weight.scalar_type(), at::kBFloat16);
  EXPECT_EQ(model->embedding->weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(torch::equal(model->first->weight, whole->first->weight.to(at::kBFloat16)));
  EXPECT_EQ(read_offload_index(folder.file("offload")).at("first.weight").dtype, "bfloat16");
}

TEST(Offload, WeightsOnDiskTakeNoMemoryOfTheProgramsOwn) {
  const ScratchFolder folder;
  constexpr std::int64_t kSide = 4096;  // 64 MiB
  {
    torch::nn::Linear large(torch::nn::LinearOptions(kSide, kSide).bias(false));
    save_model(*large, folder.path());
  }
  // Private memory that can be written to counts for this limit, mappings of files do not.
  EXPECT_EXIT(
      {
        std::shared_ptr<torch::nn::LinearImpl> model;
        {
          const auto scope = init_empty_weights();
          model = std::make_shared<torch::nn::LinearImpl>(
              torch::nn::LinearOptions(kSide, kSide).bias(false));
        }
        const torch::Tensor input = torch::ones({1, kSide});
        rlimit limit{};
        std::ifstream statm("/proc/self/statm");
        std::uint64_t pages[6];
        for (std::uint64_t& number : pages) statm >> number;
        constexpr std::uint64_t kRoom = 32U << 20;
        limit.rlim_cur = limit.rlim_max = pages[5] * 4096 + kRoom;
        ::setrlimit(RLIMIT_DATA, &limit);
        bool is_refused = false;
        try {
          (void)torch::empty({kSide, kSide}).fill_(1);
        } catch (const std::exception&) {
          is_refused = true;
        }
        (void)load_checkpoint_and_dispatch(
            *model, folder.path(), {.device_map = DeviceMap{{"", "disk"}}});
        const bool is_finite = model->forward(input).isfinite().all().item<bool>();
        std::_Exit(is_refused && is_finite ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST(Offload, AWriteToAWeightOnDiskNamesIt) {
  const ScratchFolder folder;
  const auto model = seeded();
  disk_offload(*model, folder.file("weights"));

  EXPECT_THAT(
      test::error_of([&] { (void)model->first->bias.zero_(); }).message(),
      HasSubstr("aten::zero_ would write to the parameter first.bias, which lies in a file"));
  EXPECT_EXIT(
      *model->first->bias.data_ptr<float>() = 0,
      ::testing::KilledBySignal(SIGSEGV),
      AllOf(HasSubstr("[pager.read_only]: parameter 'first.bias' was written to at byte 0 of "
                      "24, which lies in a file"),
            HasSubstr("leave disk out")));
}

// Pages of files that are mapped and in memory.
std::size_t mapped_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::size_t size = 0;
  std::size_t resident = 0;
  std::size_t shared = 0;
  statm >> size >> resident >> shared;
  return shared * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(Offload, AModelLargerThanItsMemoryStreams) {
  const ScratchFolder folder;
  constexpr std::int64_t kSide = 1024;
  constexpr std::int64_t kWeight = 4 << 20;
  torch::nn::Sequential model;
  for (int i = 0; i < 12; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(kSide, kSide).bias(false)));
  const torch::Tensor input = torch::ones({1, kSide});
  const torch::Tensor expected = model->forward(input);

  dispatch_model(
      *model, {{"", "disk"}}, {.offload_dir = folder.file("weights"), .disk_cache = 3 * kWeight});

  const std::size_t before = mapped_bytes();
  for (int forward = 0; forward < 3; ++forward) {
    torch::Tensor output = input;
    for (const auto& layer : model->children()) {
      output = layer->as<torch::nn::Linear>()->forward(output);
      // One is being used while another one leaves; code of libraries that runs for the first time takes less than another weight.
      EXPECT_LE(mapped_bytes(), before + static_cast<std::size_t>(5 * kWeight));
    }
    EXPECT_TRUE(torch::equal(output, expected));
  }
}

TEST(Offload, AProcessThatIsForkedComputesToo) {
  const ScratchFolder folder;
  const auto model = seeded();
  const torch::Tensor expected = model->forward(tokens());
  disk_offload(*model, folder.file("weights"));
  EXPECT_TRUE(torch::equal(model->forward(tokens()), expected));

  EXPECT_EXIT(
      {
        auto own = model;
        const bool is_equal = torch::equal(own->forward(tokens()), expected);
        dispatch_model(*own, {{"", "cpu"}});  // the last use of the thread that this process lacks
        std::_Exit(is_equal ? 0 : 1);
      },
      ::testing::ExitedWithCode(0),
      "");
}

TEST(Offload, AnOptimizerLeavesWeightsOnDiskAlone) {
  const ScratchFolder folder;
  const auto model = seeded();
  dispatch_model(*model, {{"first", "disk"}, {"", "cpu"}}, {.offload_dir = folder.file("weights")});
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const torch::Tensor before = model->first->weight.clone();

  model->forward(tokens()).sum().backward();
  optimizer.step();

  EXPECT_TRUE(torch::equal(model->first->weight, before));
  // Also one that has a gradient from before.
  const auto other = seeded();
  other->forward(tokens()).sum().backward();
  dispatch_model(*other, {{"first", "disk"}, {"", "cpu"}}, {.offload_dir = folder.file("weights")});
  torch::optim::SGD(other->parameters(), 0.1).step();
  EXPECT_TRUE(torch::equal(other->first->weight, before));
  EXPECT_TRUE(model->embedding->weight.grad().defined());
}

TEST(Offload, AModelComesBackToMemory) {
  const ScratchFolder folder;
  const auto model = seeded();
  const torch::Tensor expected = model->forward(tokens());
  save_model(*model, folder.path());
  disk_offload(*model, folder.file("weights"));

  dispatch_model(*model, {{"", "cpu"}});

  EXPECT_FALSE(has_offloaded_params(*model));
  EXPECT_TRUE(torch::equal(model->forward(tokens()), expected));
  disk_offload(*model, folder.file("weights"));
  (void)load_checkpoint_in_model(*model, folder.path());
  EXPECT_FALSE(has_offloaded_params(*model));
  EXPECT_TRUE(torch::equal(model->forward(tokens()), expected));
}

TEST(Offload, AnEmptyModelHasNothingOnDisk) {
  EXPECT_FALSE(has_offloaded_params(*empty()));
}

TEST(Offload, ProcessesMayWriteOneFolderAtOnce) {
  const ScratchFolder folder;
  std::map<std::string, torch::Tensor> weights;
  for (int i = 0; i < 20; ++i) weights["w" + std::to_string(i)] = torch::full({64}, i);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      offload_state_dict(folder.path(), weights);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      std::_Exit(1);
    }
    std::_Exit(0);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  const OffloadedWeightsLoader loader({}, folder.path());
  EXPECT_EQ(loader.keys().size(), weights.size());
  for (const auto& [name, weight] : weights) EXPECT_TRUE(torch::equal(loader.at(name), weight));
}

TEST(Offload, AFolderThatIsThereIsReadAndOneThatDoesNotFitIsRefused) {
  const ScratchFolder folder;
  const auto model = seeded();
  disk_offload(*model, folder.file("weights"));
  const auto other = std::make_shared<Tied>();
  disk_offload(*other, folder.file("weights"));
  EXPECT_TRUE(torch::equal(other->first->weight, model->first->weight));

  torch::nn::Linear small(2, 2);
  const Error unknown = test::error_of([&] { disk_offload(*small, folder.file("weights")); });
  EXPECT_THAT(unknown.message(), HasSubstr("no offloaded weight 'weight'"));
  EXPECT_FALSE(has_offloaded_params(*small));
  offload_state_dict(folder.file("other"),
                     {{"weight", torch::ones({3})}, {"bias", torch::ones({2})}});
  EXPECT_THAT(test::error_of([&] { disk_offload(*small, folder.file("other")); }).message(),
              HasSubstr("'weight' is of another shape or dtype"));
  EXPECT_FALSE(has_offloaded_params(*small));
}

TEST(Offload, WhatCannotBeIsRefusedAndTheModelUnchanged) {
  const ScratchFolder folder;
  const auto model = seeded();
  const auto refused = [&](const DeviceMap& map) {
    const Error error = test::error_of([&] { dispatch_model(*model, map); });
    EXPECT_FALSE(has_offloaded_params(*model));
    return error.message();
  };

  EXPECT_THAT(refused({{"", 0}}), HasSubstr("no GPUs"));
  EXPECT_THAT(refused({{"first", "cpu"}}), HasSubstr("does not give any device"));
  EXPECT_THAT(refused({{"first", "disk"}, {"", "cpu"}}), HasSubstr("`offload_dir`"));
  EXPECT_THAT(test::error_of([&] { disk_offload(*empty(), folder.file("weights")); }).message(),
              HasSubstr("has no values"));
}

TEST(Offload, AFileThatIsCutShortOrMissingIsAnError) {
  const ScratchFolder folder;
  offload_state_dict(folder.path(), {{"a", torch::ones({4})}, {"b", torch::ones({})}});
  const OffloadedWeightsLoader loader({{"c", torch::zeros({1})}}, folder.path());
  EXPECT_THAT(loader.keys(), ElementsAre("c", "a", "b"));
  EXPECT_EQ(loader.at("b").item<float>(), 1);

  std::filesystem::resize_file(folder.file("a.dat"), 12);
  EXPECT_THAT(test::error_of([&] { (void)loader.at("a"); }).message(),
              AllOf(HasSubstr("a.dat has 12 bytes"), HasSubstr("takes 16")));
  std::filesystem::remove(folder.file("a.dat"));
  EXPECT_EQ(test::error_of([&] { (void)loader.at("a"); }).code(), ErrorCode::kFileIo);
  EXPECT_THAT(test::error_of([&] { (void)loader.at("d"); }).message(),
              HasSubstr("no offloaded weight 'd'"));
  folder.write("index.json", R"({"a": {"dtype": "float32", "shape": [-1]}})");
  EXPECT_THAT(test::error_of([&] { (void)read_offload_index(folder.path()); }).message(),
              HasSubstr("'a' has a shape below 0"));
  folder.write("index.json", "[1");
  EXPECT_THAT(test::error_of([&] { (void)read_offload_index(folder.path()); }).message(),
              HasSubstr("no JSON of names"));
  EXPECT_THAT(
      test::error_of([&] { offload_weight(torch::ones({1}), "../a", folder.path()); }).message(),
      HasSubstr("no file can have"));
}

TEST(Offload, AFullDiskLeavesNoPartOfAWeight) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "there is no /dev/full";
  const ScratchFolder folder;
  std::filesystem::create_symlink("/dev/full", folder.file("a.dat"));
  // A link is replaced, so a device behind it gets nothing.
  offload_weight(torch::ones({1}), "a", folder.path());
  EXPECT_TRUE(
      std::filesystem::is_regular_file(std::filesystem::symlink_status(folder.file("a.dat"))));

  rlimit limit{.rlim_cur = 1024, .rlim_max = RLIM_INFINITY};
  EXPECT_EXIT(
      {
        ::signal(SIGXFSZ, SIG_IGN);
        ::setrlimit(RLIMIT_FSIZE, &limit);
        const Error error =
            test::error_of([&] { offload_weight(torch::ones({4096}), "b", folder.path()); });
        std::_Exit(error.code() == ErrorCode::kFileIo || error.code() == ErrorCode::kDiskFull ? 0
                                                                                              : 1);
      },
      ::testing::ExitedWithCode(0),
      "");
  EXPECT_FALSE(std::filesystem::exists(folder.file("b.dat")));
}

}  // namespace
}  // namespace accel::offload_test
