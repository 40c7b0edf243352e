// Gradients that travel in bf16: half the bytes.
//
//   accel-launch --num_processes 2 build/examples/by_feature/ddp_comm_hook

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/communication_hook.h>
#include <accel/dataloader.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::AcceleratorOptions options;
  options.ddp.comm_hook = accel::DDPCommunicationHookType::kBf16;
  accel::Accelerator accelerator(options);
  accel::set_seed(0);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  at::Tensor loss;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (auto& batch : loader) {
      loss = at::cross_entropy_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.print("loss",
                    accelerator.reduce(loss.detach(), accel::Reduction::kMean).item<float>());
  accelerator.end_training();
}
