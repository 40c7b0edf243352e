// Reproducible training: losses and weights have the same bits on 1, 2, 3, 5 and 8 ranks, on one node and on several, as copies, with
// ZeRO-1, FULL_SHARD and HYBRID_SHARD, in fp32, bf16 and fp16, and when a run goes on with another number of ranks.
//
// Each run leaves its bits in a file; the test compares the files.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/fsdp.h>
#include <accel/micro_batches.h>
#include <accel/parallelism_config.h>
#include <accel/random.h>
#include <accel/schedulers.h>
#include <accel/state.h>

#include "libaccel/engine/gradients/subtree_sums.h"
#include "libaccel/engine/optim/exact_norm.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::reproducible_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int kMicroBatches = 9;  // no power of two

// ---- the tree

std::vector<std::pair<int, std::int64_t>> places(std::int64_t begin, std::int64_t end) {
  std::vector<std::pair<int, std::int64_t>> found;
  for (const Subtree& subtree : subtrees_of(begin, end))
    found.emplace_back(subtree.level, subtree.index);
  return found;
}

TEST(SubtreeSums, ARunHasTheLargestSubtreesWithinIt) {
  EXPECT_THAT(places(0, 8), ElementsAre(std::pair(3, 0)));
  EXPECT_THAT(places(2, 5), ElementsAre(std::pair(1, 1), std::pair(0, 4)));
  EXPECT_THAT(places(5, 8), ElementsAre(std::pair(0, 5), std::pair(1, 3)));
  EXPECT_THAT(places(0, 7), ElementsAre(std::pair(2, 0), std::pair(1, 2), std::pair(0, 6)));
}

// The sum of texts is the order of sums.
std::string order_of(std::int64_t total, const std::vector<std::int64_t>& cuts) {
  const auto add = [](std::string& left, const std::string& right) {
    left = "(" + left + right + ")";
  };
  TreeSum<std::string, decltype(add)> whole(add);
  for (std::size_t rank = 0; rank + 1 < cuts.size(); ++rank) {
    TreeSum<std::string, decltype(add)> own(add);
    for (std::int64_t i = cuts[rank]; i < cuts[rank + 1]; ++i)
      own.push({0, i}, std::string(1, static_cast<char>('a' + i)));
    for (auto& entry : own.entries()) whole.push(entry.place, entry.value);
  }
  EXPECT_EQ(cuts.back(), total);
  return whole.total();
}

TEST(SubtreeSums, TheOrderOfSumsDoesNotDependOnTheRuns) {
  EXPECT_EQ(order_of(8, {0, 8}), "(((ab)(cd))((ef)(gh)))");
  EXPECT_EQ(order_of(6, {0, 6}), "(((ab)(cd))(ef))");
  for (std::int64_t total = 1; total <= 11; ++total) {
    const std::string expected = order_of(total, {0, total});
    for (std::int64_t ranks = 1; ranks <= total; ++ranks) {
      std::vector<std::int64_t> cuts{0};
      for (std::int64_t rank = 0; rank < ranks; ++rank)
        cuts.push_back(micro_batches_of(total, rank, ranks).end);
      EXPECT_EQ(order_of(total, cuts), expected) << total << " over " << ranks;
    }
  }
  EXPECT_EQ(order_of(8, {0, 1, 7, 8}), order_of(8, {0, 8}));
}

