// What StepPlan tells against what LibTorch asks its allocator for in a run: within 2 %.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <accel/accelerator.h>
#include <accel/activation_checkpoint.h>
#include <accel/big_model.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/memory_use.h>
#include <accel/plan.h>
#include <accel/precision.h>
#include <accel/recomputed_units.h>

#include "tests/support/error_of.h"
#include "tests/support/exported_archive.h"
#include "tests/support/model_zoo.h"
#include "tests/support/rank_group.h"
#include "tests/support/real_peak.h"

namespace accel::step_plan_test {
namespace {

using at::Tensor;

using test::CountedMemory;
using Step = std::function<void()>;

// The model has values: what the plan takes of them is nothing, but where kernels are asked.
void expect_planned(torch::nn::Module& model,
                    torch::optim::Optimizer* optimizer,
                    const Step& step,
                    int num_generator_states = 0) {
  const StepPlan asked(model, optimizer, step);
  CountedMemory::get().begin();
  const StepPlan plan(model, optimizer, step);
  constexpr int kGeneratorState = 5056;
  EXPECT_LT(CountedMemory::get().peak(), 1000 + num_generator_states * kGeneratorState)
      << "numbers of operators, as 1 / sqrt(width)";
  const auto planned = static_cast<double>(plan.memory().peak);
  const auto real = static_cast<double>(test::real_peak(model, optimizer, step));
  EXPECT_NEAR(planned / real, 1, 0.02) << planned << " of " << real;
}

struct Mlp : torch::nn::Module {
  Mlp() {
    register_module("first", first);
    register_module("second", second);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return last(at::gelu(second(at::relu(first(x))))); }
  torch::nn::Linear first{64, 512}, second{512, 512}, last{512, 10};
};

struct Block : torch::nn::Module {
  explicit Block(std::int64_t width)
      : mix(width, 3 * width),
        out(width, width),
        up(width, 4 * width),
        down(4 * width, width),
        norm1(torch::nn::LayerNormOptions({width})),
        norm2(torch::nn::LayerNormOptions({width})) {
    register_module("mix", mix);
    register_module("out", out);
    register_module("up", up);
    register_module("down", down);
    register_module("norm1", norm1);
    register_module("norm2", norm2);
  }
  Tensor forward(const Tensor& x) {
    const auto batch = x.size(0), length = x.size(1), width = x.size(2);
    const auto heads = [&](const Tensor& t) {
      return t.view({batch, length, 4, width / 4}).transpose(1, 2);
    };
    const auto parts = mix(norm1(x)).split(width, 2);
    const Tensor attended = at::scaled_dot_product_attention(
        heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, /*is_causal=*/true);
    const Tensor y = x + out(attended.transpose(1, 2).reshape({batch, length, width}));
    return y + down(at::gelu(up(norm2(y))));
  }
  torch::nn::Linear mix, out, up, down;
  torch::nn::LayerNorm norm1, norm2;
};

// With one table for tokens and answers.
struct Language : torch::nn::Module {
  Language() {
    register_module("table", table);
    register_module("blocks", blocks);
    for (int i = 0; i < 3; ++i) blocks->push_back(std::make_shared<Block>(64));
    head->weight = table->weight;
    register_module("head", head);
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = table(tokens);
    for (const auto& block : *blocks) x = block->as<Block>()->forward(x);
    return at::cross_entropy_loss(head(x).flatten(0, 1), tokens.flatten());
  }
  torch::nn::Embedding table{256, 64};
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{torch::nn::LinearOptions(64, 256).bias(false)};
};

struct Vision : torch::nn::Module {
  Vision() {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) {
    const Tensor y = at::max_pool2d(at::relu(norm1(conv1(x))), {2, 2});
    return last(at::relu(norm2(conv2(y))).mean({2, 3}));
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(3, 32, 3).padding(1)};
  torch::nn::BatchNorm2d norm1{32};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(32, 64, 3).padding(1).stride(2)};
  torch::nn::BatchNorm2d norm2{64};
  torch::nn::Linear last{64, 10};
};

struct Recurrent : torch::nn::Module {
  Recurrent() {
    register_module("gru", gru);
    register_module("last", last);
  }
  Tensor forward(const Tensor& x) { return last(std::get<0>(gru(x))); }
  torch::nn::GRU gru{torch::nn::GRUOptions(16, 64)};
  torch::nn::Linear last{64, 4};
};

TEST(StepPlan, IsWithinTwoPercentOfAPerceptronsPeak) {
  Mlp net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, &adamw, [&] { net.forward(at::ones({256, 64})).mean().backward(); });
}

