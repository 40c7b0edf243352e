// A rank of tests/integration/reproducible: reproducible training that goes on from its checkpoints whatever the number of ranks.
//
//   reproducible_worker PROJECT STEPS HOLD_RANKS HOLD_STEP   a line for each step, "step N norm X loss Y", and for the weights at the end
//
// With HOLD_RANKS ranks it stops behind the checkpoint of HOLD_STEP, until somebody ends it.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <variant>
#include <vector>

#include <ATen/ops/arange.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/operations.h>
#include <accel/random.h>

namespace {

struct Rows {
  [[nodiscard]] std::size_t size() const { return 30; }
  [[nodiscard]] at::Tensor get(std::size_t i) const {
    return (at::arange(8, at::kFloat) * 0.9 + static_cast<double>(i)).sin();
  }
};

class Progress final : public accel::Stateful {
 public:
  [[nodiscard]] accel::StateDict state_dict() const override { return {{}, {{"step", step}}}; }
  void load_state_dict(const accel::StateDict& state) override {
    step = std::get<std::int64_t>(state.values.at("step"));
  }
  std::int64_t step = 0;
};

double sum_of(const torch::nn::Module& net) {
  double sum = 0;
  int place = 1;
  for (const at::Tensor& parameter : net.parameters())
    sum += parameter.detach().sum(at::kDouble).item<double>() * ++place;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const int num_steps = std::atoi(argv[2]);
  accel::Accelerator accelerator(
      {.gradient_accumulation_steps = 5,
       .reproducible = true,
       .project_config = {
           .project_dir = argv[1], .automatic_checkpoint_naming = true, .total_limit = 2}});
  accel::set_seed(3);
  torch::nn::Sequential net(
      torch::nn::Linear(8, 33), torch::nn::Dropout(0.25), torch::nn::Linear(33, 5));
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.02));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto loader = accelerator.prepare_micro_batches(
      accel::DataLoader(Rows{}, {.batch_size = 3, .shuffle = true}));
  Progress progress;
  accelerator.register_for_checkpointing(progress);
  accelerator.begin_run(accel::RunStart::kResume);
  while (progress.step < num_steps) {
    for (auto& batch : loader) {
      const auto accumulating = accelerator.accumulate(model);
      const at::Tensor loss = model(batch).square().mean();
      accelerator.backward(loss);
      double norm = 0;
      if (accelerator.sync_gradients())
        norm = accelerator.clip_grad_norm_(net->parameters(), 0.3).item<double>();
      optimizer.step();
      optimizer.zero_grad();
      if (!accelerator.sync_gradients()) continue;
      ++progress.step;
      const auto losses = accel::gather_object(std::vector<double>{loss.item<double>()});
      if (accelerator.is_main_process()) {
        std::printf("step %lld norm %a loss %a\n",
                    static_cast<long long>(progress.step),
                    norm,
                    losses.back());
        std::fflush(stdout);
      }
      accelerator.save_state();
      const bool holds =
          accelerator.num_processes() == std::atoi(argv[3]) && progress.step == std::atoi(argv[4]);
      if (holds && accelerator.is_main_process()) {
        std::printf("held\n");
        std::fflush(stdout);
      }
      while (holds) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      if (progress.step == num_steps) break;
    }
  }
  if (accelerator.is_main_process()) std::printf("weights %a\n", sum_of(*net));
  accelerator.end_training();
  return 0;
}
