// What a user writes: a small model, trained by as many processes as accel-launch starts. bench/run build times its compilation.
#include <cstdio>

#include <torch/torch.h>

#include <accel/accel.h>

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

double evaluate(accel::Accelerator& accelerator,
                Net& net,
                const at::Tensor& images,
                const at::Tensor& labels) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const at::Tensor right = net(images).argmax(1).eq(labels).to(torch::kFloat).mean();
  net->train();
  return accelerator.reduce(right, accel::Reduction::kMean).item().toDouble();
}

}  // namespace

int main() {
  accel::Accelerator accelerator({.mixed_precision = "bf16",
                                  .gradient_accumulation_steps = 2,
                                  .project_config = {.project_dir = "runs/a"}});
  accel::set_seed(1);
  Net net;
  auto [model, optimizer, loader] =
      accelerator.prepare(net,
                          torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-3)),
                          accel::DataLoader(Images(), {.batch_size = 32, .shuffle = true}));

  for (int epoch = 0; epoch < 3; ++epoch) {
    double last_loss = 0;
    for (auto& batch : loader) {
      auto step = accelerator.accumulate(model);
      const at::Tensor loss = torch::nn::functional::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      if (accelerator.sync_gradients()) accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
      last_loss = loss.item<double>();
    }
    const at::Tensor labels = torch::arange(10);
    const at::Tensor images = (labels.to(torch::kFloat) / 10).unsqueeze(1).expand({10, 64});
    const double accuracy = evaluate(accelerator, net, images, labels);
    if (accelerator.is_main_process())
      std::printf("epoch %d: loss %.4f, accuracy %.3f\n", epoch, last_loss, accuracy);
  }
  accelerator.save_state();
  accelerator.end_training();
  return 0;
}
