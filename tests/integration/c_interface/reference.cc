// The training of trainer.c by the C++ interface, on the ranks of accel-launch: the same flags, the same lines.

#include <bit>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include <ATen/Functions.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/schedulers.h>

#include "tests/integration/c_interface/trainer.h"

namespace {

using accel::AcceleratorOptions;

class Flags {
 public:
  Flags(int count, char** values) : count_(count), values_(values) {}
  [[nodiscard]] std::string text(const std::string& name, const std::string& otherwise) const {
    for (int i = 4; i + 1 < count_; i += 2)
      if (values_[i] == name) return values_[i + 1];
    return otherwise;
  }

 private:
  int count_;
  char** values_;
};

AcceleratorOptions options_of(const Flags& flags) {
  AcceleratorOptions options{.cpu = true};
  if (const auto precision = flags.text("--precision", ""); !precision.empty())
    options.mixed_precision = precision;
  options.gradient_accumulation_steps = std::stoi(flags.text("--accumulate", "1"));
  const std::string strategy = flags.text("--strategy", "ddp");
  if (strategy == "zero1") options.deepspeed_plugin.emplace().zero_stage = 1;
  if (strategy == "zero2")
    options.fsdp_plugin.emplace().sharding_strategy = accel::ShardingStrategy::kShardGradOp;
  if (strategy == "full_shard")
    options.fsdp_plugin.emplace().sharding_strategy = accel::ShardingStrategy::kFullShard;
  return options;
}

std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Flags& flags,
                                                      const accel::ExportedModel& net) {
  const std::string name = flags.text("--optimizer", "adamw");
  constexpr double kRate = 0.0625;
  if (name == "sgd") {
    return std::make_shared<torch::optim::SGD>(net->parameters(),
                                               torch::optim::SGDOptions(kRate).momentum(0.5));
  }
  if (name == "adam") {
    return std::make_shared<torch::optim::Adam>(net->parameters(),
                                                torch::optim::AdamOptions(kRate));
  }
  return std::make_shared<torch::optim::AdamW>(net->parameters(),
                                               torch::optim::AdamWOptions(kRate));
}

accel::LrFactor factor_of(const std::string& schedule) {
  if (schedule == "linear")
    return accel::linear_with_warmup({.num_warmup_steps = 2, .num_training_steps = 8});
  return accel::cosine_with_warmup({.num_warmup_steps = 2, .num_training_steps = 8});
}

int train(const char* path, int first, int end, const Flags& flags) {
  accel::Accelerator accelerator(options_of(flags));
  accel::ExportedModel net(path);
  auto [model, optimizer] = accelerator.prepare(net, optimizer_of(flags, net));
  std::optional<accel::AcceleratedScheduler> scheduler;
  if (const std::string name = flags.text("--schedule", ""); !name.empty()) {
    const std::int64_t ranks = accelerator.num_processes();
    scheduler = accelerator.prepare(std::make_shared<accel::LambdaLR>(
        optimizer.optimizer(),
        [factor = factor_of(name), ranks](std::int64_t step) { return factor(step / ranks); }));
  }
  at::Tensor x = at::empty({kRows, kNy, kNx});
  at::Tensor target = at::empty({kRows, kNy, kNx});
  for (int step = first; step < end; ++step) {
    fill_batch(step,
               accelerator.process_index(),
               x.mutable_data_ptr<float>(),
               target.mutable_data_ptr<float>());
    const auto accumulating = accelerator.accumulate(model);
    const at::Tensor loss = model(accel::ExportedInputs{{"x", x}, {"target", target}})["loss"];
    accelerator.backward(loss);
    const bool ends = accelerator.sync_gradients();
    double norm = -1;
    if (ends) norm = accelerator.clip_grad_norm_(net->parameters(), 0.5).item<double>();
    const double rate = optimizer->param_groups().front().options().get_lr();
    optimizer.step();
    if (scheduler) scheduler->step();
    optimizer.zero_grad();
    const double mean =
        accelerator.reduce(loss.detach().to(at::kDouble), accel::Reduction::kMean).item<double>();
    if (!accelerator.is_main_process()) continue;
    std::printf("%d of %d: %016" PRIx64 " %016" PRIx64 " %016" PRIx64 " %d\n",
                step,
                accelerator.num_processes(),
                std::bit_cast<std::uint64_t>(mean),
                std::bit_cast<std::uint64_t>(norm),
                std::bit_cast<std::uint64_t>(rate),
                ends ? 1 : 0);
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int count, char** values) {
  try {
    return train(values[1], std::atoi(values[2]), std::atoi(values[3]), Flags(count, values));
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("reference").c_str());
    return 1;
  }
}
