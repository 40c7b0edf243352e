// Models of every kind that were trained as two shards go on as shards of another number, as copies, with divided states of
// the optimizer, over nodes and alone: after the same steps they save the same files, to the byte.

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/safetensors_file.h>
#include <accel/state.h>

#include "tests/support/fake_nodes.h"
#include "tests/support/model_zoo.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::resumed_zoo_test {
namespace {

namespace fs = std::filesystem;
using Plugin = std::optional<FullyShardedDataParallelPlugin>;

struct Way {
  const char* name;
  std::optional<ShardingStrategy> strategy;
  bool by_tensor = false;
  std::optional<int> zero_stage = std::nullopt;
  bool is_undivided = false;  // where a policy changes nothing: it goes on in float32
};

constexpr std::uint64_t kSeed = 3;
constexpr std::uint64_t kOtherSeed = 4;

// All ranks have the same batches: the mean of 1, 2 or 4 equal gradients is each of them, whoever sums.
struct ZooRun {
  ZooRun(const test::ZooEntry& entry, const Way& way, bool is_bf16, std::uint64_t seed)
      : accelerator(options_of(way, is_bf16)) {
    torch::manual_seed(seed);
    net = entry.make();
    net->train();
    auto [prepared, stepped] = accelerator.prepare(
        net,
        std::shared_ptr<torch::optim::Optimizer>(std::make_shared<torch::optim::AdamW>(
            net->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true))));
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  static AcceleratorOptions options_of(const Way& way, bool is_bf16) {
    AcceleratorOptions options;
    options.ddp.find_unused_parameters = true;
    if (way.zero_stage) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = way.zero_stage};
    if (way.strategy) {
      options.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = way.strategy,
                                                           .shard_by_tensor = way.by_tensor};
      if (is_bf16) options.fsdp_plugin->mixed_precision_policy = "bf16";
    }
    return options;
  }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(step));
      net->begin_batch(static_cast<std::uint64_t>(step));
      const at::Tensor batch = at::randn({6, net->width()});
      accelerator.backward((*model)(batch).to(at::kFloat).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  Accelerator accelerator;
  std::shared_ptr<test::ZooModel> net;
  std::optional<Prepared<std::shared_ptr<test::ZooModel>>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The first tensor that differs; empty where the files have the same tensors.
std::string difference(const fs::path& found, const fs::path& expected) {
  const auto theirs = safetensors::load_file(found);
  for (const auto& [name, tensor] : safetensors::load_file(expected)) {
    const auto at = theirs.find(name);
    if (at == theirs.end()) return name + " is missing";
    if (at->second.scalar_type() != tensor.scalar_type()) return name + " has another type";
    if (!at->second.equal(tensor)) return name + " has other values";
  }
  return "";
}

bool is_in_16_bits(const test::ZooEntry& entry) {
  return at::isReducedFloatingType(entry.make()->parameters().front().scalar_type());
}

// Whether the parameters are in 16 bits, with masters.
class ResumedZoo : public ::testing::TestWithParam<bool> {
 protected:
  template <typename F>
  static void for_each_kind(F act) {
    const PartialState state;  // one group for all
    for (const test::ZooEntry& entry : test::model_zoo()) {
      if (entry.shares_storage) continue;
      SCOPED_TRACE(entry.name);
      act(entry);
    }
  }

  static void train_as_two_shards(const fs::path& folder) {
    for_each_kind([&](const test::ZooEntry& entry) {
      ZooRun run(entry, {"FULL_SHARD", ShardingStrategy::kFullShard}, GetParam(), kSeed);
      run.train(0, 2);
      run.accelerator.save_state(folder / entry.name / "state");
      run.train(2, 4);
      run.accelerator.save_state(folder / entry.name / "expected");
    });
  }

  static void expect_same_end(const fs::path& folder, const std::vector<Way>& ways) {
    for_each_kind([&](const test::ZooEntry& entry) {
      for (const Way& way : ways) {
        SCOPED_TRACE(way.name);
        const fs::path own = folder / entry.name / way.name;
        // A policy's files have float32 masters: a model in 16 bits that has none refuses them.
        if (way.is_undivided && GetParam() && is_in_16_bits(entry)) continue;
        ZooRun run(entry, way, GetParam(), kOtherSeed);
        // Another state, which loading replaces; and as many steps as the others took until then, since TorchScript computes in
        // another way when it has seen some.
        run.train(0, 2);
        run.accelerator.load_state(folder / entry.name / "state");
        const bool goes_on = !(way.is_undivided && GetParam());
        if (goes_on) run.train(2, 4);
        run.accelerator.save_state(own);
        if (!run.accelerator.is_main_process()) continue;
        const fs::path expected = folder / entry.name / (goes_on ? "expected" : "state");
        for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
          EXPECT_EQ(difference(own / file, expected / file), "") << file;
          EXPECT_GT(fs::file_size(expected / file), 100U) << file;
        }
        for (const char* file : {"model.safetensors", "optimizer.safetensors", "optimizer.json"})
          EXPECT_TRUE(contents(own / file) == contents(expected / file)) << file;
      }
    });
  }
};

TEST_P(ResumedZoo, EveryKindGoesOnToTheSameFilesInEveryWay) {
  const bool is_bf16 = GetParam();
  const test::ScratchFolder scratch;
  const fs::path& folder = scratch.path();
  test::run_ranks(2, [&] { train_as_two_shards(folder); });
  test::run_ranks(4, [&] {
    std::vector<Way> ways = {{"SHARD_GRAD_OP", ShardingStrategy::kShardGradOp},
                             {"BY_TENSOR", ShardingStrategy::kFullShard, true},
                             {.name = "DDP", .strategy = {}, .is_undivided = true}};
    if (!is_bf16) {
      ways.push_back({"FULL_SHARD", ShardingStrategy::kFullShard});
      ways.push_back({"NO_SHARD", ShardingStrategy::kNoShard});
      ways.push_back({.name = "ZERO_1", .strategy = {}, .zero_stage = 1});
    }
    expect_same_end(folder, ways);
  });
  test::run_ranks(4, [&] {
    const int rank = test::rank_of_this_process();
    test::be_on_node(rank / 2, 2, rank % 2, 2);
    std::vector<Way> ways = {{"HYBRID_SHARD", ShardingStrategy::kHybridShard}};
    if (!is_bf16) ways.push_back({"HYBRID_SHARD_ZERO2", ShardingStrategy::kHybridShardZero2});
    expect_same_end(folder, ways);
  });
  test::run_ranks(1, [&] {
    expect_same_end(
        folder,
        {{.name = "ONE_SHARD", .strategy = ShardingStrategy::kFullShard, .is_undivided = true},
         {.name = "ALONE", .strategy = {}, .is_undivided = true}});
  });
}

INSTANTIATE_TEST_SUITE_P(Precisions,
                         ResumedZoo,
                         ::testing::Values(false, true),
                         [](const auto& info) { return info.param ? "Bf16" : "Float32"; });

}  // namespace
}  // namespace accel::resumed_zoo_test