TEST(ExactNorm, HasTheSameBitsHoweverGradientsAreCut) {
  set_seed(1);
  const at::Tensor numbers = at::randn({10007}) * at::rand({10007}).mul(20).exp2();
  const auto with_gradient = [](const at::Tensor& gradient) {
    at::Tensor parameter = at::full(gradient.sizes(), 0.0).requires_grad_(true);
    parameter.mutable_grad() = gradient;
    return parameter;
  };
  const auto norm = exact_norm({with_gradient(numbers)}, {}, {});
  const auto expected = numbers.to(at::kDouble).square().sum().sqrt().item<double>();
  EXPECT_EQ(norm.item<float>(), static_cast<float>(expected));
  for (const std::int64_t cut : {1, 16, 5000, 10006}) {
    const auto cut_norm = exact_norm({with_gradient(numbers.narrow(0, cut, 10007 - cut)),
                                      with_gradient(numbers.narrow(0, 0, cut))},
                                     {},
                                     {});
    EXPECT_TRUE(cut_norm.equal(norm));
  }
  EXPECT_TRUE(
      exact_norm({with_gradient(at::full({3}, std::nan("")))}, {}, {}).isnan().item<bool>());
  EXPECT_TRUE(exact_norm({with_gradient(at::full({3}, INFINITY))}, {}, {}).isinf().item<bool>());
  EXPECT_EQ(exact_norm({with_gradient(at::full({3}, 0.0))}, {}, {}).item<float>(), 0);
}

// ---- training

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear spare{nullptr};  // used in some micro-batches alone

  NetImpl() {
    first = register_module("first", torch::nn::Linear(12, 51));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({51})));
    dropout = register_module("dropout", torch::nn::Dropout(0.3));
    second = register_module("second", torch::nn::Linear(51, 27));
    spare = register_module("spare", torch::nn::Linear(27, 2));
  }
  at::Tensor forward(const at::Tensor& input) {
    at::Tensor output = second(dropout(norm(first(input).tanh())));
    const bool uses_spare = input[0][0].item<float>() > 0;
    return uses_spare ? output.sum() + spare(output).square().sum() : output.square().sum();
  }
};
TORCH_MODULE(Net);

// Elements that depend on their number alone.
struct Waves {
  [[nodiscard]] std::size_t size() const { return 55; }
  [[nodiscard]] at::Tensor get(std::size_t i) const {
    return (at::arange(12, at::kFloat) * 0.7 + static_cast<double>(i)).sin();
  }
};

struct Lesson {
  std::string name;
  AcceleratorOptions options;
  bool is_adam = false;
  bool has_weights = false;
};

AcceleratorOptions reproducible_options(PrecisionType precision = PrecisionType::kNo) {
  AcceleratorOptions options{.mixed_precision = precision,
                             .gradient_accumulation_steps = kMicroBatches,
                             .reproducible = true};
  // The first steps overflow, and some later ones do again.
  options.grad_scaler = {.init_scale = 1 << 20, .growth_interval = 2};
  return options;
}

Lesson of_strategy(const std::string& name,
                   ShardingStrategy strategy,
                   AcceleratorOptions options = reproducible_options()) {
  options.fsdp_plugin.emplace().sharding_strategy = strategy;
  return {name, std::move(options)};
}

