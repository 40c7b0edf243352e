// Models that are divided over devices, beside the same on the CPU: tensors of a fake device (support/fake_tensors.h), whose numbers
// have the bits of the CPU, through the memory of the host. Tensors of the two never mix, as on a GPU.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/memory_use.h>
#include <accel/operations.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>
#include <accel/with_params.h>

#include "tests/support/error_of.h"
#include "tests/support/model_zoo.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::device_sharding_test {
namespace {

using ::testing::HasSubstr;

// A table that is tied to the output, layers in between, one of which nobody uses, one that is frozen, and memory in column-major order.
struct TiedNetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear third{nullptr};
  torch::nn::Linear spare{nullptr};
  torch::nn::Linear frozen{nullptr};

  TiedNetImpl() {
    table = register_module("table", torch::nn::Embedding(11, 6));
    first = register_module("first", torch::nn::Linear(6, 37));
    second = register_module("second", torch::nn::Linear(37, 19));
    third = register_module("third", torch::nn::Linear(19, 6));
    spare = register_module("spare", torch::nn::Linear(6, 9));
    frozen = register_module("frozen", torch::nn::Linear(6, 6));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    first->weight.set_data(first->weight.t().contiguous().t());
  }
  at::Tensor forward(const at::Tensor& tokens) {
    const at::Tensor hidden = third(second(first(table(tokens)).tanh()).tanh());
    return frozen(hidden).matmul(table->weight.t());
  }
};
TORCH_MODULE(TiedNet);

enum class Divided { kStates, kGradients, kAll };

struct Way {
  const char* name;
  Divided divided = Divided::kStates;
  bool is_sgd = false;
  int accumulation = 1;
  bool clips = false;
  const char* policy = nullptr;
  bool by_tensor = false;
  bool is_fused = false;
};

void PrintTo(const Way& way, std::ostream* out) {
  *out << way.name;
}

AcceleratorOptions options_of(const Way& way) {
  AcceleratorOptions options;
  options.gradient_accumulation_steps = way.accumulation;
  options.ddp.gradient_as_bucket_view = false;  // c10d's reducer, as on a GPU
  if (way.divided == Divided::kStates) {
    options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    return options;
  }
  FullyShardedDataParallelPlugin plugin;
  plugin.sharding_strategy =
      way.divided == Divided::kAll ? ShardingStrategy::kFullShard : ShardingStrategy::kShardGradOp;
  plugin.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
  plugin.min_num_params = 60;
  plugin.shard_by_tensor = way.by_tensor;
  if (way.policy != nullptr) plugin.mixed_precision_policy = way.policy;
  options.fsdp_plugin = plugin;
  return options;
}

struct DividedRun {
  explicit DividedRun(const Way& how) : way(how), accelerator(options_of(how)) {
    set_seed(accelerator.process_index() + 1);  // rank 0 gives its model to the others
    net = TiedNet();
    if (way.divided == Divided::kStates) {  // DDP wants a gradient of each
      for (at::Tensor& parameter : net->spare->parameters()) parameter.set_requires_grad(false);
    }
    if (way.is_sgd)
      optimizer = std::make_shared<torch::optim::SGD>(
          net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    else
      optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(),
                                                        torch::optim::AdamWOptions(0.01));
    auto [prepared, stepped] = accelerator.prepare(net, optimizer);
    model.emplace(prepared);
    stepping.emplace(stepped);
    if (way.is_fused) stepping->use_fused_kernels();
  }

  // What each rank sees is its own.
  at::Tensor tokens() const {
    return ((at::arange(8, at::kLong) * 3 + done + 5 * accelerator.process_index()) % 11)
        .to(accelerator.device());
  }

  void train(int batches) {
    for (int batch = 0; batch < batches; ++batch, ++done) {
      auto accumulating = accelerator.accumulate(*model);
      accelerator.backward(((*model)(tokens()) - 0.5).square().mean());
      if (way.clips && accelerator.sync_gradients())
        accelerator.clip_grad_norm_((*model)->parameters(), 0.05);
      stepping->step();
      stepping->zero_grad();
    }
  }

