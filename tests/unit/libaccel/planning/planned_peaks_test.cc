// Peaks of models of several kinds against their plans: 2 % with activations, and 1 % of parameters and optimizer (P-E1). The same of
// an optimizer on disk. And what a plan costs, by its operators.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/topk.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/big_model.h>
#include <accel/memory_use.h>
#include <accel/plan.h>

#include "libaccel/engine/optim/disk_step.h"
#include "tests/support/real_peak.h"
#include "tests/support/scratch_folder.h"

namespace accel::planned_peaks_test {
namespace {

using at::Tensor;
using Step = std::function<void()>;

double ratio(std::int64_t planned, std::int64_t real) {
  return static_cast<double>(planned) / static_cast<double>(real);
}

std::int64_t bytes_of(const std::vector<Tensor>& tensors) {
  std::int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += static_cast<std::int64_t>(tensor.nbytes());
  return bytes;
}

void expect_planned(torch::nn::Module& model,
                    torch::optim::Optimizer& optimizer,
                    const Step& step) {
  const PlannedMemory planned = StepPlan(model, &optimizer, step).memory();
  const std::int64_t peak = test::real_peak(model, &optimizer, step);
  EXPECT_NEAR(ratio(planned.peak, peak), 1, 0.02) << planned.peak << " of " << peak;
  const std::int64_t weights = bytes_of(model.parameters()) + bytes_of(model.buffers());
  EXPECT_NEAR(ratio(planned.parameters + planned.whole, weights), 1, 0.01);
  const std::int64_t state = detail::optimizer_bytes(optimizer);
  EXPECT_LE(planned.optimizer, 1.01 * static_cast<double>(state) + 1);
  EXPECT_GE(planned.optimizer, 0.99 * static_cast<double>(state));
}

// ---- convolutions ----

struct Bottleneck : torch::nn::Module {
  Bottleneck(std::int64_t in, std::int64_t out, std::int64_t stride) {
    shrink = register_module("shrink", convolution(in, out / 2, 1, 1));
    norm1 = register_module("norm1", torch::nn::BatchNorm2d(out / 2));
    mix = register_module("mix", convolution(out / 2, out / 2, 3, stride, /*groups=*/4));
    norm2 = register_module("norm2", torch::nn::BatchNorm2d(out / 2));
    grow = register_module("grow", convolution(out / 2, out, 1, 1));
    norm3 = register_module("norm3", torch::nn::BatchNorm2d(out));
    around = register_module("around", convolution(in, out, 1, stride));
  }
  static torch::nn::Conv2d convolution(std::int64_t in,
                                       std::int64_t out,
                                       std::int64_t kernel,
                                       std::int64_t stride,
                                       std::int64_t groups = 1) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, kernel)
                                 .stride(stride)
                                 .padding(kernel / 2)
                                 .groups(groups)
                                 .bias(false));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = norm1(shrink(x)).relu_();
    y = norm2(mix(y)).relu_();
    return (norm3(grow(y)) + around(x)).relu_();
  }
  torch::nn::Conv2d shrink{nullptr}, mix{nullptr}, grow{nullptr}, around{nullptr};
  torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr}, norm3{nullptr};
};

struct Residual : torch::nn::Module {
  Residual() {
    register_module("stem", stem);
    register_module("blocks", blocks);
    register_module("head", head);
    blocks->push_back(std::make_shared<Bottleneck>(16, 32, 1));
    blocks->push_back(std::make_shared<Bottleneck>(32, 64, 2));
    blocks->push_back(std::make_shared<Bottleneck>(64, 64, 1));
  }
  Tensor forward(const Tensor& images) {
    Tensor x = stem(images);
    for (const auto& block : *blocks) x = block->as<Bottleneck>()->forward(x);
    return head(x.mean({2, 3}));
  }
  torch::nn::Conv2d stem = Bottleneck::convolution(3, 16, 3, 1);
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{64, 10};
};

TEST(PlannedPeak, IsThatOfAResidualNetworkWithGroupedAndStridedConvolutions) {
  Residual net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  expect_planned(net, sgd, [&] {
    const Tensor scores = net.forward(at::ones({8, 3, 32, 32}));
    at::cross_entropy_loss(scores, at::zeros({8}, at::kLong)).backward();
  });
}