std::vector<Lesson> lessons() {
  const AcceleratorOptions copies = reproducible_options();
  std::vector<Lesson> all{{"copies", copies}, {"copies", copies, /*is_adam=*/true}};
  all.push_back({"copies, weighted", copies, false, /*has_weights=*/true});
  AcceleratorOptions zero1 = copies;
  zero1.deepspeed_plugin.emplace().zero_stage = 1;
  all.push_back({"ZeRO-1", zero1});
  AcceleratorOptions zero2 = copies;
  zero2.deepspeed_plugin.emplace().zero_stage = 2;
  all.push_back({"ZeRO-2", zero2, true});
  AcceleratorOptions full_shard = copies;
  full_shard.fsdp_plugin.emplace();
  all.push_back({"FULL_SHARD", full_shard});
  all.push_back({"FULL_SHARD", full_shard, true, true});
  return all;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Lesson& lesson, Net& net) {
  if (lesson.is_adam)
    return std::make_unique<torch::optim::AdamW>(net->parameters(),
                                                 torch::optim::AdamWOptions(0.01));
  return std::make_unique<torch::optim::SGD>(net->parameters(),
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}

std::string bits_of(double value) {
  std::string text(32, '\0');
  text.resize(static_cast<std::size_t>(std::snprintf(text.data(), text.size(), "%a", value)));
  return text;
}

// What a run has left, as exact texts.
struct Bits {
  std::string losses;  // by micro-batch
  std::string norms;   // by step; in fp16 with the scale of the loss behind it
  std::string weights;
};

std::string scale_of(const Accelerator& accelerator) {
  if (accelerator.scaler() == nullptr) return {};
  return " scale " + bits_of(accelerator.scaler()->get_scale());
}

// Of whole steps, by micro-batch: each rank has the losses of its run.
std::string losses_of_all(const Accelerator& accelerator, const std::vector<double>& losses) {
  const auto all = gather_object(std::vector<std::vector<double>>{losses});
  const std::int64_t num_steps = std::ssize(losses) / accelerator.micro_batches().size();
  std::string text;
  for (std::int64_t step = 0; step < num_steps; ++step) {
    for (int rank = 0; rank < accelerator.num_processes(); ++rank) {
      const std::int64_t own =
          micro_batches_of(kMicroBatches, rank, accelerator.num_processes()).size();
      const auto& theirs = all[static_cast<std::size_t>(rank)];
      for (std::int64_t i = 0; i < own; ++i)
        text += bits_of(theirs[static_cast<std::size_t>(step * own + i)]) + "\n";
    }
  }
  return text;
}

std::string bits_of(const torch::nn::Module& net) {
  std::string text;
  for (const at::Tensor& parameter : net.parameters()) {
    const at::Tensor values = parameter.detach().flatten().to(at::kDouble);
    for (std::int64_t i = 0; i < values.numel(); ++i)
      text += bits_of(values[i].item<double>()) + "\n";
  }
  return text;
}

// Trains two epochs, from the checkpoint of `project` on when `resumes`, and up to `last_step` steps, after which it saves there.
Bits train(const Lesson& lesson,
           const std::filesystem::path& project = {},
           bool resumes = false,
           int last_step = -1) {
  AcceleratorState::reset();  // the precision of the lesson before
  Accelerator accelerator(lesson.options);
  set_seed(11, {.device_specific = true});  // rank 0's counts
  Net net;
  const std::shared_ptr<torch::optim::Optimizer> step_by = optimizer_of(lesson, net);
  auto [model, optimizer, scheduler] = accelerator.prepare(
      net, step_by, LambdaLR(*step_by, [](std::int64_t step) { return 1.0 - 0.05 * step; }));
  auto loader =
      accelerator.prepare_micro_batches(DataLoader(Waves{}, {.batch_size = 2, .shuffle = true}));
  if (resumes) accelerator.load_state(project);
  std::vector<double> losses;
  Bits bits;
  int step = 0;
  while (loader.epoch() < 2 && step != last_step) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate(model);
      const at::Tensor loss = model(batch) / 54.0;
      BackwardOptions options;
      if (lesson.has_weights) options.weight = 1 + batch[0][1].template item<float>();
      accelerator.backward(loss, options);
      losses.push_back(loss.template item<double>());
      if (accelerator.sync_gradients()) {
        bits.norms +=
            bits_of(accelerator.clip_grad_norm_(net->parameters(), 0.5).template item<double>());
        ++step;
      }
      optimizer.step();
      if (accelerator.sync_gradients()) bits.norms += scale_of(accelerator) + "\n";
      scheduler.step();
      optimizer.zero_grad();
      if (step == last_step) {
        accelerator.save_state(project);
        break;
      }
    }
  }
  bits.losses = losses_of_all(accelerator, losses);
  bits.weights = bits_of(*net);
  return bits;
}