TEST(StepPlan, IsWithinTwoPercentOfALanguageModelsPeakWithAttentionAndATiedTable) {
  Language net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, &adamw, [&] { net.forward(at::zeros({4, 64}, at::kLong)).backward(); });
}

TEST(StepPlan, IsWithinTwoPercentOfAConvolutionalNetworksPeak) {
  Vision net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_planned(net, &sgd, [&] { net.forward(at::ones({8, 3, 32, 32})).mean().backward(); });
}

TEST(StepPlan, IsWithinTwoPercentOfARecurrentNetworksPeak) {
  Recurrent net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, &adamw, [&] { net.forward(at::ones({20, 16, 16})).mean().backward(); });
}

TEST(StepPlan, IsWithinTwoPercentUnderAutocastWithItsCopiesOfWeights) {
  Mlp net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, &adamw, [&] {
    Tensor loss;
    {
      const Autocast autocast({.dtype = at::kBFloat16});
      loss = net.forward(at::ones({256, 64})).to(at::kFloat).mean();
    }
    loss.backward();
  });
}

TEST(StepPlan, IsThatOfAnExportedModelWhoseWeightsAreNotRead) {
  const std::string path = test::exported_model("blocks");
  const auto make_step = [](ExportedModel& net) {
    return [&net] {
      const Tensor tokens = at::zeros({64, 32}, at::kLong);
      net->forward(tokens, tokens)["loss"].backward();
    };
  };
  ExportedModel empty = [&] {
    const auto weights = init_empty_weights({.include_buffers = true});
    return ExportedModel(path);
  }();
  torch::optim::AdamW planned(empty->parameters());
  const StepPlan plan(*empty, &planned, make_step(empty));
  ExportedModel net(path);
  torch::optim::AdamW adamw(net->parameters());
  const auto real = static_cast<double>(test::real_peak(*net, &adamw, make_step(net)));
  EXPECT_NEAR(static_cast<double>(plan.memory().peak) / real, 1, 0.02);
}

// Two linear layers of `width`, whose numbers are easily said.
struct Pair : torch::nn::Module {
  explicit Pair(std::int64_t width, std::int64_t num_layers = 2) {
    for (std::int64_t i = 0; i < num_layers; ++i)
      layers->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
    register_module("layers", layers);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *layers) x = layer->as<torch::nn::Linear>()->forward(x);
    return x;
  }
  torch::nn::ModuleList layers;
};

TEST(StepPlan, SaysWhatEachPartTakesInBytes) {
  Pair net(256);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({32, 256})).sum().backward(); });
  const PlannedMemory memory = plan.memory();
  constexpr std::int64_t kParameters = 2 * 256 * 256;
  EXPECT_EQ(plan.num_parameters(), kParameters);
  EXPECT_EQ(memory.parameters, 4 * kParameters);
  EXPECT_EQ(memory.whole, 0);
  EXPECT_EQ(memory.gradients, 4 * kParameters);
  EXPECT_EQ(memory.optimizer, 8 * kParameters);
  EXPECT_EQ(memory.communication, 0);
  // Forward: two products; backward: the gradients of both weights and of what lies between them.
  EXPECT_EQ(plan.flops(), 5 * 2.0 * 32 * 256 * 256);
}

