// A run that was sharded goes on with other numbers of ranks, other strategies and copies, and from any of them.

#include <csignal>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <tuple>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <accel/accelerator.h>
#include <accel/async_save.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::sharded_checkpoint_test {
namespace {

using Plugin = std::optional<FullyShardedDataParallelPlugin>;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Linear(5, 37));
    second = register_module("second", torch::nn::Linear(37, 3));
  }
  at::Tensor forward(const at::Tensor& input) { return second(first(input).tanh()); }
};
TORCH_MODULE(Net);

AcceleratorOptions options_with(const Plugin& plugin, std::optional<int> zero_stage = {}) {
  AcceleratorOptions options;
  options.fsdp_plugin = plugin;
  if (zero_stage) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = zero_stage};
  return options;
}

// A run that can be cut anywhere: every rank sees the same batch, so that the number of ranks changes no gradient beyond
// the rounding of a mean of equal numbers, of which there is none for 1, 2 and 4 ranks.
struct TrainingRun {
  explicit TrainingRun(const Plugin& plugin, std::optional<int> zero_stage = {})
      : accelerator(options_with(plugin, zero_stage)) {
    set_seed(7);
    net = Net();
    // Its memory is in column-major order: no part of it is a range of a file.
    net->first->weight.set_data(net->first->weight.t().contiguous().t());
    // Two groups, of which one has no decay.
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{net->first->weight, net->second->weight});
    groups.emplace_back(std::vector<at::Tensor>{net->first->bias, net->second->bias},
                        std::make_unique<torch::optim::AdamWOptions>(
                            torch::optim::AdamWOptions(0.02).weight_decay(0.0)));
    adam = std::make_shared<torch::optim::AdamW>(std::move(groups),
                                                 torch::optim::AdamWOptions(0.01).amsgrad(true));
    auto [prepared, stepped] = accelerator.prepare(net, adam);
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step, ++done) {
      const at::Tensor input = (at::arange(20, at::kFloat).view({4, 5}) + done) / 20.0;
      accelerator.backward((*model)(input).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  [[nodiscard]] at::Tensor parameters() const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& parameter : net->parameters())
      parts.push_back(parameter.detach().flatten());
    return at::cat(parts);
  }

  Accelerator accelerator;
  Net net{nullptr};
  std::shared_ptr<torch::optim::AdamW> adam;
  std::optional<Prepared<Net>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  int done = 0;
};

struct Way {
  int ranks = 1;
  bool is_sharded = false;
  ShardingStrategy strategy = ShardingStrategy::kFullShard;
  bool by_tensor = false;
  std::optional<int> zero_stage = std::nullopt;

  [[nodiscard]] Plugin plugin() const {
    if (!is_sharded) return std::nullopt;
    return FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                          .shard_by_tensor = by_tensor};
  }
};

const Way kByTensor{4, true, ShardingStrategy::kFullShard, true};
const Way kZeroOne{2, false, ShardingStrategy::kFullShard, false, 1};

class ResumesAs : public ::testing::TestWithParam<std::tuple<Way, Way>> {};

// Three steps, a checkpoint in these files, and three steps as the other way.
void expect_to_resume(const Way& before, const Way& after, const SaveStateOptions& files) {
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(before.ranks, [&] {
    TrainingRun run(before.plugin(), before.zero_stage);
    run.train(3);
    run.accelerator.save_state(folder / "state", files);
    run.train(3);
    if (run.accelerator.is_main_process()) {
      safetensors::save_file({{"parameters", run.parameters()}}, folder / "expected.safetensors");
    }
  });
  test::run_ranks(after.ranks, [&] {
    TrainingRun run(after.plugin(), after.zero_stage);
    run.train(1);  // another state, which loading replaces
    run.accelerator.load_state(folder / "state");
    run.done = 3;
    run.train(3);
    const auto expected = safetensors::load_file(folder / "expected.safetensors");
    EXPECT_TRUE(expected.at("parameters").equal(run.parameters()));
  });
}

TEST_P(ResumesAs, AnyOtherAndTrainsToTheSameBits) {
  const auto& [before, after] = GetParam();
  expect_to_resume(before, after, {});
}

INSTANTIATE_TEST_SUITE_P(Ways,
                         ResumesAs,
                         ::testing::Values(std::tuple(Way{2, true}, Way{2, true}),
                                           std::tuple(Way{2, true}, Way{4, true}),
                                           std::tuple(Way{4, true}, Way{1, false}),
                                           std::tuple(Way{1, false}, Way{2, true}),
                                           std::tuple(Way{2, false}, Way{2, true}),
                                           std::tuple(Way{2, true}, Way{2, false}),
                                           std::tuple(kByTensor, Way{4, true}),
                                           std::tuple(Way{2, true}, kByTensor),
                                           std::tuple(kZeroOne, Way{2, true}),
                                           std::tuple(Way{4, true}, kZeroOne)));

