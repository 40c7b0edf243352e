// Five folds: each model is tested on the fifth of the data that it has not seen.
//
//   accel-launch --num_processes 2 build/examples/by_feature/cross_validation

#include <cstdint>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/random.h>

#include "examples/by_feature/points.h"

// One of five parts, or all but it.
struct Fold {
  torch::data::Example<at::Tensor, std::int64_t> get(std::size_t index) const {
    return Points{}.get(is_for_testing ? 5 * index + fold
                                       : index + index / 4 + (index % 4 >= fold));
  }
  std::size_t size() const { return is_for_testing ? 50 : 200; }
  std::size_t fold;
  bool is_for_testing;
};

int main() {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  double sum = 0;
  for (std::size_t fold = 0; fold < 5; ++fold) {
    torch::nn::Linear net(2, 2);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    accel::DataLoader train_points(Fold{fold, false}, {.batch_size = 8, .shuffle = true});
    accel::DataLoader test_points(Fold{fold, true}, {.batch_size = 8});
    auto [model, optimizer, train_loader, test_loader] =
        accelerator.prepare(net, sgd, train_points, test_points);
    for (int epoch = 0; epoch < 3; ++epoch) {
      for (auto& batch : train_loader) {
        accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    const at::NoGradGuard no_grad;
    std::int64_t right = 0;
    for (auto& batch : test_loader)
      right += accelerator.gather_for_metrics(model(batch.data).argmax(1) == batch.target)
                   .sum()
                   .item<std::int64_t>();
    sum += static_cast<double>(right) / 50;
    accelerator.free_memory();  // the next fold is prepared anew
  }
  accelerator.print("mean accuracy", sum / 5);
  accelerator.end_training();
}