void add_to(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::app) << text;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Reproducible, BitsAreTheSameOnAnyNumberOfRanksByEveryStrategy) {
  const test::ScratchFolder folder;
  const auto body = [&] {
    at::set_num_threads(1);
    const PartialState state;  // one group for all
    for (const Lesson& lesson : lessons()) {
      const Bits bits = train(lesson);
      if (state.process_index() != 0) continue;
      add_to(folder.file(std::to_string(state.num_processes())),
             lesson.name + "\n" + bits.losses + bits.norms + bits.weights);
    }
  };
  const std::vector<int> counts = {1, 2, 3, 5, 8};
  for (const int ranks : counts) test::run_ranks(ranks, body);
  const std::string expected = text_of(folder.file("1"));
  ASSERT_GT(expected.size(), 100000U);
  for (const int ranks : counts)
    EXPECT_TRUE(text_of(folder.file(std::to_string(ranks))) == expected) << ranks << " ranks";
}

// ---- nodes and precisions

struct Nodes {
  int num_nodes = 1;
  int num_places = 1;
  bool is_dealt_in_turn = false;  // ranks to nodes

  [[nodiscard]] std::string name() const {
    return std::to_string(num_nodes) + "x" + std::to_string(num_places) +
           (is_dealt_in_turn ? " in turn" : "");
  }
};

// Trains each lesson on those nodes; the file of that name has the bits.
void train_on(const Nodes& nodes,
              const std::vector<Lesson>& taught,
              const test::ScratchFolder& folder) {
  test::run_ranks(nodes.num_nodes * nodes.num_places, [&] {
    const int rank = test::rank_of_this_process();
    if (nodes.is_dealt_in_turn) {
      test::be_on_node(
          rank % nodes.num_nodes, nodes.num_nodes, rank / nodes.num_nodes, nodes.num_places);
    } else {
      test::be_on_node(
          rank / nodes.num_places, nodes.num_nodes, rank % nodes.num_places, nodes.num_places);
    }
    at::set_num_threads(1);
    const PartialState state;
    for (const Lesson& lesson : taught) {
      const Bits bits = train(lesson);
      if (rank != 0) continue;
      add_to(folder.file(nodes.name()),
             lesson.name + "\n" + bits.losses + bits.norms + bits.weights);
    }
  });
}

void expect_same_bits_on(const std::vector<Nodes>& all,
                         const std::vector<Lesson>& taught,
                         const std::string& expected,
                         const test::ScratchFolder& folder) {
  for (const Nodes& nodes : all) train_on(nodes, taught, folder);
  for (const Nodes& nodes : all)
    EXPECT_TRUE(text_of(folder.file(nodes.name())) == expected) << nodes.name();
}

TEST(Reproducible, ItDoesNotMatterOverHowManyNodesRanksAre) {
  const test::ScratchFolder folder;
  const std::vector<Lesson> all = lessons();
  const std::vector<Lesson> taught = {all[1], all[2], all[3], all[6]};
  train_on({1, 1}, taught, folder);
  const std::string expected = text_of(folder.file("1x1"));
  ASSERT_GT(expected.size(), 50000U);
  expect_same_bits_on(
      {{2, 1}, {3, 1}, {2, 2}, {2, 2, /*is_dealt_in_turn=*/true}}, taught, expected, folder);
}

TEST(Reproducible, HybridShardHasTheBitsOfOneRank) {
  const test::ScratchFolder folder;
  std::vector<Lesson> taught = {of_strategy("hybrid", ShardingStrategy::kHybridShard),
                                of_strategy("hybrid, ZeRO-2", ShardingStrategy::kHybridShardZero2),
                                of_strategy("hybrid, bf16",
                                            ShardingStrategy::kHybridShard,
                                            reproducible_options(PrecisionType::kBf16)),
                                of_strategy("hybrid, fp16",
                                            ShardingStrategy::kHybridShard,
                                            reproducible_options(PrecisionType::kFp16))};
  taught[0].is_adam = taught[1].has_weights = true;
  train_on({1, 1}, taught, folder);
  const std::string expected = text_of(folder.file("1x1"));
  ASSERT_GT(expected.size(), 50000U);
  // Three copies: no shard divides into three parts without rest.
  expect_same_bits_on({{1, 3}, {2, 1}, {2, 2}, {2, 2, /*is_dealt_in_turn=*/true}, {3, 2}},
                      taught,
                      expected,
                      folder);
}