  void write(const std::filesystem::path& file) {
    safetensors::TensorMap all;
    const StateView weights = accelerator.get_state_dict(*model);
    const StateView states = accelerator.get_optimizer_state_dict(*stepping);
    for (const auto& [name, tensor] : weights.tensors) all.emplace(name, tensor.values.cpu());
    for (const auto& [name, tensor] : states.tensors)
      all.emplace("state " + name, tensor.values.cpu());
    if (accelerator.is_main_process()) safetensors::save_file(all, file);
  }

  Way way;
  Accelerator accelerator;
  TiedNet net{nullptr};
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::optional<Prepared<TiedNet>> model;
  std::optional<AcceleratedOptimizer> stepping;
  int done = 0;
};

// Sums of the CPU's library of matrices may depend on where operands lie.
const std::map<std::string, std::string> kSameSums = {{"MKL_CBWR", "COMPATIBLE"}};

test::RankGroupOptions on_the_cpu() {
  return {.env = kSameSums};
}

test::RankGroupOptions on_the_device(std::map<std::string, std::string> more = {}) {
  more["ACCEL_DEVICE_LIBRARY"] =
      std::string(std::getenv("ACCEL_BUILD_DIR")) + "/tests/libaccel_fake_devices.so";
  more["ACCELERATE_TORCH_DEVICE"] = "cuda";
  more["ACCEL_FAKE_TENSORS"] = "1";
  more.insert(kSameSums.begin(), kSameSums.end());
  return {.env = std::move(more)};
}

