// Learns a parabola on any number of processes. A second start resumes from the newest checkpoint.
//
//   accel-launch --cpu --num_processes 2 build/examples/minimal

#include <torch/torch.h>

#include <accel/accel.h>

// 1,000 points of the curve.
struct Parabola {
  torch::data::Example<> get(std::size_t index) const {
    const auto x = torch::full({1}, static_cast<double>(index) / 500 - 1);
    return {x, x * x};
  }
  std::size_t size() const { return 1000; }
};

int main() {
  accel::Accelerator accelerator(
      {.project_config = {.project_dir = "minimal_run", .automatic_checkpoint_naming = true}});
  accel::set_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  accel::DataLoader points(Parabola{}, {.batch_size = 20, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, points);
  accelerator.begin_run(accel::RunStart::kResume);  // from the newest checkpoint, if there is one

  for (auto epoch = loader.epoch(); epoch < 20; ++epoch) {
    auto loss = torch::zeros({});
    for (auto& batch : loader) {
      loss = torch::mse_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto mean = accelerator.reduce(loss.detach(), accel::Reduction::kMean);
    accelerator.print("epoch", epoch, "loss", mean.item<float>());
    accelerator.save_state();
  }
  accelerator.end_training();
}
