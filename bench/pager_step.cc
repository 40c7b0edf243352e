// What the pager costs when every parameter is in memory: the same model twice in one process, one of them paged, their
// steps in turn. For pager_bench.py.
//
//   pager_step mm|abs|transformer ROUNDS     prints "plain_seconds paged_seconds" per round
//
// mm, abs: one operator on a parameter of 4x4, of which the first has a hook with its own types and the second the one
// for all; seconds are of one call, from blocks of 1,000. transformer: 19.2 million parameters, a sample of 128 tokens,
// trained with SGD; the losses must be equal.

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/abs.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <time.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include "libaccel/engine/pager/module_parameters.h"
#include "libaccel/engine/pager/pager.h"

namespace {

namespace nn = torch::nn;
using Loss = std::function<at::Tensor()>;
using Model = std::pair<std::shared_ptr<nn::Module>, Loss>;

constexpr std::int64_t kWidth = 512;
constexpr std::int64_t kHeads = 8;
constexpr std::int64_t kLength = 128;
constexpr std::int64_t kVocabulary = 256;

struct TransformerImpl : nn::Module {
  struct Block {
    nn::LayerNorm norm1{nullptr}, norm2{nullptr};
    nn::Linear qkv{nullptr}, projection{nullptr}, up{nullptr}, down{nullptr};
  };

  TransformerImpl() {
    const nn::LayerNormOptions norm_options({kWidth});
    tokens = register_module("tokens", nn::Embedding(kVocabulary, kWidth));
    positions = register_module("positions", nn::Embedding(kLength, kWidth));
    for (int i = 0; i < 6; ++i) {
      const std::string name = "block" + std::to_string(i);
      blocks.push_back({register_module(name + "norm1", nn::LayerNorm(norm_options)),
                        register_module(name + "norm2", nn::LayerNorm(norm_options)),
                        register_module(name + "qkv", nn::Linear(kWidth, 3 * kWidth)),
                        register_module(name + "projection", nn::Linear(kWidth, kWidth)),
                        register_module(name + "up", nn::Linear(kWidth, 4 * kWidth)),
                        register_module(name + "down", nn::Linear(4 * kWidth, kWidth))});
    }
    norm = register_module("norm", nn::LayerNorm(norm_options));
    head = register_module("head", nn::Linear(kWidth, kVocabulary));
  }

  static at::Tensor attend(Block& block, const at::Tensor& input) {
    const auto parts = block.qkv(input)
                           .view({1, kLength, 3, kHeads, kWidth / kHeads})
                           .permute({2, 0, 3, 1, 4})
                           .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return block.projection(mixed.transpose(1, 2).reshape({1, kLength, kWidth}));
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor hidden = tokens(input) + positions(at::arange(kLength, at::kLong));
    for (Block& block : blocks) {
      hidden = hidden + attend(block, block.norm1(hidden));
      hidden = hidden + block.down(nn::functional::gelu(block.up(block.norm2(hidden))));
    }
    return head(norm(hidden));
  }

  nn::Embedding tokens{nullptr}, positions{nullptr};
  std::vector<Block> blocks;
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};
};
TORCH_MODULE(Transformer);

Model make_transformer() {
  torch::manual_seed(1);
  Transformer net;
  const at::Tensor sample = at::randint(kVocabulary, {1, kLength + 1}, at::kLong);
  return {net.ptr(), [net, sample]() mutable {
            const at::Tensor logits = net->forward(sample.slice(1, 0, kLength));
            return at::cross_entropy_loss(logits.flatten(0, 1), sample.slice(1, 1).flatten());
          }};
}

// Of the processor, so that others on the machine do not count; all of a step runs on this thread.
double thread_seconds() {
  timespec now = {};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Step {
  double seconds = 0;
  double loss = 0;
};

Step step(const Loss& loss_of, torch::optim::SGD& optimizer) {
  const double started = thread_seconds();
  optimizer.zero_grad();
  const at::Tensor loss = loss_of();
  loss.backward();
  optimizer.step();
  return {thread_seconds() - started, loss.item<double>()};
}

void run_operator(const std::string& kind, int rounds) {
  constexpr int kCalls = 1000;
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::randn({4, 4});
  const at::Tensor plain = at::randn({4, 4});
  const at::Tensor paged = plain.clone();
  accel::pager::Pager pager({{"weight", paged}}, {});
  const auto seconds = [&](const at::Tensor& weight) {
    const double started = thread_seconds();
    for (int i = 0; i < kCalls; ++i) (void)(kind == "mm" ? input.mm(weight) : weight.abs());
    return (thread_seconds() - started) / kCalls;
  };
  for (int round = 0; round < rounds; ++round) {
    const double first = seconds(plain);
    std::printf("%.9g %.9g\n", first, seconds(paged));
  }
}

int run_transformer(int rounds) {
  auto [plain, plain_loss] = make_transformer();
  auto [paged, paged_loss] = make_transformer();
  accel::pager::Pager pager(accel::pager::parameters_of(*paged), {});
  const torch::optim::SGDOptions options(1e-3);
  torch::optim::SGD plain_optimizer(plain->parameters(), options);
  torch::optim::SGD paged_optimizer(paged->parameters(), options);
  for (int round = 0; round < rounds; ++round) {
    Step first, second;
    const auto plain_step = [&] { first = step(plain_loss, plain_optimizer); };
    if (round % 2 == 0) plain_step();
    second = step(paged_loss, paged_optimizer);
    pager.end_step();
    if (round % 2 == 1) plain_step();
    if (first.loss != second.loss) {
      std::fprintf(stderr, "pager_step: the losses of step %d differ\n", round);
      return 1;
    }
    if (round >= 3) std::printf("%.9g %.9g\n", first.seconds, second.seconds);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "use: pager_step mm|abs|transformer ROUNDS\n");
    return 2;
  }
  at::set_num_threads(1);
  const std::string kind = argv[1];
  if (kind == "transformer") return run_transformer(std::atoi(argv[2]));
  run_operator(kind, std::atoi(argv[2]));
  return 0;
}
