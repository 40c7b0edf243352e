// Ranks with batches of different numbers: those that have none left take part until all are done.
//
//   accel-launch --num_processes 2 build/examples/by_feature/uneven_inputs

#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/stack.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>

#include "examples/by_feature/points.h"

int main() {
  accel::Accelerator accelerator;
  torch::nn::Linear net(2, 2);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));
  accel::DataLoader points(Points{}, {.batch_size = 9, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, points);

  int batches = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    batches = 0;
    // No point is repeated: the last batches are as short, and as few, as they come.
    const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
    for (auto& batch : loader) {
      accelerator.backward(at::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
      ++batches;
    }
  }  // here a rank waits that has no batch left
  for (const int count : accel::gather_object(std::vector<int>{batches}))
    accelerator.print(count, "batches");
  const at::Tensor weights = accelerator.gather(net->weight.detach().unsqueeze(0));
  bool is_same = true;
  for (std::int64_t rank = 1; rank < weights.size(0); ++rank)
    is_same = is_same && weights[rank].equal(weights[0]);
  accelerator.print("the ranks have", is_same ? "the same weights" : "other weights");
  accelerator.end_training();
}
