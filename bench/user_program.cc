// What a user writes: a small model, trained by as many processes as accel-launch starts. bench/run build times its compilation.
#include <cstdio>

#include <torch/torch.h>

#include <accel/accel.h>

#include "bench/small_model.h"

namespace {

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
