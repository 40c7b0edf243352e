// user_program.cc for one process and without accel: what of its compilation is LibTorch's part.
#include <cstdio>

#include <torch/torch.h>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(64, 256));
    second = register_module("second", torch::nn::Linear(256, 256));
    last = register_module("last", torch::nn::Linear(256, 10));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor hidden = torch::relu(first(images));
    hidden = dropout(torch::relu(second(hidden)));
    return last(hidden);
  }

  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

struct Images : torch::data::datasets::Dataset<Images> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor image = torch::full({64}, static_cast<double>(index % 10) / 10);
    return {image, torch::tensor(static_cast<std::int64_t>(index % 10))};
  }
  torch::optional<std::size_t> size() const override { return 10'000; }
};

}  // namespace

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