TEST(Reproducible, CopiesOfOneNodeThatAreDividedHaveTheBitsOfOneRank) {
  test::run_ranks(4, [] {
    at::set_num_threads(1);
    const PartialState state;
    AcceleratorOptions options = reproducible_options();
    const Bits copies = train({"copies", options});
    options.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2};
    const Bits bits = train({"two divided copies", options});
    EXPECT_TRUE(bits.losses == copies.losses);
    EXPECT_TRUE(bits.norms == copies.norms);
    EXPECT_TRUE(bits.weights == copies.weights);
  });
}

std::vector<Lesson> mixed_lessons() {
  std::vector<Lesson> all;
  for (const PrecisionType precision : {PrecisionType::kBf16, PrecisionType::kFp16}) {
    const std::string name(to_string(precision));
    const AcceleratorOptions copies = reproducible_options(precision);
    all.push_back({name + " copies", copies, /*is_adam=*/true});
    AcceleratorOptions zero1 = copies;
    zero1.deepspeed_plugin.emplace().zero_stage = 1;
    all.push_back({name + " ZeRO-1, weighted", zero1, false, /*has_weights=*/true});
    all.push_back(of_strategy(name + " FULL_SHARD", ShardingStrategy::kFullShard, copies));
  }
  return all;
}

// How many steps' scales are in the text, and how many of them are below the one before.
std::pair<int, int> scales_and_falls(const std::string& text) {
  std::istringstream words(text);
  std::string word;
  std::pair<int, int> found;
  double last = 0;
  while (words >> word) {
    if (word != "scale") continue;
    words >> word;
    const double scale = std::strtod(word.c_str(), nullptr);
    found.second += scale < last ? 1 : 0;
    ++found.first;
    last = scale;
  }
  return found;
}

TEST(Reproducible, MixedPrecisionHasTheSameBitsAndTheSameScalesOfTheLoss) {
  const test::ScratchFolder folder;
  train_on({1, 1}, mixed_lessons(), folder);
  const std::string expected = text_of(folder.file("1x1"));
  const auto [num_scales, num_falls] = scales_and_falls(expected);
  EXPECT_EQ(num_scales,
            3 * 8);  // of fp16: two epochs of 36 micro-batches, the last ones anew, in steps of 9
  EXPECT_GE(num_falls, 3 * 2);
  expect_same_bits_on(
      {{1, 2}, {1, 3}, {1, 4}, {1, 5}, {2, 1}, {2, 2}}, mixed_lessons(), expected, folder);
}

// A rank that sums the gradients of two micro-batches rounds as two ranks do.
TEST(Reproducible, APolicyHasTheSameBitsOnTwoRanksAndMore) {
  std::vector<Lesson> taught;
  const auto teach = [&](const std::string& name, MixedPrecisionPolicy policy) {
    taught.push_back(of_strategy(name, ShardingStrategy::kFullShard));
    taught.back().options.fsdp_plugin->mixed_precision_policy = policy;
  };
  teach("parameters in bf16", {.param_dtype = at::kBFloat16});
  teach("summed in fp32", {.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat});
  teach("summed in bf16", {.reduce_dtype = at::kBFloat16});
  const test::ScratchFolder folder;
  train_on({1, 2}, taught, folder);
  const std::string expected = text_of(folder.file("1x2"));
  ASSERT_GT(expected.size(), 50000U);
  for (Lesson& lesson : taught)
    lesson.options.fsdp_plugin->sharding_strategy = ShardingStrategy::kHybridShard;
  expect_same_bits_on({{1, 3}, {1, 4}, {1, 5}, {2, 2}}, taught, expected, folder);
}