void expect_equal_files(const std::filesystem::path& one, const std::filesystem::path& other) {
  const auto a = safetensors::load_file(one);
  const auto b = safetensors::load_file(other);
  ASSERT_FALSE(a.empty());
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

class DeviceSharding : public ::testing::TestWithParam<Way> {};

TEST_P(DeviceSharding, TrainsToTheBitsOfTheCpu) {
  const test::ScratchFolder scratch;
  test::run_ranks(
      2,
      [&] {
        DividedRun run(GetParam());
        EXPECT_TRUE(run.accelerator.device().is_cpu());
        run.train(6);
        run.write(scratch.path() / "cpu.safetensors");
      },
      on_the_cpu());
  test::run_ranks(
      2,
      [&] {
        DividedRun run(GetParam());
        EXPECT_FALSE(run.accelerator.device().is_cpu());
        run.train(6);
        run.write(scratch.path() / "device.safetensors");
      },
      on_the_device());

  expect_equal_files(scratch.path() / "cpu.safetensors", scratch.path() / "device.safetensors");
}

TEST_P(DeviceSharding, GoesOnFromACheckpointOfTheOtherKind) {
  const test::ScratchFolder scratch;
  const auto begin = [&](const char* state, const char* end) {
    DividedRun run(GetParam());
    run.train(3 * run.way.accumulation);
    run.accelerator.save_state(scratch.path() / state);
    run.train(3 * run.way.accumulation);
    run.write(scratch.path() / end);
  };
  const auto go_on = [&](const char* state, const char* end) {
    DividedRun run(GetParam());
    run.train(run.way.accumulation);  // another state, which loading replaces
    run.accelerator.load_state(scratch.path() / state);
    run.done = 3 * run.way.accumulation;
    run.train(3 * run.way.accumulation);
    run.write(scratch.path() / end);
  };
  test::run_ranks(
      2, [&] { begin("of_cpu", "cpu.safetensors"); }, on_the_cpu());
  test::run_ranks(
      2, [&] { begin("of_device", "device.safetensors"); }, on_the_device());
  test::run_ranks(
      2, [&] { go_on("of_device", "cpu_after.safetensors"); }, on_the_cpu());
  test::run_ranks(
      2, [&] { go_on("of_cpu", "device_after.safetensors"); }, on_the_device());

  expect_equal_files(scratch.path() / "cpu.safetensors", scratch.path() / "device.safetensors");
  expect_equal_files(scratch.path() / "cpu.safetensors", scratch.path() / "cpu_after.safetensors");
  expect_equal_files(scratch.path() / "cpu.safetensors",
                     scratch.path() / "device_after.safetensors");
}

std::string way_name(const ::testing::TestParamInfo<Way>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(OptimizerStates,
                         DeviceSharding,
                         ::testing::Values(Way{"zero_1"},
                                           Way{"zero_1_sgd", Divided::kStates, true},
                                           Way{"zero_1_clipped", Divided::kStates, false, 2, true}),
                         way_name);

INSTANTIATE_TEST_SUITE_P(
    Gradients,
    DeviceSharding,
    ::testing::Values(Way{"grad_op", Divided::kGradients},
                      Way{"grad_op_sgd", Divided::kGradients, true, 2},
                      Way{"grad_op_clipped", Divided::kGradients, false, 1, true},
                      Way{"grad_op_bf16", Divided::kGradients, false, 1, false, "bf16"}),
    way_name);

INSTANTIATE_TEST_SUITE_P(
    Parameters,
    DeviceSharding,
    ::testing::Values(
        Way{"full_shard", Divided::kAll},
        Way{"full_shard_sgd", Divided::kAll, true, 2},
        Way{"full_shard_clipped", Divided::kAll, false, 1, true},
        Way{"full_shard_bf16", Divided::kAll, false, 1, false, "bf16"},
        Way{"full_shard_by_tensor", Divided::kAll, false, 1, false, nullptr, true},
        Way{"full_shard_fused", Divided::kAll, false, 1, false, nullptr, false, true}),
    way_name);

// Weights after four steps, by names of kinds.
safetensors::TensorMap zoo_trained_by(ShardingStrategy strategy) {
  AcceleratorOptions options;
  options.fsdp_plugin =
      FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                     .auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap,
                                     .min_num_params = 60};
  Accelerator accelerator(options);
  safetensors::TensorMap trained;
  for (const test::ZooEntry& entry : test::model_zoo()) {
    if (entry.shares_storage) continue;
    // Its ranks run different modules (below).
    if (entry.name == std::string("Experts")) continue;
    // LibTorch wants a kernel of the device's own.
    if (entry.name == std::string("Lstm")) continue;
    SCOPED_TRACE(entry.name);
    set_seed(6);
    auto net = entry.make();
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                   torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 4; ++step) {
      net->begin_batch(static_cast<std::uint64_t>(step));
      const at::Tensor input =
          (at::arange(64, at::kFloat).view({4, 16}) + step + 7 * accelerator.process_index()).sin();
      accelerator.backward(model(input.to(accelerator.device())).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (const auto& [name, tensor] : accelerator.get_state_dict(model).tensors)
      trained.emplace(std::string(entry.name) + "." + name, tensor.values.cpu());
    accelerator.free_memory();
  }
  return trained;
}

TEST(DeviceShardingZoo, UnitsThatComeAndGoTrainEachKindOfModelAsThoseThatStay) {
  const test::ScratchFolder scratch;
  const auto train = [&](ShardingStrategy strategy, const char* file) {
    const auto trained = zoo_trained_by(strategy);
    if (PartialState().is_main_process()) safetensors::save_file(trained, scratch.path() / file);
  };
  test::run_ranks(
      2, [&] { train(ShardingStrategy::kShardGradOp, "stay.safetensors"); }, on_the_device());
  test::run_ranks(
      2, [&] { train(ShardingStrategy::kFullShard, "come.safetensors"); }, on_the_device());

  expect_equal_files(scratch.path() / "stay.safetensors", scratch.path() / "come.safetensors");
}

TEST(DeviceShardingMemory, HoldsShardsAndThreeUnitsAtMost) {
  test::run_ranks(
      2,
      [] {
        DividedRun run({"full_shard", Divided::kAll});
        run.train(2);
        const MemoryUse use = memory_use(*run.model);
        std::int64_t trained = 0;
        for (const at::Tensor& parameter : run.net->parameters())
          if (parameter.requires_grad()) trained += static_cast<std::int64_t>(parameter.nbytes());
        EXPECT_LT(use.parameters, trained * 3 / 4);
        EXPECT_EQ(use.masters, 0);
        EXPECT_GT(use.peak_paged, 0);
        EXPECT_LE(use.peak_paged, std::int64_t{3} * 4 * (37 * 19 + 19 + 64));
        EXPECT_EQ(use.paged, 0) << "a step gives all units back";
      },
      on_the_device());
}

struct StackImpl : torch::nn::Module {
  torch::nn::Sequential layers;
  StackImpl() {
    for (int i = 0; i < 8; ++i) layers->push_back(torch::nn::Linear(64, 64));
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& input) { return layers->forward(input); }
};
TORCH_MODULE(Stack);

std::int64_t peak_on_the_device() {
  const std::string library =
      std::string(std::getenv("ACCEL_BUILD_DIR")) + "/tests/libaccel_fake_devices.so";
  void* const opened = ::dlopen(library.c_str(), RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<std::int64_t (*)()>(::dlsym(opened, "fake_peak_bytes"))();
}

// Rank 0 alone has the model; neither device ever has all of it.
TEST(DeviceShardingMemory, AModelComesByParametersFromTheRankThatHasIt) {
  test::run_ranks(
      2,
      [] {
        AcceleratorOptions options;
        options.fsdp_plugin =
            FullyShardedDataParallelPlugin{.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap,
                                           .min_num_params = 4000,
                                           .cpu_ram_efficient_loading = true};
        Accelerator accelerator(options);
        set_seed(4);
        Stack net{nullptr};
        {
          const auto empty = init_empty_unless_main();
          net = Stack();
        }
        at::Tensor expected;  // on rank 0
        if (accelerator.is_main_process()) expected = net->forward(at::ones({2, 64})).detach();
        (void)peak_on_the_device();

        auto model = accelerator.prepare(net);

        const std::int64_t layer = std::int64_t{4} * (64 * 64 + 64);
        EXPECT_LT(peak_on_the_device(), 8 * layer * 3 / 4);
        const at::NoGradGuard no_grad;
        const at::Tensor output = model(at::ones({2, 64}).to(accelerator.device())).cpu();
        EXPECT_LT(peak_on_the_device(), 8 * layer - layer / 2);
        if (accelerator.is_main_process()) {
          EXPECT_TRUE(at::equal(output, expected));
        }
        const auto all = gather(output.unsqueeze(0));
        EXPECT_TRUE(at::equal(all[0], all[1]));
      },
      on_the_device());
}

TEST(DeviceShardingUse, AParameterIsReadByOperatorsAndHeldForAddresses) {
  test::run_ranks(
      2,
      [] {
        DividedRun run({"full_shard", Divided::kAll});
        run.train(1);
        const at::Tensor weight = run.net->second->weight;
        EXPECT_ANY_THROW((void)weight.const_data_ptr<float>());
        const at::Tensor copy = weight.detach().clone();
        EXPECT_FALSE(copy.cpu().isnan().any().item<bool>());
        with_params(*run.model, {"second.weight"}, [&] {
          EXPECT_NE(weight.const_data_ptr<float>(), nullptr);
          EXPECT_ANY_THROW(run.stepping->step());
        });
        run.train(1);
      },
      on_the_device());
}

TEST(DeviceShardingUse, AnOperatorThatWritesIsRefusedByName) {
  test::run_ranks(
      2,
      [] {
        DividedRun run({"full_shard", Divided::kAll});
        const at::NoGradGuard no_grad;
        const Error error = test::error_of([&] { run.net->second->weight.zero_(); });
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("second.weight"));
      },
      on_the_device());
}

TEST(DeviceShardingUse, RanksThatNeedDifferentUnitsAreToldInDebugMode) {
  test::run_ranks(
      2,
      [] {
        DividedRun run({"full_shard", Divided::kAll});
        const at::NoGradGuard no_grad;
        const Error error = test::error_of([&] {
          auto& layer = run.accelerator.is_main_process() ? run.net->second : run.net->third;
          (void)layer->weight.sum();
        });
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), HasSubstr("needs unit"));
      },
      on_the_device({{"ACCELERATE_DEBUG_MODE", "1"}}));
}