struct Autoencoder : torch::nn::Module {
  Autoencoder() {
    register_module("down1", down1);
    register_module("norm1", norm1);
    register_module("down2", down2);
    register_module("norm2", norm2);
    register_module("up1", up1);
    register_module("up2", up2);
  }
  Tensor forward(const Tensor& images) {
    const Tensor x = at::silu(norm1(down1(images)));
    const Tensor y = at::silu(norm2(down2(x)));
    return up2(at::cat({at::silu(up1(y)), x}, 1));
  }
  torch::nn::Conv2d down1{torch::nn::Conv2dOptions(3, 16, 3).stride(2).padding(1)};
  torch::nn::GroupNorm norm1{torch::nn::GroupNormOptions(4, 16)};
  torch::nn::Conv2d down2{torch::nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)};
  torch::nn::GroupNorm norm2{torch::nn::GroupNormOptions(4, 32)};
  torch::nn::ConvTranspose2d up1{torch::nn::ConvTranspose2dOptions(32, 16, 4).stride(2).padding(1)};
  torch::nn::ConvTranspose2d up2{torch::nn::ConvTranspose2dOptions(32, 3, 4).stride(2).padding(1)};
};

TEST(PlannedPeak, IsThatOfAnAutoencoderWithTransposedConvolutions) {
  Autoencoder net;
  torch::optim::RMSprop rmsprop(net.parameters());
  expect_planned(net, rmsprop, [&] {
    const Tensor images = at::ones({8, 3, 64, 64});
    at::mse_loss(net.forward(images), images).backward();
  });
}

TEST(PlannedPeak, IsThatOfAResidualNetworkOfLargerImages) {
  Residual net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.1));
  expect_planned(net, sgd, [&] {
    const Tensor scores = net.forward(at::ones({32, 3, 96, 96}));
    at::cross_entropy_loss(scores, at::zeros({32}, at::kLong)).backward();
  });
}

// ---- sequences ----

struct Reader : torch::nn::Module {
  explicit Reader(bool is_bidirectional)
      : lstm(torch::nn::LSTMOptions(48, 64).num_layers(2).dropout(0.2).bidirectional(
            is_bidirectional)),
        head(is_bidirectional ? 128 : 64, 5) {
    register_module("table", table);
    register_module("lstm", lstm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& tokens) { return head(std::get<0>(lstm(table(tokens))).mean(0)); }
  torch::nn::Embedding table{500, 48};
  torch::nn::LSTM lstm;
  torch::nn::Linear head;
};

TEST(PlannedPeak, IsThatOfRecurrentNetworksWithLstms) {
  for (const bool is_bidirectional : {false, true}) {
    Reader net(is_bidirectional);
    torch::optim::Adam adam(net.parameters());
    expect_planned(net, adam, [&] {
      const Tensor scores = net.forward(at::ones({40, 32}, at::kLong));
      at::cross_entropy_loss(scores, at::zeros({32}, at::kLong)).backward();
    });
  }
}

struct Encoder : torch::nn::Module {
  Encoder() {
    register_module("table", table);
    register_module("layers", layers);
    register_module("head", head);
    for (int i = 0; i < 2; ++i)
      layers->push_back(torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(64, 4).dim_feedforward(256).dropout(0.1)));
  }
  Tensor forward(const Tensor& tokens) {
    Tensor x = table(tokens);
    for (const auto& layer : *layers)
      x = layer->as<torch::nn::TransformerEncoderLayer>()->forward(x);
    return head(x);
  }
  torch::nn::Embedding table{300, 64};
  torch::nn::ModuleList layers;
  torch::nn::Linear head{64, 300};
};

TEST(PlannedPeak, IsThatOfAnEncoderWithDropoutInItsAttention) {
  Encoder net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, adamw, [&] {
    const Tensor tokens = at::ones({48, 16}, at::kLong);
    at::cross_entropy_loss(net.forward(tokens).flatten(0, 1), tokens.flatten()).backward();
  });
}

struct Decoder : torch::nn::Module {
  Decoder() {
    register_module("table", table);
    register_module("mix", mix);
    register_module("out", out);
  }
  Tensor forward(const Tensor& tokens) {
    const Tensor x = table(tokens);
    const auto parts = mix(x).view({x.size(0), x.size(1), 3, 4, 16}).permute({2, 0, 3, 1, 4});
    const Tensor attended = at::scaled_dot_product_attention(
        parts[0], parts[1], parts[2], {}, /*dropout_p=*/0.1, /*is_causal=*/true);
    return out(attended.transpose(1, 2).flatten(2));
  }
  torch::nn::Embedding table{300, 64};
  torch::nn::Linear mix{64, 192}, out{64, 300};
};

