// AdamW without a schedule: the weights to be looked at are an average of where steps have been.
//
//   accel-launch --num_processes 2 build/examples/by_feature/schedule_free

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/modules/linear.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/schedule_free.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  torch::nn::Linear net(2, 2);
  accel::AdamWScheduleFree adamw(net->parameters(),
                                 accel::AdamWScheduleFreeOptions(0.1).warmup_steps(4));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, points);

  for (int epoch = 0; epoch < 5; ++epoch) {
    optimizer.train();
    for (auto& batch : loader) {
      accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    optimizer.eval();
    const at::NoGradGuard no_grad;
    at::Tensor loss = at::zeros({});
    for (auto& batch : loader) loss += at::cross_entropy_loss(model(batch.data), batch.target);
    accelerator.print("epoch", epoch, "loss", accelerator.reduce(loss).item<float>());
  }
  accelerator.end_training();
}
