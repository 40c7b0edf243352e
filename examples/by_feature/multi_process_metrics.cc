// Metrics over all ranks, in which each sample counts once: the last batch is filled up with repeated samples, and
// gather_for_metrics() drops them.
//
//   accel-launch --num_processes 2 build/examples/by_feature/multi_process_metrics

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::DataLoader train_points(Points{}, {.batch_size = 8, .shuffle = true});
  accel::DataLoader test_points(Points{}, {.batch_size = 16});
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, sgd, train_points, test_points);

  for (int epoch = 0; epoch < 3; ++epoch) {
    for (auto& batch : train_loader) {
      accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::NoGradGuard no_grad;
    std::int64_t right = 0;
    std::int64_t total = 0;
    for (auto& batch : test_loader) {
      const at::Tensor hits =
          accelerator.gather_for_metrics(model(batch.data).argmax(1) == batch.target);
      right += hits.sum().item<std::int64_t>();
      total += hits.size(0);
    }
    accelerator.print("epoch",
                      epoch,
                      "accuracy",
                      static_cast<float>(right) / static_cast<float>(total),
                      "of",
                      total);
  }
  accelerator.end_training();
}
