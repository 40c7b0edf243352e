// Sequences of any length: each micro-batch counts for its tokens, so a step has the gradient of the mean over all tokens of
// all ranks, not the mean of means.
//
//   accel-launch --num_processes 2 build/examples/by_feature/weighted_accumulation

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/scalar_tensor.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>

namespace {

constexpr std::int64_t kSymbols = 8;
constexpr int kSteps = 60;
constexpr int kMicroBatches = 2;

// Counts up from its number; 1 to 12 tokens.
at::Tensor sequence(std::int64_t number) {
  return (at::arange(2 + number * 7 % 12) + number) % kSymbols;
}

}  // namespace

int main() {
  accel::Accelerator accelerator({.gradient_accumulation_steps = kMicroBatches});
  torch::nn::Embedding next_symbol(kSymbols, kSymbols);
  torch::optim::SGD sgd(next_symbol->parameters(), torch::optim::SGDOptions(4.0));
  auto [model, optimizer] = accelerator.prepare(next_symbol, sgd);

  std::int64_t own_tokens = 0;
  for (int batch = 0; batch < kSteps * kMicroBatches; ++batch) {
    const at::Tensor symbols =
        sequence(batch * accelerator.num_processes() + accelerator.process_index());
    const std::int64_t tokens = symbols.numel() - 1;
    const auto accumulating = accelerator.accumulate(model);
    const at::Tensor loss =  // the mean over these tokens
        at::cross_entropy_loss(model(symbols.narrow(0, 0, tokens)), symbols.narrow(0, 1, tokens));
    accelerator.backward(loss, {.weight = static_cast<double>(tokens)});
    optimizer.step();
    optimizer.zero_grad();
    own_tokens += tokens;
  }

  const at::NoGradGuard no_grad;
  const at::Tensor symbols = at::arange(kSymbols);
  const at::Tensor right = model(symbols).argmax(1) == (symbols + 1) % kSymbols;
  accelerator.print(
      accelerator.reduce(at::scalar_tensor(own_tokens, at::kLong)).item<std::int64_t>(),
      "tokens,",
      right.sum().item<std::int64_t>(),
      "of",
      kSymbols,
      "symbols are followed by the right one");
  accelerator.end_training();
}