struct TwoWaysImpl : torch::nn::Module {
  torch::nn::Linear left = register_module("left", torch::nn::Linear(64, 64));
  torch::nn::Linear right = register_module("right", torch::nn::Linear(64, 64));
  bool goes_left = true;
  at::Tensor forward(const at::Tensor& input) { return goes_left ? left(input) : right(input); }
};
TORCH_MODULE(TwoWays);

// Their units are of one size, so that each rank takes the other's shard for its own unit's.
TEST(DeviceShardingUse, RanksThatRunDifferentModulesAreToldBeforeAWeightChanges) {
  const test::ScratchFolder scratch;
  test::run_ranks(
      2,
      [&] {
        AcceleratorOptions options;
        options.fsdp_plugin = FullyShardedDataParallelPlugin{
            .auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap, .min_num_params = 4000};
        Accelerator accelerator(options);
        TwoWays net;
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto loss = [&, &model = model] {
          return model(at::ones({2, 64}).to(accelerator.device())).square().mean();
        };
        const at::Tensor before = sgd.param_groups().front().params().front().detach().clone();

        accelerator.save_state(scratch.path() / "state");
        net->goes_left = accelerator.is_main_process();
        accelerator.backward(loss());
        const Error error = test::error_of([&, &optimizer = optimizer] { optimizer.step(); });

        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(error.message(), HasSubstr("they have run different modules"));
        const at::Tensor after = sgd.param_groups().front().params().front().detach();
        EXPECT_TRUE(at::equal(before.cpu(), after.cpu()));
        optimizer.zero_grad();
        accelerator.load_state(scratch.path() / "state");
        net->goes_left = true;
        accelerator.backward(loss());
        optimizer.step();
      },
      on_the_device());
}

