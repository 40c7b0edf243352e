// One step of the optimizer for every four batches: the gradients of a batch four times as large, in the memory of one.
//
//   accel-launch --num_processes 2 build/examples/by_feature/gradient_accumulation

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator({.gradient_accumulation_steps = 4});
  accel::set_seed(0);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  int batches = 0;
  int steps = 0;
  at::Tensor loss;
  for (int epoch = 0; epoch < 10; ++epoch) {
    for (auto& batch : loader) {
      // Within the scope step() and zero_grad() act on every fourth batch and on the last one of the loader.
      const auto accumulating = accelerator.accumulate(model);
      loss = at::cross_entropy_loss(model(batch.data), batch.target);
      accelerator.backward(loss);  // divides by four
      optimizer.step();
      optimizer.zero_grad();
      ++batches;
      steps += accelerator.sync_gradients() ? 1 : 0;
    }
  }
  accelerator.print(batches,
                    "batches,",
                    steps,
                    "steps, loss",
                    accelerator.reduce(loss.detach(), accel::Reduction::kMean).item<float>());
  accelerator.end_training();
}
