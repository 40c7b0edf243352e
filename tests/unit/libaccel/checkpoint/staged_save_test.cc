// Saves in the background whose copies are made before the update (AsyncCopy::kBeforeUpdate): each file has the bits of the moment of
// the call, although the save's thread has copied nothing of it when training goes on.

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/rand.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/async_save.h>
#include <accel/checkpoint.h>
#include <accel/deepspeed.h>
#include <accel/diloco.h>
#include <accel/error.h>
#include <accel/fsdp.h>
#include <accel/local_sgd.h>
#include <accel/lomo.h>
#include <accel/random.h>
#include <accel/schedule_free.h>
#include <accel/state.h>
#include <accel/state_dict_type.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/copy_gate.h"
#include "tests/support/error_of.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::staged_save_test {
namespace {

namespace fs = std::filesystem;
using test::CopyGate;
using test::error_of;
using ::testing::HasSubstr;

constexpr int kWidth = 700;  // weights of 1.9 MB: two chunks
constexpr SaveStateOptions kBeforeUpdate = {.async_copy = AsyncCopy::kBeforeUpdate};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear second{nullptr};
  NetImpl() {
    first = register_module("first", torch::nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    second = register_module("second", torch::nn::Linear(kWidth, kWidth));
  }
  at::Tensor forward(const at::Tensor& input) { return second(norm(first(input)).tanh()); }
};
TORCH_MODULE(Net);

enum class Layout { kCopies, kZero1, kFullShard, kFullShardByRank0, kGradOp };
enum class Kind { kAdamW, kFusedAdamW, kSgd, kScheduleFree, kLomo };

struct Case {
  std::string name;
  Layout layout = Layout::kCopies;
  Kind kind = Kind::kAdamW;
  int num_ranks = 1;
  std::string precision = "no";
  std::optional<std::string> policy;  // FSDP's mixed_precision_policy
};

struct Training {
  explicit Training(const Case& of) : accelerator(options_for(of)), kind(of.kind) {
    set_seed(7);
    net = Net();
    auto [prepared, stepped] = accelerator.prepare(net, make(kind));
    model.emplace(prepared);
    optimizer.emplace(stepped);
    if (kind == Kind::kFusedAdamW) optimizer->use_fused_kernels();
    if (kind == Kind::kScheduleFree) optimizer->train();
  }

  static AcceleratorOptions options_for(const Case& of) {
    AcceleratorOptions options;
    options.mixed_precision = of.precision;
    if (of.layout == Layout::kZero1) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    if (of.layout == Layout::kFullShard) options.fsdp_plugin.emplace();
    if (of.layout == Layout::kFullShardByRank0)
      options.fsdp_plugin = FullyShardedDataParallelPlugin{.state_dict_type = StateDictType::kFull};
    if (of.layout == Layout::kGradOp)
      options.fsdp_plugin =
          FullyShardedDataParallelPlugin{.sharding_strategy = ShardingStrategy::kShardGradOp};
    if (of.policy) options.fsdp_plugin->mixed_precision_policy = *of.policy;
    return options;
  }
  std::shared_ptr<torch::optim::Optimizer> make(Kind kind) const {
    const std::vector<at::Tensor> parameters = net->parameters();
    if (kind == Kind::kSgd)
      return std::make_shared<torch::optim::SGD>(parameters,
                                                 torch::optim::SGDOptions(0.01).momentum(0.9));
    if (kind == Kind::kScheduleFree) return std::make_shared<AdamWScheduleFree>(parameters, 0.01);
    if (kind == Kind::kLomo) return std::make_shared<Lomo>(parameters, 0.01);
    return std::make_shared<torch::optim::AdamW>(parameters, 0.01);
  }

  void forward() { (void)(*model)(input()); }
  void train(int steps) {
    for (int step = 0; step < steps; ++step, ++done) {
      const at::Tensor loss = (*model)(input()).square().mean();
      if (kind == Kind::kLomo) {
        accelerator.backward(loss, {.learning_rate = 0.01});
        continue;
      }
      accelerator.backward(loss);
      optimizer->step();
      optimizer->zero_grad();
    }
  }
  [[nodiscard]] at::Tensor input() const {
    return at::arange(2 * kWidth, at::kFloat).view({2, kWidth}) / kWidth + done;
  }