TEST(FilesOfAccelerate, AreGatheredFromShardsAndDividedAgain) {
  const SaveStateOptions pickled{.safe_serialization = false,
                                 .format = CheckpointFormat::kAccelerate};
  expect_to_resume({2, true}, {4, true}, pickled);
  expect_to_resume(kZeroOne, {1, false}, {.format = CheckpointFormat::kAccelerate});
  expect_to_resume({1, false}, {2, true}, {.safe_serialization = false});
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class IsSavedAgainAs : public ::testing::TestWithParam<std::tuple<Way, Way>> {};

// Weights, states of the optimizer and everything else that is no random state: the files tell, byte by byte.
TEST_P(IsSavedAgainAs, TheSameFiles) {
  const auto [before, after] = GetParam();
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(before.ranks, [&, before = before] {
    TrainingRun run(before.plugin(), before.zero_stage);
    run.train(2);
    run.accelerator.save_state(folder / "before");
  });
  test::run_ranks(after.ranks, [&, after = after] {
    TrainingRun run(after.plugin(), after.zero_stage);
    run.train(1);
    run.accelerator.load_state(folder / "before");
    run.accelerator.save_state(folder / "after");
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* name : {"model.safetensors", "optimizer.safetensors", "optimizer.json"}) {
    ASSERT_GT(contents(folder / "before" / name).size(), 100u);
    EXPECT_TRUE(contents(folder / "before" / name) == contents(folder / "after" / name)) << name;
  }
}

constexpr ShardingStrategy kGradOp = ShardingStrategy::kShardGradOp;

INSTANTIATE_TEST_SUITE_P(Ways,
                         IsSavedAgainAs,
                         ::testing::Values(std::tuple(Way{3, true}, Way{1, false}),
                                           std::tuple(Way{3, true}, Way{4, true, kGradOp}),
                                           std::tuple(Way{4, true}, Way{3, false}),
                                           std::tuple(Way{2, true, kGradOp}, Way{3, true}),
                                           std::tuple(Way{1, false}, Way{3, true}),
                                           std::tuple(Way{3, true}, kByTensor),
                                           std::tuple(kByTensor, kZeroOne),
                                           std::tuple(kZeroOne, Way{1, false})));

TEST(AsyncSave, HoldsTheStateOfTheMomentItWasBegun) {
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(2, [&] {
    TrainingRun run(FullyShardedDataParallelPlugin{});
    run.train(3);
    run.accelerator.save_state(folder / "expected");
    AsyncSave saving =
        async_save_checkpoint(folder / "state", run.accelerator.checkpoint_objects(), {.step = 3});
    run.train(3);
    const CheckpointInfo saved = saving.wait();
    EXPECT_TRUE(saving.is_done());
    EXPECT_EQ(saved.step, 3);
    EXPECT_EQ(saved.folder, folder / "state");
    // Once more, without waiting for it: the next save does.
    AsyncSave next =
        async_save_checkpoint(folder / "state", run.accelerator.checkpoint_objects(), {.step = 6});
    run.accelerator.save_state(folder / "last");
    EXPECT_TRUE(next.is_done());
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(read_checkpoint_info(folder / "state").step, 6);
  for (const char* name : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(contents(folder / "last" / name) == contents(folder / "state" / name)) << name;
}

// Lets no shared memory be mapped again.
void replace_shared_memory() {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("/memfd:")) ::dup2(null, std::stoi(entry.path().filename().string()));
  }
}

TEST(ShardedLoad, EndsWithTheErrorThatEndedItWhateverFailsAfterwards) {
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(2, [&] {
    TrainingRun run(FullyShardedDataParallelPlugin{});
    run.accelerator.save_state(folder / "state");
    const auto hook = run.accelerator.register_load_state_pre_hook([](const auto&...) {
      replace_shared_memory();
      throw std::runtime_error("the hook wants nothing of it");
    });
    try {
      run.accelerator.load_state(folder / "state");
      ADD_FAILURE() << "the load went on";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("the hook wants nothing of it"));
    }
  });
}

TEST(AsyncSave, RankThatHostsTheStoreStaysUntilAllKnowTheEnd) {
  const test::ScratchFolder scratch;
  test::run_ranks(3,
                  [&] {
                    TrainingRun run(FullyShardedDataParallelPlugin{});
                    run.train(1);
                    async_save_checkpoint(scratch.path() / "state",
                                          run.accelerator.checkpoint_objects())
                        .wait();
                    if (run.accelerator.is_main_process()) std::_Exit(0);
                  },
                  {.rank_0_hosts_store = true});
}

TEST(AsyncSave, TellsEveryRankWhatWentWrongOnOne) {
  const test::ScratchFolder scratch;
  const std::filesystem::path& folder = scratch.path();
  test::run_ranks(2, [&] {
    TrainingRun run(FullyShardedDataParallelPlugin{});
    run.train(1);
    std::signal(SIGXFSZ, SIG_IGN);
    const auto limit_files_of_rank_1 = [&](rlim_t bytes) {
      const rlimit limit{bytes, RLIM_INFINITY};
      if (run.accelerator.process_index() == 1) {
        ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
      }
    };
    limit_files_of_rank_1(200);
    const auto expect_error = [](auto act) {
      try {
        act();
        ADD_FAILURE() << "a save succeeded that could not write";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kFileIo);
        EXPECT_NE(std::string(error.what()).find("rank 1"), std::string::npos) << error.what();
      }
    };
    AsyncSave saving =
        async_save_checkpoint(folder / "state", run.accelerator.checkpoint_objects());
    expect_error([&] { saving.wait(); });
    EXPECT_NO_THROW(saving.wait());  // it was told
    AsyncSave forgotten =
        async_save_checkpoint(folder / "state", run.accelerator.checkpoint_objects());
    while (!forgotten.is_done()) std::this_thread::yield();
    limit_files_of_rank_1(RLIM_INFINITY);
    expect_error([&] { run.accelerator.save_state(folder / "other"); });
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

}  // namespace
}  // namespace accel::sharded_checkpoint_test