TEST(StepPlan, DividesStateGradientsAndParametersOverProcesses) {
  Pair net(256);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({32, 256})).sum().backward(); });
  constexpr std::int64_t kBytes = 4 * 2 * 256 * 256;
  const auto of = [&](PlannedStrategy strategy, int num_machines = 1) {
    return plan.memory({.num_processes = 4, .num_machines = num_machines, .strategy = strategy});
  };
  const PlannedMemory copies = of(PlannedStrategy::kCopies);
  EXPECT_EQ(copies.parameters, kBytes);
  EXPECT_EQ(copies.gradients, kBytes);
  EXPECT_EQ(copies.optimizer, 2 * kBytes);

  const PlannedMemory stage1 = of(PlannedStrategy::kZero1);
  EXPECT_EQ(stage1.parameters, kBytes / 4) << "one memory of the machine";
  EXPECT_EQ(stage1.gradients, kBytes);
  EXPECT_EQ(stage1.optimizer, 2 * kBytes / 4);
  EXPECT_EQ(of(PlannedStrategy::kZero1, 2).parameters, kBytes);

  const PlannedMemory stage2 = of(PlannedStrategy::kZero2, 2);
  EXPECT_EQ(stage2.parameters, kBytes);
  EXPECT_EQ(stage2.gradients, kBytes / 4);
  EXPECT_EQ(stage2.communication, kBytes) << "gradients of the unit that is being filled";

  const PlannedMemory stage3 = of(PlannedStrategy::kZero3, 2);
  EXPECT_EQ(stage3.parameters, kBytes / 4);
  EXPECT_EQ(stage3.communication, 2 * kBytes) << "and the unit that is in use";
  EXPECT_LT(of(PlannedStrategy::kZero3).peak, copies.peak);
}

// What two ranks of one machine have after two steps.
MemoryUse used_by_ranks(Pair& net, const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  torch::optim::AdamW adamw(net.parameters());
  auto [model, optimizer] = accelerator.prepare(std::shared_ptr<Pair>(&net, [](Pair*) {}), adamw);
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    accelerator.backward(model(at::ones({32, 256})).sum());
    optimizer.step();
  }
  const MemoryUse use = memory_use(model, optimizer);
  accelerator.wait_for_everyone();
  return use;
}

void expect_as_used(const MemoryUse& used, PlannedStrategy strategy) {
  Pair net(256);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({32, 256})).sum().backward(); });
  const PlannedMemory planned = plan.memory({.num_processes = 2, .strategy = strategy});
  const auto expect_near = [&](std::int64_t bytes, std::int64_t real, const char* what) {
    EXPECT_NEAR(static_cast<double>(bytes) / static_cast<double>(real), 1, 0.02)
        << what << " of " << to_string(strategy) << ": " << bytes << ", really " << real;
  };
  expect_near(planned.parameters, used.parameters, "parameters");
  expect_near(planned.gradients, used.gradients, "gradients");
  expect_near(planned.optimizer, used.optimizer, "optimizer");
  EXPECT_GE(planned.communication, used.peak_filling) << to_string(strategy);
}

TEST(StepPlan, DividesAsRanksDo) {
  test::run_ranks(2, [] {
    Pair copies(256);
    expect_as_used(used_by_ranks(copies, {}), PlannedStrategy::kCopies);
    Pair stage1(256);
    AcceleratorOptions zero1;
    zero1.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    expect_as_used(used_by_ranks(stage1, zero1), PlannedStrategy::kZero1);
  });
  test::run_ranks(2, [] {
    for (const auto& [sharding, planned] :
         {std::pair(ShardingStrategy::kShardGradOp, PlannedStrategy::kZero2),
          std::pair(ShardingStrategy::kFullShard, PlannedStrategy::kZero3)}) {
      Pair net(256);
      AcceleratorOptions options;
      options.fsdp_plugin.emplace().sharding_strategy = sharding;
      expect_as_used(used_by_ranks(net, options), planned);
    }
  });
}