  Accelerator accelerator;
  Kind kind;
  Net net{nullptr};
  std::optional<Prepared<Net>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  int done = 0;  // steps
};

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void expect_same_folders(const fs::path& saved, const fs::path& expected) {
  int num_files = 0;
  for (const auto& entry : fs::directory_iterator(expected)) {
    const std::string name = entry.path().filename().string();
    ASSERT_TRUE(contents(saved / name) == contents(entry.path())) << name;
    ++num_files;
  }
  EXPECT_GE(num_files, 4) << "a model, an optimizer, generators, the manifest";
}

// Saves to `folder` / "saved" with the save's thread held until `meanwhile` is over; what the same moment is with a save in the
// foreground lies in "expected".
void save_around(const fs::path& folder,
                 Training& run,
                 const std::function<void(CopyGate&)>& meanwhile,
                 SaveStateOptions options = kBeforeUpdate) {
  run.accelerator.save_state(folder / "expected", options);
  CopyGate gate;
  run.accelerator.async_save_state(folder / "saved", options);
  if (run.accelerator.is_main_process()) {
    EXPECT_TRUE(at::hasGlobalCallbacks()) << "nothing waits";
  }
  meanwhile(gate);
  gate.open();
  EXPECT_TRUE(run.accelerator.wait_for_save().has_value());
}

class StagedSave : public ::testing::TestWithParam<Case> {
 protected:
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(StagedSave, HasTheBitsOfItsMomentAlthoughStepsCameFirst) {
  test::run_ranks(GetParam().num_ranks, [&] {
    Training run(GetParam());
    run.train(2);
    save_around(folder_, run, [&](CopyGate&) {
      const at::DisableRecordFunctionGuard unseen;  // libaccel's own writers say so themselves
      run.train(2);
    });
  });
  if (test::rank_of_this_process() >= 0) return;
  expect_same_folders(folder_ / "saved", folder_ / "expected");
}

TEST_P(StagedSave, HasTheBitsOfItsMomentAlthoughAStepCameInBetween) {
  test::run_ranks(GetParam().num_ranks, [&] {
    Training run(GetParam());
    run.train(2);
    save_around(folder_, run, [&](CopyGate& gate) {
      gate.let_through(1);
      run.forward();
      run.train(1);
    });
  });
  if (test::rank_of_this_process() >= 0) return;
  expect_same_folders(folder_ / "saved", folder_ / "expected");
}

TEST_P(StagedSave, LeavesTrainingWithTheNumbersThatItHasWithoutASave) {
  test::run_ranks(GetParam().num_ranks, [&] {
    Training run(GetParam());
    run.train(2);
    save_around(folder_, run, [&](CopyGate&) { run.train(2); });
    run.accelerator.save_state(folder_ / "after");
    Training other(GetParam());
    other.train(4);
    other.accelerator.save_state(folder_ / "without");
  });
  if (test::rank_of_this_process() >= 0) return;
  const std::string after = contents(folder_ / "after" / "model.safetensors");
  ASSERT_GT(after.size(), 2u * kWidth * kWidth * sizeof(float));
  EXPECT_TRUE(after == contents(folder_ / "without" / "model.safetensors"));
}

INSTANTIATE_TEST_SUITE_P(
    Runs,
    StagedSave,
    ::testing::Values(Case{"AdamW"},
                      Case{"FusedAdamW", Layout::kCopies, Kind::kFusedAdamW},
                      Case{"Sgd", Layout::kCopies, Kind::kSgd},
                      Case{"Lomo", Layout::kCopies, Kind::kLomo},
                      Case{"ScheduleFree", Layout::kCopies, Kind::kScheduleFree},
                      Case{"Fp16", Layout::kCopies, Kind::kAdamW, 1, "fp16"},
                      Case{"Ddp", Layout::kCopies, Kind::kAdamW, 2},
                      Case{"DdpLomo", Layout::kCopies, Kind::kLomo, 2},
                      Case{"Zero1", Layout::kZero1, Kind::kAdamW, 2},
                      Case{"FullShard", Layout::kFullShard, Kind::kAdamW, 2},
                      Case{"FullShardFused", Layout::kFullShard, Kind::kFusedAdamW, 2},
                      Case{"FullShardBf16", Layout::kFullShard, Kind::kAdamW, 2, "bf16"},
                      Case{"FullShardMasters", Layout::kFullShard, Kind::kAdamW, 2, "no", "bf16"},
                      Case{"Rank0", Layout::kFullShardByRank0, Kind::kAdamW, 2},
                      Case{"Rank0Bf16", Layout::kFullShardByRank0, Kind::kAdamW, 2, "bf16"},
                      Case{
                          "Rank0Masters", Layout::kFullShardByRank0, Kind::kAdamW, 2, "no", "bf16"},
                      Case{"GradOp", Layout::kGradOp, Kind::kAdamW, 2},
                      Case{"GradOpBf16", Layout::kGradOp, Kind::kAdamW, 2, "bf16"}),
    [](const auto& of) { return of.param.name; });

class StagedSaveOfMoment : public ::testing::Test {
 protected:
  // Saves while `meanwhile` writes, and compares.
  void expect_moment_kept(const Case& of,
                          const std::function<void(Training&)>& meanwhile,
                          const SaveStateOptions& options = kBeforeUpdate) {
    test::run_ranks(of.num_ranks, [&] {
      Training run(of);
      run.train(2);
      save_around(
          folder_, run, [&](CopyGate&) { meanwhile(run); }, options);
    });
    if (test::rank_of_this_process() >= 0) return;
    expect_same_folders(folder_ / "saved", folder_ / "expected");
  }

  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_F(StagedSaveOfMoment, KeepsBuffersThatAForwardWritesTo) {
  expect_moment_kept({"AdamW"}, [](Training& run) {
    const at::Tensor before = run.net->norm->running_mean.clone();
    run.forward();
    EXPECT_FALSE(before.equal(run.net->norm->running_mean)) << "nothing to tell apart";
  });
}

TEST_F(StagedSaveOfMoment, KeepsItsBitsInFilesOfAccelerate) {
  expect_moment_kept({"AdamW"},
                     [](Training& run) { run.train(2); },
                     {.safe_serialization = false,
                      .format = CheckpointFormat::kAccelerate,
                      .async_copy = AsyncCopy::kBeforeUpdate});
}

TEST_F(StagedSaveOfMoment, KeepsWeightsWhoseScheduleFreeModeChanges) {
  expect_moment_kept({"ScheduleFree", Layout::kCopies, Kind::kScheduleFree}, [](Training& run) {
    const at::DisableRecordFunctionGuard unseen;
    run.optimizer->eval();
    run.optimizer->train();
    run.train(1);
    run.optimizer->eval();
  });
}

TEST_F(StagedSaveOfMoment, KeepsCopiesThatAreAveraged) {
  expect_moment_kept({"Ddp", Layout::kCopies, Kind::kAdamW, 2}, [](Training& run) {
    const at::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unseen;
    LocalSGD local_sgd(run.accelerator, *run.model, 1);
    local_sgd.step();
  });
}

TEST_F(StagedSaveOfMoment, KeepsFragmentsThatDiLoCoMerges) {
  test::run_ranks(2, [&] {
    Training run({"Ddp", Layout::kCopies, Kind::kAdamW, 2});
    DiLoCo diloco(run.accelerator, *run.model, *run.optimizer, {.sync_every = 2});
    run.train(1);
    diloco.step();
    save_around(folder_, run, [&](CopyGate&) {
      const at::Tensor before = run.net->first->weight.detach().clone();
      const at::DisableRecordFunctionGuard unseen;
      diloco.step();  // begins an exchange and merges it, with no step of the optimizer before it
      EXPECT_FALSE(before.equal(run.net->first->weight)) << "nothing to tell apart";
    });
  });
  if (test::rank_of_this_process() >= 0) return;
  expect_same_folders(folder_ / "saved", folder_ / "expected");
}

TEST_F(StagedSaveOfMoment, KeepsWeightsThatTheProgramWritesTo) {
  expect_moment_kept({"AdamW"}, [](Training& run) {
    const at::NoGradGuard no_grad;
    run.net->first->weight.clamp_(-1e-3, 1e-3);
    for (const at::Tensor& parameter : run.net->parameters()) parameter.mul_(0.5);  // an average
  });
}

TEST_F(StagedSaveOfMoment, KeepsWeightsThatAnOptimizerStepsPastPrepare) {
  // LibTorch's SGD writes through data(), whose version is its own.
  expect_moment_kept({"Sgd", Layout::kCopies, Kind::kSgd}, [](Training& run) {
    run.accelerator.backward((*run.model)(run.input()).square().mean());
    run.optimizer->optimizer().step();
  });
}

TEST_F(StagedSaveOfMoment, KeepsWeightsThatRanksSendEachOther) {
  expect_moment_kept({"Ddp", Layout::kCopies, Kind::kAdamW, 2}, [](Training& run) {
    const at::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unseen;
    ProcessGroup& group = *PartialState::process_group();
    at::Tensor first = run.net->first->weight.detach();
    at::Tensor second = run.net->second->weight.detach();
    if (group.rank() == 1) first.fill_(5);  // who saves nothing
    group.broadcast_(first, 1, "a test");
    group.all_reduce_(second, Reduction::kSum, "a test");
    EXPECT_EQ(first.min().item<float>(), 5);
  });
}

TEST_F(StagedSaveOfMoment, KeepsAModelThatIsGone) {
  expect_moment_kept({"AdamW"}, [](Training& run) {
    run.accelerator.free_memory();
    run.model.reset();
    run.optimizer.reset();
    run.net = nullptr;
  });
}

TEST_F(StagedSaveOfMoment, KeepsShardsThatAreGone) {
  expect_moment_kept({"FullShard", Layout::kFullShard, Kind::kAdamW, 2}, [](Training& run) {
    run.accelerator.free_memory();
    run.model.reset();
    run.optimizer.reset();
    run.net = nullptr;
  });
}

TEST_F(StagedSaveOfMoment, KeepsTheStateOfGenerators) {
  expect_moment_kept({"AdamW"}, [](Training&) { (void)at::rand({1000}); });
}

TEST_F(StagedSaveOfMoment, FailsOnAllRanksNamingWhatWasWrittenToByItsAddress) {
  test::run_ranks(2, [&] {
    Training run({"Ddp", Layout::kCopies, Kind::kAdamW, 2});
    run.train(1);
    CopyGate gate;
    run.accelerator.async_save_state(folder_ / "saved", kBeforeUpdate);
    if (run.accelerator.process_index() == 0) {
      run.net->second->weight.data_ptr<float>()[0] = 9;
      run.net->second->weight.unsafeGetTensorImpl()->bump_version();
    }
    gate.open();

    const Error error = error_of([&] { (void)run.accelerator.wait_for_save(); });

    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("rank 0"));
    EXPECT_THAT(error.what(), HasSubstr("second.weight of model was written to"));
    EXPECT_THAT(error.remedy(), HasSubstr("kAtOnce"));
    run.train(1);
    run.accelerator.save_state(folder_ / "next");
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_THAT(test::names_in(folder_), ::testing::ElementsAre("next"));
}

TEST_F(StagedSaveOfMoment, IsFollowedByAnotherOneOfItsOwn) {
  test::run_ranks(1, [&] {
    Training run({"AdamW"});
    for (const char* number : {"0", "1", "2"}) {
      run.train(1);
      run.accelerator.save_state(folder_ / "expected" / number);
      run.accelerator.async_save_state(folder_ / "saved" / number, kBeforeUpdate);
    }
    run.train(1);
    (void)run.accelerator.wait_for_save();
  });
  if (test::rank_of_this_process() >= 0) return;
  for (const char* number : {"0", "1", "2"})
    expect_same_folders(folder_ / "saved" / number, folder_ / "expected" / number);
}

TEST_F(StagedSaveOfMoment, IsWholeWhenTheProgramEndsMeanwhile) {
  test::run_ranks(1, [&] {
    auto& run = *new Training({"AdamW"});  // NOLINT: lives to the end
    run.train(1);
    run.accelerator.save_state(folder_ / "expected");
    run.accelerator.async_save_state(folder_ / "saved", kBeforeUpdate);
    std::exit(::testing::Test::HasFailure() ? 1 : 0);
  });
  if (test::rank_of_this_process() >= 0) return;
  expect_same_folders(folder_ / "saved", folder_ / "expected");
}

// Its forward scales rows of the weight down.
TEST_F(StagedSaveOfMoment, KeepsAnEmbeddingThatItsForwardScales) {
  const auto save = [](const fs::path& folder, torch::nn::Embedding& net, AsyncCopy copy) {
    return async_save_checkpoint(
        folder, {.models = {net.ptr().get()}}, {.files = {.async_copy = copy}});
  };
  torch::nn::Embedding net(torch::nn::EmbeddingOptions(20'000, 50).max_norm(0.1));
  save(folder_ / "expected", net, AsyncCopy::kAtOnce).wait();
  CopyGate gate;
  AsyncSave saving = save(folder_ / "saved", net, AsyncCopy::kBeforeUpdate);
  (void)net(at::arange(20'000, at::kLong));
  EXPECT_LT(net->weight.norm().item<float>(), 100);
  gate.open();
  saving.wait();
  EXPECT_TRUE(contents(folder_ / "saved" / "model.safetensors") ==
              contents(folder_ / "expected" / "model.safetensors"));
}

}  // namespace
}  // namespace accel::staged_save_test