TEST(DeviceShardingUse, RanksThatRunOutOfBatchesAreRefusedWhereUnitsComeAndGo) {
  test::run_ranks(
      2,
      [] {
        DividedRun run({"full_shard", Divided::kAll});
        const Error error = test::error_of([&] {
          const auto joining =
              run.accelerator.join_uneven_inputs(*run.model, {.even_batches = false});
        });
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("join_uneven_inputs()"));
      },
      on_the_device());
}

Error refusal_of(const AcceleratorOptions& options) {
  return test::error_of([&] {
    Accelerator accelerator(options);
    TiedNet net;
    accelerator.prepare(net);
  });
}

TEST(DeviceShardingRefusals, NameTheOption) {
  test::run_ranks(
      2,
      [] {
        AcceleratorOptions options;
        options.fsdp_plugin = FullyShardedDataParallelPlugin{.cpu_offload = true};
        const Error offload = refusal_of(options);
        EXPECT_EQ(offload.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(offload.message(), HasSubstr("cpu_offload"));
        EXPECT_THAT(offload.remedy(), HasSubstr("--cpu"));
      },
      on_the_device());
  test::run_ranks(
      4,
      [] {
        AcceleratorOptions options;
        options.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2};
        const Error copies = refusal_of(options);
        EXPECT_EQ(copies.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(copies.message(), HasSubstr("dp_replicate_size"));
      },
      on_the_device());
}

}  // namespace
}  // namespace accel::device_sharding_test