TEST(Reproducible, OneStrategyHasTheBitsOfAnother) {
  test::run_ranks(2, [] {
    at::set_num_threads(1);
    const PartialState state;
    const std::vector<Lesson> all = lessons();
    const Bits copies = train(all[0]);
    for (const std::size_t other : {3, 5}) {
      const Bits bits = train(all[other]);
      EXPECT_TRUE(bits.losses == copies.losses) << all[other].name;
      EXPECT_TRUE(bits.norms == copies.norms) << all[other].name;
      EXPECT_TRUE(bits.weights == copies.weights) << all[other].name;
    }
  });
}

TEST(Reproducible, TheBackendDoesNotMatter) {
  const test::ScratchFolder folder;
  const auto body = [&] {
    at::set_num_threads(1);
    const char* const backend = std::getenv("ACCEL_TEST_BACKEND");
    InitProcessGroupKwargs group;
    if (backend != nullptr) group.backend = backend;
    const PartialState state({.init_process_group = group});
    for (const std::size_t i : {0, 5}) {
      const Bits bits = train(lessons()[i]);
      if (state.process_index() != 0) continue;
      add_to(folder.file(backend == nullptr ? "default" : backend), bits.losses + bits.weights);
    }
  };
  test::run_ranks(3, body);
  test::run_ranks(3, body, {.env = {{"ACCEL_TEST_BACKEND", "gloo"}}});
  const std::string expected = text_of(folder.file("default"));
  EXPECT_FALSE(expected.empty());
  EXPECT_TRUE(text_of(folder.file("gloo")) == expected);
}

std::vector<Lesson> elastic_lessons() {
  return {lessons()[1], lessons()[5], mixed_lessons()[5]};
}

// Two ranks begin, three go on in the middle of an epoch.
TEST(Reproducible, ARunGoesOnWithAnotherNumberOfRanks) {
  const test::ScratchFolder folder;
  const auto body = [&] {
    at::set_num_threads(1);
    const PartialState state;
    const char* const phase = std::getenv("ACCEL_TEST_PHASE");
    const bool is_first = phase != nullptr && std::string(phase) == "first";
    const bool is_second = phase != nullptr && std::string(phase) == "second";
    for (const Lesson& lesson : elastic_lessons()) {
      const auto project = folder.path() / lesson.name;
      const Bits bits = train(lesson, project, is_second, is_first ? 3 : -1);
      if (state.process_index() != 0) continue;
      const std::string name = lesson.name + (phase == nullptr ? "-alone" : "-elastic");
      add_to(folder.file(name + ".losses"), bits.losses + (is_first ? "" : bits.weights));
      add_to(folder.file(name + ".norms"), bits.norms);
    }
  };
  test::run_ranks(1, body);
  test::run_ranks(2, body, {.env = {{"ACCEL_TEST_PHASE", "first"}}});
  test::run_ranks(3, body, {.env = {{"ACCEL_TEST_PHASE", "second"}}});
  for (const Lesson& lesson : elastic_lessons()) {
    const std::string& name = lesson.name;
    for (const char* const what : {".losses", ".norms"}) {
      const std::string alone = text_of(folder.file(name + "-alone" + what));
      EXPECT_FALSE(alone.empty());
      EXPECT_TRUE(text_of(folder.file(name + "-elastic" + what)) == alone) << name << what;
    }
    const std::string record = text_of(folder.file(name + "/random_states_0.json"));
    EXPECT_THAT(record, HasSubstr("reproducible.threads"));
  }
}

TEST(Reproducible, TheGradientOfAStepIsThatOfTheWholeBatch) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = kMicroBatches, .reproducible = true});
    set_seed(3);
    torch::nn::Linear net(4, 1);
    auto model = accelerator.prepare(net);
    const auto batch = [](std::int64_t i) {
      return (at::arange(8, at::kFloat) + static_cast<double>(i)).sin().view({2, 4});
    };
    std::vector<at::Tensor> all;
    for (std::int64_t i = 0; i < kMicroBatches; ++i) all.push_back(batch(i));
    net(at::cat(all)).square().mean().backward();
    const at::Tensor expected = net->weight.grad().clone();
    net->zero_grad();
    const MicroBatches run = accelerator.micro_batches();
    EXPECT_EQ(run.total, kMicroBatches);
    for (std::int64_t i = run.begin; i < run.end; ++i) {
      const auto accumulating = accelerator.accumulate(model);
      accelerator.backward(model(batch(i)).square().mean());
      EXPECT_EQ(accelerator.sync_gradients(), i + 1 == run.end);
    }
    // 18 terms of order 1, added up in another order.
    EXPECT_LE((net->weight.grad() - expected).abs().max().item<double>(),
              18 * std::pow(2.0, -24) * 4);
  });
}