TEST(PlannedPeak, IsThatOfCausalAttentionWithDropout) {
  Decoder net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, adamw, [&] {
    const Tensor tokens = at::ones({8, 64}, at::kLong);
    at::cross_entropy_loss(net.forward(tokens).flatten(0, 1), tokens.flatten()).backward();
  });
}

// ---- tables, and experts ----

struct Recommender : torch::nn::Module {
  Recommender() {
    register_module("tables", tables);
    for (int i = 0; i < 3; ++i) tables->push_back(torch::nn::Embedding(4000, 16));
    register_module("history", history);
    register_module("first", first);
    register_module("last", last);
  }
  Tensor forward(const Tensor& items, const Tensor& past) {
    std::vector<Tensor> parts = {history(past)};
    for (const auto& table : *tables)
      parts.push_back(table->as<torch::nn::Embedding>()->forward(items));
    return last(at::relu(first(at::cat(parts, 1))));
  }
  torch::nn::ModuleList tables;
  torch::nn::EmbeddingBag history{torch::nn::EmbeddingBagOptions(2000, 16).mode(torch::kSum)};
  torch::nn::Linear first{64, 64}, last{64, 1};
};

TEST(PlannedPeak, IsThatOfARecommenderWhoseTablesAreMostOfIt) {
  Recommender net;
  torch::optim::Adam adam(net.parameters());
  expect_planned(net, adam, [&] {
    net.forward(at::ones({256}, at::kLong), at::ones({256, 10}, at::kLong)).mean().backward();
  });
}

// Each token has weights for two of the experts, and all experts see all tokens.
struct Mixture : torch::nn::Module {
  Mixture() {
    register_module("gate", gate);
    register_module("experts", experts);
    for (int i = 0; i < 4; ++i) experts->push_back(torch::nn::Linear(64, 64));
  }
  Tensor forward(const Tensor& x) {
    const auto [scores, chosen] = at::topk(gate(x), 2);
    const Tensor weights = at::zeros({x.size(0), 4}).scatter(1, chosen, at::softmax(scores, 1));
    std::vector<Tensor> parts;
    for (const auto& expert : *experts)
      parts.push_back(expert->as<torch::nn::Linear>()->forward(x));
    return (at::gelu(at::stack(parts, 1)) * weights.unsqueeze(2)).sum(1);
  }
  torch::nn::Linear gate{64, 4};
  torch::nn::ModuleList experts;
};

TEST(PlannedPeak, IsThatOfAMixtureOfExperts) {
  Mixture net;
  torch::optim::AdamW adamw(net.parameters());
  expect_planned(net, adamw, [&] { net.forward(at::ones({512, 64})).mean().backward(); });
}

