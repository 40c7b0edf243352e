// The program of plain_sine.cc with accel: on any number of processes, with checkpoints of the whole run.
//
//   accel-launch --cpu --num_processes 2 build/examples/accel_sine

#include <torch/torch.h>

#include <accel/accel.h>

#include "examples/from_libtorch/sine.h"

int main() {
  accel::Accelerator accelerator(
      {.project_config = {.project_dir = "sine", .automatic_checkpoint_naming = true}});
  accel::set_seed(0);
  torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  accel::DataLoader points(Sine(), {.batch_size = 20, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, points);
  accelerator.begin_run(accel::RunStart::kResume);

  for (auto epoch = loader.epoch(); epoch < 20; ++epoch) {
    torch::Tensor loss;
    for (auto& batch : loader) {
      loss = torch::mse_loss(model(batch.data), batch.target);
      accelerator.backward(loss);
      accelerator.clip_grad_norm_(net->parameters(), 1.0);
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch", epoch, "loss", loss.item<float>());
    accelerator.save_state();
  }
  accelerator.end_training();
}
