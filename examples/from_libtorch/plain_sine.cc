// A training program on plain LibTorch, on one process. accel_sine.cc is the same with accel.

#include <cstdio>

#include <torch/torch.h>

#include "examples/from_libtorch/sine.h"

int main() {
  torch::manual_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  auto points = Sine().map(torch::data::transforms::Stack<>());
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(points, 20);

  for (int epoch = 0; epoch < 20; ++epoch) {
    torch::Tensor loss;
    for (auto& batch : *loader) {
      loss = torch::mse_loss(net->forward(batch.data), batch.target);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      adamw.step();
      adamw.zero_grad();
    }
    std::printf("epoch %d loss %f\n", epoch, loss.item<float>());
    torch::save(net, "net.pt");
  }
}