struct Stack : torch::nn::Module {
  Stack(std::int64_t width, std::int64_t num_layers) {
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

// ---- the optimizer on disk ----

constexpr std::int64_t kBucket = DiskBuffers{}.bucket_bytes;
constexpr std::int64_t kBuffers = DiskBuffers{}.num_buffers * kBucket;

TEST(StepPlan, SaysWhatAnOptimizerOnDiskTakesThereAndInMemory) {
  Stack net(256, 2);
  torch::optim::AdamW adamw(net.parameters());
  const StepPlan plan(net, &adamw, [&] { net.forward(at::ones({4096, 256})).sum().backward(); });
  constexpr std::int64_t kState = 8 * 2 * 256 * 256;
  const PlannedMemory memory = plan.memory();
  EXPECT_EQ(memory.optimizer, kState);
  EXPECT_EQ(memory.disk, 0);
  const PlannedMemory on_disk = plan.memory({.optimizer_on_disk = true});
  EXPECT_EQ(on_disk.disk, kState);
  EXPECT_EQ(on_disk.peak, memory.peak - kState) << "the forward takes more than a step";
  EXPECT_EQ(on_disk.activations, memory.activations);
  const PlannedMemory shards = plan.memory(
      {.num_processes = 4, .strategy = PlannedStrategy::kZero1, .optimizer_on_disk = true});
  EXPECT_EQ(shards.disk, kState / 4);
  EXPECT_EQ(plan.memory({.num_processes = 4, .optimizer_on_disk = true}).disk, kState);
}

TEST(StepPlan, OfAnOptimizerOnDiskHasABoundedPartOfLargeStatesInMemory) {
  const auto net = [&] {
    const auto empty = init_empty_weights({.include_buffers = true});
    return std::make_shared<Stack>(8192, 4);
  }();
  torch::optim::AdamW adamw(net->parameters());
  const StepPlan plan(*net, &adamw, [&] { net->forward(at::ones({1, 8192})).sum().backward(); });
  const PlannedMemory on_disk = plan.memory({.optimizer_on_disk = true});
  EXPECT_EQ(on_disk.disk, 2 * on_disk.parameters);
  EXPECT_EQ(on_disk.optimizer, kBuffers + kBucket);
  EXPECT_LT(on_disk.peak, on_disk.parameters + on_disk.gradients + kBuffers + 3 * kBucket);
}

// What a step takes comes from the file and from memory of its own, neither of which is counted: the plan has it beside.
void expect_planned_on_disk(std::int64_t batch, bool is_most_in_step) {
  const test::ScratchFolder folder;
  Stack net(1024, 4);
  torch::optim::AdamW adamw(net.parameters());
  const Step step = [&] { net.forward(at::ones({batch, 1024})).pow(2).mean().backward(); };
  const PlannedMemory planned = StepPlan(net, &adamw, step).memory({.optimizer_on_disk = true});
  DiskStep disk(adamw, folder.path());
  const std::function<void()> update = [&] {
    disk.step([&](const auto&) { adamw.step(); }, [](const Tensor&) { return false; });
  };
  const std::int64_t peak = test::real_peak(net, update, step);
  EXPECT_EQ(planned.disk, static_cast<std::int64_t>(disk.file().bytes()));
  if (!is_most_in_step) {
    EXPECT_NEAR(ratio(planned.peak, peak), 1, 0.02) << planned.peak << " of " << peak;
    return;
  }
  const std::int64_t in_step = planned.parameters + planned.gradients + planned.optimizer;
  EXPECT_GE(planned.peak, in_step);
  EXPECT_LT(planned.peak, in_step + kBucket) << "numbers of a bucket at most";
  EXPECT_LT(peak, planned.peak);
}

TEST(PlannedPeak, IsThatOfAnOptimizerOnDiskWhoseActivationsTakeTheMost) {
  expect_planned_on_disk(/*batch=*/8192, /*is_most_in_step=*/false);
}

TEST(PlannedPeak, OfAnOptimizerOnDiskWhoseStepTakesTheMostHasTheBuckets) {
  expect_planned_on_disk(/*batch=*/8, /*is_most_in_step=*/true);
}

// ---- what a plan costs ----

std::int64_t t_num_operators = 0;

// Calls of operators that a plan makes, of a model without memory.
std::int64_t num_operators(std::int64_t width, std::int64_t num_layers) {
  const auto net = [&] {
    const auto empty = init_empty_weights({.include_buffers = true});
    return std::make_shared<Stack>(width, num_layers);
  }();
  torch::optim::AdamW adamw(net->parameters());
  t_num_operators = 0;
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback([](const at::RecordFunction&)
                                     -> std::unique_ptr<at::ObserverContext> {
        ++t_num_operators;
        return nullptr;
      }).scopes({at::RecordScope::FUNCTION}));
  test::CountedMemory::get().begin();
  const StepPlan plan(*net, &adamw, [&] { net->forward(at::ones({16, width})).sum().backward(); });
  EXPECT_LT(test::CountedMemory::get().peak(), 1000);
  EXPECT_EQ(plan.num_parameters(), num_layers * width * width);
  at::removeCallback(handle);
  return t_num_operators;
}

TEST(StepPlan, CostsAsManyOperatorsForEachLayerHoweverLargeItIs) {
  const std::int64_t few = num_operators(16, 10);
  const std::int64_t twice = num_operators(16, 20);
  EXPECT_EQ(num_operators(16, 40) - twice, 2 * (twice - few));
  EXPECT_EQ(num_operators(16384, 20), twice) << "5 billion parameters";
  constexpr std::int64_t kMostOfALayer = 120;  // in two steps of forward, backward and AdamW
  EXPECT_LE((twice - few) / 10, kMostOfALayer);
}

}  // namespace
}  // namespace accel::planned_peaks_test
