// N ranks that train on a batch each are one process that trains on the N batches together: the mean over all samples is
// the mean over the ranks of their means. Both are computed here, the second by plain LibTorch on every rank, in double.
//
// Tolerance: a step adds differently ordered sums of up to kFeatures * kBatch * N terms to values of about 1, each with a
// relative error of 1.1e-16 a term; the errors of kSteps steps add up. With the largest numbers here (N = 64) that is
// 30 * 8 * 4 * 64 * 1.1e-16 = 6.8e-12. Ranks that do not average, or that average wrongly, are off by about 1e-2.

#include <string>
#include <utility>
#include <vector>

#include <torch/data/example.h>
#include <torch/nn.h>
#include <torch/optim/sgd.h>

#include <accel/dataloader.h>
#include <accel/random.h>

#include "libaccel/api/selftest/self_test.h"

namespace accel::selftest {
namespace {

constexpr std::int64_t kFeatures = 8;
constexpr std::int64_t kBatch = 4;
constexpr std::int64_t kSteps = 30;
constexpr double kTolerance = 1e-11;
constexpr double kLearningRate = 0.05;

torch::nn::Sequential make_model() {
  set_seed(42);
  torch::nn::Sequential model(
      torch::nn::Linear(kFeatures, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  model->to(at::kDouble);
  return model;
}

struct Samples {
  at::Tensor features;
  at::Tensor targets;
};

Samples make_samples(std::int64_t count) {
  set_seed(7);
  const at::Tensor features = at::randn({count, kFeatures}, at::kDouble);
  return {features, features.sin().sum(1, /*keepdim=*/true)};
}

class SampleRows {
 public:
  explicit SampleRows(Samples samples) : samples_(std::move(samples)) {}
  [[nodiscard]] torch::data::Example<> get(std::size_t index) const {
    const auto row = static_cast<std::int64_t>(index);
    return {samples_.features[row], samples_.targets[row]};
  }
  [[nodiscard]] std::size_t size() const {
    return static_cast<std::size_t>(samples_.features.size(0));
  }

 private:
  Samples samples_;
};

// The losses of all steps.
at::Tensor train_alone(const Samples& samples, std::int64_t global_batch) {
  auto model = make_model();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(kLearningRate));
  std::vector<at::Tensor> losses;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const std::int64_t first = step * global_batch;
    optimizer.zero_grad();
    const at::Tensor loss =
        at::mse_loss(model->forward(samples.features.slice(0, first, first + global_batch)),
                     samples.targets.slice(0, first, first + global_batch));
    loss.backward();
    optimizer.step();
    losses.push_back(loss.detach());
  }
  return at::stack(losses);
}

at::Tensor train_together(const Samples& samples) {
  Accelerator accelerator({.mixed_precision = "no"});
  auto net = make_model();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kLearningRate));
  DataLoader rows(SampleRows(samples), {.batch_size = kBatch});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, rows);
  std::vector<at::Tensor> losses;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    const at::Tensor loss = at::mse_loss(model(batch.data), batch.target);
    accelerator.backward(loss);
    optimizer.step();
    losses.push_back(accelerator.reduce(loss.detach(), Reduction::kMean).to(at::kCPU));
  }
  return at::stack(losses);
}

}  // namespace

void check_training(const Surroundings& here) {
  const std::int64_t global_batch = kBatch * here.num_ranks();
  const Samples samples = make_samples(global_batch * kSteps);
  const at::Tensor alone = train_alone(samples, global_batch);
  const at::Tensor together = train_together(samples);
  if (!(alone[kSteps - 1].item<double>() < alone[0].item<double>()))
    throw CheckFailed("one process does not learn: its loss does not fall");
  here.expect_equal(
      together, alone, "the losses of " + std::to_string(kSteps) + " steps", kTolerance);
}

}  // namespace accel::selftest