class ReproducibleRefusals : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  static AcceleratorOptions options() {
    return {.gradient_accumulation_steps = 2, .reproducible = true};
  }
};

TEST_F(ReproducibleRefusals, ABackwardIsOfOneMicroBatch) {
  Accelerator accelerator(options());
  torch::nn::Linear net(4, 1);
  auto model = accelerator.prepare(net);
  const auto backward = [&] { accelerator.backward(model(at::full({2, 4}, 1.0)).mean()); };
  EXPECT_THAT(test::error_of(backward).remedy(), HasSubstr("accumulate"));
  {
    const auto accumulating = accelerator.accumulate(model);
    backward();
    EXPECT_EQ(test::error_of(backward).code(), ErrorCode::kInvalidArgument);
  }
  std::ignore = accelerator.accumulate(model);
  EXPECT_THAT(test::error_of([&] { std::ignore = accelerator.accumulate(model); }).what(),
              HasSubstr("micro-batch 1 of step 0 had no backward"));
}

TEST_F(ReproducibleRefusals, RunningAveragesAreOfOneRank) {
  Accelerator accelerator(options());
  const Error error =
      test::error_of([&] { std::ignore = accelerator.prepare(torch::nn::BatchNorm1d(4)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("num_batches_tracked"));
}

TEST_F(ReproducibleRefusals, OneProcessHasNoShardsToKeepInSixteenBits) {
  AcceleratorOptions of = options();
  of.fsdp_plugin.emplace().mixed_precision_policy = "bf16";
  Accelerator accelerator(of);
  const Error error =
      test::error_of([&] { std::ignore = accelerator.prepare(torch::nn::Linear(4, 1)); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("mixed_precision_policy"));
}

TEST_F(ReproducibleRefusals, EachRankNeedsAMicroBatch) {
  EXPECT_EQ(test::error_of([] { std::ignore = micro_batches_of(2, 0, 3); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(ReproducibleRefusals, TheEnvironmentAsksForIt) {
  ::setenv("ACCEL_REPRODUCIBLE", "1", 1);
  EXPECT_TRUE(Accelerator().reproducible());
  EXPECT_FALSE(Accelerator({.reproducible = false}).reproducible());
  ::setenv("ACCEL_REPRODUCIBLE", "perhaps", 1);
  EXPECT_EQ(test::error_of([] { const Accelerator accelerator; }).code(), ErrorCode::kEnvInvalid);
  ::unsetenv("ACCEL_REPRODUCIBLE");
}

TEST_F(ReproducibleRefusals, ALastStepThatLacksMicroBatchesIsCompletedOrLeftOut) {
  const auto firsts = [](bool even_batches) {
    AcceleratorOptions of = options();
    of.dataloader_config.even_batches = even_batches;
    Accelerator accelerator(of);
    std::vector<float> seen;
    // 11 batches, of which a step has 2.
    auto loader = accelerator.prepare_micro_batches(DataLoader(Waves{}, {.batch_size = 5}));
    for (auto& batch : loader) seen.push_back(batch[0][0].template item<float>());
    return seen;
  };
  const std::vector<float> completed = firsts(true);
  ASSERT_EQ(completed.size(), 12U);
  EXPECT_EQ(completed[11], completed[0]);
  EXPECT_EQ(firsts(false).size(), 10U);
}

}  // namespace
}  // namespace accel::reproducible_test