TEST(StepPlan, SaysHowManyBytesAStepMoves) {
  Pair net(256);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({32, 256})).sum().backward(); });
  constexpr std::int64_t kBytes = 4 * 2 * 256 * 256;
  constexpr std::int64_t kStep = 7 * kBytes;  // AdamW: 28 for each parameter of 4
  constexpr std::int64_t kOfOthers = kBytes / 4 * 3;
  const auto of = [&](PlannedStrategy strategy, int num_machines) {
    return plan.moved_bytes(
        {.num_processes = 4, .num_machines = num_machines, .strategy = strategy});
  };
  EXPECT_EQ(plan.moved_bytes(), kStep);
  EXPECT_EQ(of(PlannedStrategy::kCopies, 1), kStep + 2 * kOfOthers);
  EXPECT_EQ(of(PlannedStrategy::kZero1, 1), kStep / 4 + 2 * kOfOthers);
  EXPECT_EQ(of(PlannedStrategy::kZero3, 1), kStep / 4 + kOfOthers);
  EXPECT_EQ(of(PlannedStrategy::kZero2, 2), kStep / 4 + 2 * kOfOthers);
  EXPECT_EQ(of(PlannedStrategy::kZero3, 2), kStep / 4 + 3 * kOfOthers);
}

TEST(StepPlan, SaysHowLongAStepTakesAtTheRatesOfAMachine) {
  Pair net(256);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({32, 256})).sum().backward(); });
  constexpr double kFast = 1e18;
  constexpr double kSlow = 1e6;
  const double computing = plan.flops() / kSlow;
  EXPECT_NEAR(plan.seconds({.flops = kSlow, .memory_bytes = kFast}) / computing, 1, 1e-6);
  const double moving = plan.seconds({.flops = kFast, .memory_bytes = kSlow});
  EXPECT_GT(moving, static_cast<double>(plan.moved_bytes()) / kSlow);
  EXPECT_NEAR(plan.seconds({.flops = kFast, .memory_bytes = 2 * kSlow}) * 2 / moving, 1, 1e-6);

  constexpr double kBytes = 4.0 * 2 * 256 * 256;
  const MachineRates slow_network{
      .flops = kFast, .memory_bytes = kFast, .network_bytes = kSlow, .disk_bytes = kSlow};
  PlannedRun run{.num_processes = 4, .num_machines = 2};
  EXPECT_NEAR(plan.seconds(slow_network, run) * kSlow / (2 * kBytes / 4 * 3), 1, 1e-6);
  run.num_machines = 1;
  EXPECT_LT(plan.seconds(slow_network, run), 1e-6) << "no network is between them";
  run.optimizer_on_disk = true;
  EXPECT_NEAR(plan.seconds(slow_network, run) * kSlow / (2 * kBytes), 1, 1e-6);
  run.strategy = PlannedStrategy::kZero1;
  EXPECT_NEAR(plan.seconds(slow_network, run) * kSlow / (2 * kBytes / 4), 1, 1e-6);
}

