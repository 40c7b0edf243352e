// Ranks that train alone and average their weights every eight steps: an exchange for eight steps, where networks are slow.
//
//   accel-launch --num_processes 2 build/examples/by_feature/local_sgd

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/local_sgd.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  {
    accel::LocalSGD local_sgd(accelerator, model, 8);
    for (int epoch = 0; epoch < 5; ++epoch) {
      for (auto& batch : loader) {
        accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
        optimizer.step();
        optimizer.zero_grad();
        local_sgd.step();
      }
    }
  }  // averaged once more
  const at::Tensor weights = accelerator.gather(net->weight.detach().unsqueeze(0));
  accelerator.print(
      "the ranks have", weights[0].equal(weights[-1]) ? "the same" : "other", "weights");
  accelerator.end_training();
}
