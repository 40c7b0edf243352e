// The largest batch that fits: the training starts again with 0.9 of the size whenever memory is short.
//
//   accel-launch --num_processes 2 build/examples/by_feature/memory

#include <cstdint>
#include <new>

#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/memory.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  auto train = accel::find_executable_batch_size(
      [&](std::int64_t batch_size) {
        accelerator.free_memory();  // what the try before had prepared
        torch::nn::Linear net(2, 2);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
        accel::DataLoader points(Points{}, {.batch_size = batch_size, .shuffle = true});
        auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);
        for (auto& batch : loader) {
          if (batch_size > 100) throw std::bad_alloc();  // a machine with little memory
          accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
          optimizer.step();
          optimizer.zero_grad();
        }
        return batch_size;
      },
      {.starting_batch_size = 128});
  accelerator.print("batches of", train(), "fit");
  accelerator.end_training();
}
