// One rank decides that it is enough, and all ranks stop in the same step.
//
//   accel-launch --num_processes 2 build/examples/by_feature/early_stopping

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
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  bool stops = false;
  int steps = 0;
  for (int epoch = 0; epoch < 100 && !stops; ++epoch) {
    for (auto& batch : loader) {
      const at::Tensor loss = at::cross_entropy_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
      ++steps;
      if (loss.item<float>() < 0.1) accelerator.set_trigger();  // of this rank's own batch
      stops = accelerator.check_trigger();                      // on every rank
      if (stops) break;
    }
  }
  accelerator.print(stops ? "stopped early after" : "never stopped in", steps, "steps");
  accelerator.end_training();
}
