// A checkpoint after each epoch, and a run that goes on from the newest one: start it twice.
//
//   accel-launch --num_processes 2 build/examples/by_feature/checkpointing FOLDER

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  accel::Accelerator accelerator(
      {.project_config = {
           .project_dir = arguments[1], .automatic_checkpoint_naming = true, .total_limit = 2}});
  accel::set_seed(0);
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));
  accel::DataLoader points(Points{}, {.batch_size = 8, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  // Weights, optimizer, place in the data and random numbers: all come back.
  if (const auto checkpoint = accelerator.begin_run(accel::RunStart::kResume))
    accelerator.print("going on from", checkpoint->folder.filename().string());
  const auto last = loader.epoch() + 3;
  for (auto epoch = loader.epoch(); epoch < last; ++epoch) {
    for (auto& batch : loader) {
      accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.print("epoch", epoch);
    accelerator.save_state();
  }
  accelerator.end_training();
  return 0;
}
