// A generative adversarial network: two models with an optimizer each, which learn against one another.
//
//   accel-launch --cpu --num_processes 2 build/examples/gan
//
// The generator makes numbers from noise; the discriminator tells them from numbers of a normal distribution with mean 4 and deviation
// 1.25. In the end nobody can: the numbers have that mean and deviation.

#include <torch/torch.h>

#include <accel/accel.h>

namespace nn = torch::nn;

struct Numbers {
  torch::Tensor values = 4 + 1.25 * torch::randn({4096, 1});
  torch::Tensor get(std::size_t index) const { return values[static_cast<std::int64_t>(index)]; }
  std::size_t size() const { return 4096; }
};

nn::Sequential layers(std::int64_t inputs, std::int64_t outputs) {
  return nn::Sequential(nn::Linear(inputs, 32),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(32, 32),
                        nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)),
                        nn::Linear(32, outputs));
}

// How far the discriminator's answers are from `truth`: 1 for real numbers, 0 for made ones.
torch::Tensor loss_of(const torch::Tensor& answers, double truth) {
  return torch::binary_cross_entropy_with_logits(answers, torch::full_like(answers, truth));
}

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  auto net_g = layers(8, 1);
  auto net_d = layers(1, 1);
  const auto adam = torch::optim::AdamOptions(1e-3).betas({0.5, 0.999});
  torch::optim::Adam adam_g(net_g->parameters(), adam);
  torch::optim::Adam adam_d(net_d->parameters(), adam);
  accel::DataLoader numbers(Numbers(), {.batch_size = 32, .shuffle = true});
  auto [generator, discriminator, optimizer_g, optimizer_d, loader] =
      accelerator.prepare(net_g, net_d, adam_g, adam_d, numbers);

  // Each rank has noise of its own.
  accel::set_seed(0, {.device_specific = true});
  for (int epoch = 0; epoch < 40; ++epoch) {
    torch::Tensor loss_d, loss_g;
    for (auto& real : loader) {
      const auto made = generator(torch::randn({real.size(0), 8}));

      optimizer_d.zero_grad();  // also what the generator's backward left there
      const auto answers = discriminator(torch::cat({real, made.detach()}));
      loss_d = loss_of(answers.slice(0, 0, real.size(0)), 1) +
               loss_of(answers.slice(0, real.size(0)), 0);
      accelerator.backward(loss_d);
      optimizer_d.step();

      optimizer_g.zero_grad();
      loss_g = loss_of(discriminator(made), 1);
      accelerator.backward(loss_g);
      optimizer_g.step();
    }
    const auto losses = accelerator.reduce(torch::stack({loss_d.detach(), loss_g.detach()}),
                                           accel::Reduction::kMean);
    if (epoch % 10 == 9)
      accelerator.print("epoch",
                        epoch + 1,
                        "discriminator",
                        losses[0].item<float>(),
                        "generator",
                        losses[1].item<float>());
  }

  torch::NoGradGuard no_grad;
  const auto made = accelerator.gather(generator(torch::randn({2048, 8})));
  accelerator.print("mean", made.mean().item<float>(), "deviation", made.std().item<float>());
  accelerator.end_training();
}
