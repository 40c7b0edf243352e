// Ranks that train alone for twelve steps, then step global weights by what they have changed; half of the layers every six steps,
// exchanged beside the next two steps: for networks that are slow.
//
//   accel-launch --num_processes 2 build/examples/by_feature/diloco

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/diloco.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(2, 16), torch::nn::Tanh(), torch::nn::Linear(16, 2));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, points);

  double loss_of_last = 0;
  {
    accel::DiLoCo diloco(accelerator,
                         model,
                         optimizer,
                         {.sync_every = 12,
                          .num_fragments = 2,
                          .fragment_sync_delay = 2,
                          .fragment_update_alpha = 0.5});
    for (int epoch = 0; epoch < 10; ++epoch) {
      for (auto& batch : loader) {
        const at::Tensor loss = at::cross_entropy_loss(model(batch.data), batch.target);
        accelerator.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        diloco.step();
        loss_of_last = loss.item<double>();
      }
    }
  }  // what has begun is merged, and the ranks' weights are averaged
  const at::Tensor weights =
      accelerator.gather(net->parameters()[0].detach().unsqueeze(0).contiguous());
  accelerator.print("loss", loss_of_last);
  accelerator.print(
      "the ranks have", weights[0].equal(weights[-1]) ? "the same" : "other", "weights");
  accelerator.end_training();
}
