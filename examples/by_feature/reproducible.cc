// The same bits of losses and weights on any number of processes: each has a run of the 12 micro-batches of a step.
//
//   accel-launch --num_processes 1 build/examples/by_feature/reproducible
//   accel-launch --num_processes 3 build/examples/by_feature/reproducible   prints the same line

#include <cstdint>
#include <cstdio>
#include <vector>

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/operations.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator({.gradient_accumulation_steps = 12, .reproducible = true});
  accel::set_seed(7);
  torch::nn::Sequential net(
      torch::nn::Linear(2, 16), torch::nn::Dropout(0.25), torch::nn::Linear(16, 2));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.05));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  // Its batches are the micro-batches; loaders to evaluate with go to prepare(), as ever.
  auto loader = accelerator.prepare_micro_batches(
      accel::DataLoader(Points{}, {.batch_size = 5, .shuffle = true}));

  double own_loss = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : loader) {
      const auto accumulating =
          accelerator.accumulate(model);  // seeds dropout for this micro-batch
      const at::Tensor loss = at::cross_entropy_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      own_loss = loss.item<double>();
    }
  }
  // The last micro-batch is the last rank's.
  const double last = accel::gather_object(std::vector<double>{own_loss}).back();
  double weights = 0;
  for (const at::Tensor& parameter : net->parameters())
    weights += parameter.detach().sum(at::kDouble).item<double>();
  if (accelerator.is_main_process()) std::printf("loss %a, sum of weights %a\n", last, weights);
  accelerator.end_training();
}
