// Fits y = 2 x + 1 on any number of processes.
#include <ATen/ops/full.h>
#include <ATen/ops/mse_loss.h>
#include <torch/data/example.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/random.h>

struct Line {
  torch::data::Example<at::Tensor, at::Tensor> get(std::size_t index) const {
    const double x = static_cast<double>(index) / 100 - 1;
    return {at::full({1}, x), at::full({1}, 2 * x + 1)};
  }
  std::size_t size() const { return 200; }
};

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
  accel::DataLoader points(Line{}, {.batch_size = 10, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);
  for (int epoch = 0; epoch < 30; ++epoch) {
    for (auto& batch : loader) {
      accelerator.backward(at::mse_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.print("processes", accelerator.num_processes());
  accelerator.print("slope", net->weight.item<float>(), "offset", net->bias.item<float>());
  accelerator.end_training();
}