TEST(StepPlan, RefusesRatesThatARunNeedsAndThatAreNone) {
  Pair net(16);
  const StepPlan plan(net, nullptr, [&] { net.forward(at::ones({2, 16})).sum().backward(); });
  const PlannedRun run{.num_processes = 2, .num_machines = 2};
  const Error error =
      test::error_of([&] { (void)plan.seconds({.flops = 1, .memory_bytes = 1}, run); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.what(), testing::HasSubstr("MachineRates::network_bytes"));
  const MachineRates own = measure_machine_rates();
  EXPECT_GT(own.flops, 1e6);
  EXPECT_GT(own.memory_bytes, 1e6);
  EXPECT_GT(plan.seconds(own), 0);
}

TEST(StepPlan, OneProcessDividesNothing) {
  Pair net(64);
  const StepPlan plan(net, nullptr, [&] { net.forward(at::ones({2, 64})).sum().backward(); });
  EXPECT_EQ(plan.memory({.strategy = PlannedStrategy::kZero3}).peak, plan.memory().peak);
  EXPECT_EQ(plan.memory().optimizer, 0);
}

TEST(StepPlan, LeavesModelGradientsAndOptimizerAsTheyWere) {
  Pair net(16);
  net.register_buffer("mean", at::ones({3}));
  torch::optim::AdamW adamw(net.parameters());
  const auto step = [&] { net.forward(at::ones({2, 16})).sum().backward(); };
  step();
  adamw.step();
  const Tensor weight = net.parameters()[0];
  const void* const address = weight.data_ptr();
  const Tensor gradient = weight.grad().clone();
  const Tensor values = weight.detach().clone();
  const StepPlan plan(net, &adamw, step);
  EXPECT_EQ(weight.data_ptr(), address);
  EXPECT_TRUE(weight.equal(values));
  EXPECT_TRUE(weight.grad().equal(gradient));
  EXPECT_TRUE(net.buffers()[0].equal(at::ones({3})));
  EXPECT_EQ(adamw.state().size(), 2u);
  step();  // and goes on
  adamw.step();
  EXPECT_FALSE(weight.equal(values));
}

TEST(StepPlan, TakesAModelWithoutMemoryOfAHundredBillionParameters) {
  std::unique_ptr<Pair> net;
  {
    const auto empty = init_empty_weights({.include_buffers = true});
    net = std::make_unique<Pair>(16384, 373);
  }
  torch::optim::AdamW adamw(net->parameters());
  const StepPlan plan(*net, &adamw, [&] {
    net->forward(at::ones({1024, 16384})).sum().backward();
  });
  EXPECT_GT(plan.num_parameters(), 100'000'000'000);
  EXPECT_EQ(plan.memory().optimizer, 8 * plan.num_parameters());
  EXPECT_TRUE(net->parameters()[0].is_meta());
}

TEST(StepPlan, RefusesStepsThatReadValuesByTheNameOfTheOperator) {
  Pair net(16);
  const auto step = [&] {
    const Tensor loss = net.forward(at::ones({2, 16})).sum();
    if (loss.item<float>() > 0) loss.backward();
  };
  const Error error = test::error_of([&] { const StepPlan plan(net, nullptr, step); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), testing::HasSubstr("aten::_local_scalar_dense"));
  EXPECT_NO_THROW(step()) << "the model has its values";
}

TEST(StepPlan, RefusesStepsWhoseSizesDependOnValues) {
  Pair net(16);
  const Error error = test::error_of([&] {
    const StepPlan plan(net, nullptr, [&] { net.forward(at::ones({2, 16})).nonzero(); });
  });
  EXPECT_THAT(error.what(), testing::HasSubstr("aten::nonzero"));
}

TEST(StepPlan, RefusesNumbersOfProcessesThatCannotBe) {
  Pair net(16);
  const StepPlan plan(net, nullptr, [&] { net.forward(at::ones({2, 16})).sum().backward(); });
  EXPECT_EQ(test::error_of([&] { (void)plan.memory({.num_processes = 0}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      test::error_of([&] { (void)plan.memory({.num_processes = 3, .num_machines = 2}); }).what(),
      testing::HasSubstr("3 processes on 2 machines"));
}

class OfTheZoo : public testing::TestWithParam<std::size_t> {};
INSTANTIATE_TEST_SUITE_P(StepPlan,
                         OfTheZoo,
                         testing::Range<std::size_t>(0, test::kZooSize),
                         [](const auto& info) { return test::zoo_name(info.param); });

TEST_P(OfTheZoo, IsWithinTwoPercentOfItsPeak) {
  const auto net = test::model_zoo()[GetParam()].make();
  torch::optim::AdamW adamw(net->parameters());
  const auto step = [&] { net->forward(at::ones({1024, net->width()})).pow(2).mean().backward(); };
  const std::map<std::string, std::string> refused = {
      {"Experts", "aten::_local_scalar_dense reads what a tensor holds"},  // it asks who has rows
      {"WeightNorm", "the model keeps some, as views or tables"}};
  if (const auto why = refused.find(test::zoo_name(GetParam())); why != refused.end()) {
    const Error error = test::error_of([&] { const StepPlan plan(*net, &adamw, step); });
    EXPECT_THAT(error.what(), testing::HasSubstr(why->second));
    return;
  }
  for (int i = 0; i < 3; ++i) step();  // LibTorch rewrites a script in its first calls
  const auto planned = static_cast<double>(StepPlan(*net, &adamw, step).memory().peak);
  const auto real = static_cast<double>(test::real_peak(*net, &adamw, step));
  EXPECT_NEAR(planned / real, 1, 0.02) << planned << " of " << real;
}

// ---- activations that are computed again ----

// The model runs once before, for the comparison that a first forward makes.
void expect_recomputed_planned(torch::nn::Module& model, const Step& step, const Step& kept) {
  torch::optim::SGD sgd(model.parameters(), torch::optim::SGDOptions(0.1));
  step();
  expect_planned(model, &sgd, step, /*num_generator_states=*/10);
  EXPECT_GE(StepPlan(model, &sgd, step).flops(), StepPlan(model, &sgd, kept).flops());
}

TEST(StepPlan, IsWithinTwoPercentOfAPerceptronWhosePartsAreComputedAgain) {
  Mlp net;
  const auto step = [&net](bool recomputes) {
    const auto part = [&net](const Tensor& x) { return at::gelu(net.second(at::relu(x))); };
    const Tensor x = net.first(at::ones({1024, 64}));
    net.last(recomputes ? checkpoint_activations(part, x) : part(x)).mean().backward();
  };
  expect_recomputed_planned(
      net, [&] { step(true); }, [&] { step(false); });
}

TEST(StepPlan, IsWithinTwoPercentOfAConvolutionalNetworkWhosePartsAreComputedAgain) {
  Vision net;
  const auto step = [&net](bool recomputes) {
    const auto part = [&net](const Tensor& x) {
      return at::max_pool2d(at::relu(net.norm1(net.conv1(x))), {2, 2});
    };
    const Tensor x = at::ones({8, 3, 32, 32});
    const Tensor y = recomputes ? checkpoint_activations(part, x) : part(x);
    net.last(at::relu(net.norm2(net.conv2(y))).mean({2, 3})).mean().backward();
  };
  expect_recomputed_planned(
      net, [&] { step(true); }, [&] { step(false); });
}

Step language_step(Language& net, RecomputedUnits* units) {
  return [&net, units] {
    Tensor loss;
    {
      std::optional<RecomputedUnits::Forward> forward;
      if (units != nullptr) forward.emplace(units->forward());
      loss = net.forward(at::zeros({8, 64}, at::kLong));
    }
    loss.backward();
  };
}

TEST(StepPlan, IsWithinTwoPercentOfALanguageModelWhoseBlocksAreComputedAgain) {
  Language net;
  RecomputedUnits units(net, {"Block"});
  EXPECT_EQ(units.num_units(), 3u);
  expect_recomputed_planned(net, language_step(net, &units), language_step(net, nullptr));
}

TEST(StepPlan, IsWithinTwoPercentOfALanguageModelWhoseProductsAreKept) {
  Language net;
  RecomputedUnits units(net, {"Block"}, {.keep = KeptOperators::compute_intensive()});
  expect_recomputed_planned(net, language_step(net, &units), language_step(net, nullptr));
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1));
  const StepPlan selective(net, &sgd, language_step(net, &units));
  EXPECT_EQ(selective.flops(), StepPlan(net, &sgd, language_step(net, nullptr)).flops());
  RecomputedUnits full(net, {"Block"});
  const StepPlan recomputed(net, &sgd, language_step(net, &full));
  const StepPlan kept(net, &sgd, language_step(net, nullptr));
  EXPECT_LT(recomputed.memory().activations, selective.memory().activations);
  EXPECT_LT(selective.memory().activations, kept.memory().activations);
}

TEST(StepPlan, RecomputationGoesWithEachStrategy) {
  Language net;
  torch::optim::AdamW adamw(net.parameters());
  RecomputedUnits units(net, {"Block"});
  const StepPlan kept(net, &adamw, language_step(net, nullptr));
  const StepPlan recomputed(net, &adamw, language_step(net, &units));
  for (const PlannedStrategy strategy : {PlannedStrategy::kCopies,
                                         PlannedStrategy::kZero1,
                                         PlannedStrategy::kZero2,
                                         PlannedStrategy::kZero3}) {
    const PlannedRun run{.num_processes = 2, .strategy = strategy};
    EXPECT_LT(recomputed.memory(run).peak, kept.memory(run).peak) << to_string(strategy);
    EXPECT_EQ(recomputed.memory(run).gradients, kept.memory(run).gradients);
    EXPECT_EQ(recomputed.moved_bytes(run), kept.moved_bytes(run));
  }
}

TEST(RecomputedUnits, TrainToTheSameBits) {
  const auto gradients = [](bool recomputes) {
    torch::manual_seed(3);
    Language net;
    RecomputedUnits units(net, {"Block"});
    for (int i = 0; i < 2; ++i) language_step(net, recomputes ? &units : nullptr)();
    std::vector<Tensor> all;
    for (const Tensor& parameter : net.parameters())
      if (parameter.grad().defined()) all.push_back(parameter.grad());
    return all;
  };
  const auto kept = gradients(false);
  const auto recomputed = gradients(true);
  ASSERT_EQ(kept.size(), recomputed.size());
  EXPECT_GT(kept.size(), 30u);
  for (std::size_t i = 0; i < kept.size(); ++i) EXPECT_TRUE(kept[i].equal(recomputed[i])) << i;
}

TEST(RecomputedUnits, ThatFitTakeTheFewestOperationsOfAllChoices) {
  Language net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1));
  RecomputedUnits units(net, {"Block"});
  const Step step = language_step(net, &units);
  struct Choice {
    std::int64_t peak;
    double flops;
  };
  std::vector<Choice> choices;
  for (unsigned bits = 0; bits < 8; ++bits) {
    units.set_recomputed({(bits & 1U) != 0, (bits & 2U) != 0, (bits & 4U) != 0});
    const StepPlan plan(net, &sgd, step);
    choices.push_back({plan.memory().peak, plan.flops()});
  }
  int num_between = 0;
  for (const Choice& budget : choices) {
    const auto fitted = fit_recomputed_units(units, net, &sgd, step, budget.peak);
    double least = choices.back().flops;
    for (const Choice& one : choices)
      if (one.peak <= budget.peak) least = std::min(least, one.flops);
    if (!fitted) {
      EXPECT_LT(budget.peak, choices.back().peak);
      continue;
    }
    EXPECT_LE(fitted->memory.peak, budget.peak);
    EXPECT_EQ(fitted->flops + fitted->extra_flops, least);
    EXPECT_EQ(units.recomputed(), fitted->is_recomputed);
    num_between += static_cast<int>(fitted->extra_flops > 0 && least < choices.back().flops);
  }
  EXPECT_GT(num_between, 0);
  EXPECT_FALSE(fit_recomputed_units(units, net, &sgd, step, 1000));
}

}  // namespace
}  // namespace accel::step_plan_test
