// Tracking: the numbers of a run in TensorBoard, in a file of JSON lines, and in a tracker of one's own.
//
//   accel-launch --num_processes 2 build/examples/by_feature/tracking -- runs
//   tensorboard --logdir runs
//
// Name "wandb", "mlflow" or another SDK of Python beside them: docs/guides/tracking.md.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <torch/torch.h>

#include <accel/accelerator.h>
#include <accel/random.h>
#include <accel/tracking.h>

// Keeps the best loss and says it at the end.
class BestLoss final : public accel::GeneralTracker {
 public:
  std::string name() const override { return "best_loss"; }
  bool requires_logging_directory() const override { return false; }
  void log(const accel::TrackerDict& values,
           std::optional<std::int64_t> step,
           const accel::TrackerDict&) override {
    const accel::TrackerValue* loss = values.find("loss");
    if (loss == nullptr || loss->number() >= best_) return;
    best_ = loss->number();
    best_step_ = step.value_or(-1);
  }
  void finish() override {
    std::printf("best loss %.4f at step %lld\n", best_, static_cast<long long>(best_step_));
  }

 private:
  double best_ = 1e30;
  std::int64_t best_step_ = -1;
};

int main(int argc, char** argv) try {
  accel::Accelerator accelerator(
      {.log_with = {"tensorboard", "jsonl", std::make_shared<BestLoss>()},
       .project_dir = argc > 1 ? argv[1] : "runs"});
  accel::set_seed(0);
  const double lr = 0.1;
  accelerator.init_trackers("curve", {{"lr", lr}, {"optimizer", "SGD"}});

  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::Tanh(), torch::nn::Linear(16, 1));
  torch::optim::SGD sgd(net->parameters(), lr);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 200; ++step) {
    const auto x = torch::rand({32, 1}) * 6 - 3;
    const auto loss = torch::mse_loss(model(x), torch::sin(x));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    const auto mean = accelerator.reduce(loss.detach(), accel::Reduction::kMean);
    accelerator.log({{"loss", mean}, {"lr", lr}}, step);
  }
  if (auto* board = accelerator.get_tracker<accel::TensorBoardTracker>("tensorboard")) {
    const auto weights = net->parameters()[0].detach().flatten().to(torch::kDouble);
    const double* values = weights.const_data_ptr<double>();
    board->log_histogram("weights", {values, values + weights.numel()}, 200);
  }
  accelerator.end_training();
  return 0;
} catch (const accel::Error& error) {
  std::fprintf(stderr, "%s\n", error.render("tracking").c_str());
  return 1;
}
