// user_program.cc for one process and without accel: what of its compilation is LibTorch's part.
#include <cstdio>

#include <torch/torch.h>

#include "bench/small_model.h"

int main() {
  torch::manual_seed(1);
  Net net;
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(1e-3));
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      Images().map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(32));
  for (int epoch = 0; epoch < 3; ++epoch) {
    double last_loss = 0;
    for (auto& batch : *loader) {
      const at::Tensor loss = torch::nn::functional::cross_entropy(net(batch.data), batch.target);
      loss.backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      last_loss = loss.item<double>();
    }
    std::printf("epoch %d: loss %.4f\n", epoch, last_loss);
  }
  return 0;
}
