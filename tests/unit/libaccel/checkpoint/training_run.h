// TrainingRun: the smallest run with every kind of object that a checkpoint holds.
//
// Every step draws its data from a generator of its own, so that a run which continues from a
// checkpoint must have restored model, optimizer, schedule, position and generator to give the same
// parameters.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/state_dict.h>

namespace accel::test {

struct SmallNetImpl : torch::nn::Module {
  explicit SmallNetImpl(int hidden = 6)
      : first(register_module("first", torch::nn::Linear(4, hidden))),
        norm(register_module("norm", torch::nn::BatchNorm1d(hidden))),
        last(register_module("last", torch::nn::Linear(hidden, 2))) {}

  at::Tensor forward(const at::Tensor& input) { return last(norm(first(input)).relu()); }

  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(SmallNet);

// Halves the learning rate every second step.
class HalvingSchedule final : public Stateful {
 public:
  explicit HalvingSchedule(torch::optim::Optimizer& optimizer) : optimizer_(optimizer) {}

  void step() {
    if (++steps_ % 2 != 0) return;
    for (auto& group : optimizer_.param_groups())
      group.options().set_lr(group.options().get_lr() / 2);
  }
  StateDict state_dict() const override { return {.values = {{"steps", steps_}}}; }
  void load_state_dict(const StateDict& state) override {
    steps_ = std::get<std::int64_t>(state.values.at("steps"));
  }

 private:
  torch::optim::Optimizer& optimizer_;
  std::int64_t steps_ = 0;
};

// A generator as a checkpointed object.
class Randomness final : public Stateful {
 public:
  explicit Randomness(std::uint64_t seed) : generator_(at::detail::createCPUGenerator(seed)) {}

  at::Tensor draw(at::IntArrayRef shape) { return at::randn(shape, generator_); }
  StateDict state_dict() const override { return {.tensors = {{"cpu", generator_.get_state()}}}; }
  void load_state_dict(const StateDict& state) override {
    generator_.set_state(state.tensors.at("cpu"));
  }

 private:
  at::Generator generator_;
};

// Counts batches; also stands for whatever a user registers.
class Counter final : public Stateful {
 public:
  std::int64_t value = 0;
  bool refuses = false;  // its state

  StateDict state_dict() const override { return {.values = {{"value", value}}}; }
  void load_state_dict(const StateDict& state) override {
    if (refuses) throw Error(ErrorCode::kCheckpointMismatch, "the counter refuses its state");
    value = std::get<std::int64_t>(state.values.at("value"));
  }
};

class TrainingRun {
 public:
  explicit TrainingRun(std::uint64_t seed, int hidden = 6) : net(hidden), random(seed) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.detach().copy_(random.draw(parameter.sizes()));
    }
    optimizer = std::make_unique<torch::optim::AdamW>(
        std::vector<torch::optim::OptimizerParamGroup>{{net->first->parameters()},
                                                       {net->last->parameters()}},
        torch::optim::AdamWOptions(0.05));
    schedule = std::make_unique<HalvingSchedule>(*optimizer);
  }

  void train(int steps) {
    for (int i = 0; i < steps; ++i) {
      optimizer->zero_grad();
      const at::Tensor input = random.draw({8, 4});
      at::mse_loss(net(input), input.narrow(1, 0, 2)).backward();
      optimizer->step();
      schedule->step();
      ++loader.value;
      custom.value += 3;
    }
  }

  CheckpointObjects objects() {
    return {.models = {net.get()},
            .optimizers = {optimizer.get()},
            .schedulers = {schedule.get()},
            .loaders = {&loader},
            .random = &random,
            .custom = {&custom}};
  }

  // All tensors of the model.
  [[nodiscard]] std::vector<std::pair<std::string, at::Tensor>> tensors() const {
    std::vector<std::pair<std::string, at::Tensor>> all;
    for (const auto& item : net->named_parameters()) all.emplace_back(item.key(), item.value());
    for (const auto& item : net->named_buffers()) all.emplace_back(item.key(), item.value());
    return all;
  }

  SmallNet net;
  Randomness random;
  std::unique_ptr<torch::optim::AdamW> optimizer;
  std::unique_ptr<HalvingSchedule> schedule;
  Counter loader;
  Counter custom;
};

}  // namespace accel::test
