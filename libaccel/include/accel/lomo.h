// Lomo: optimizers that step during the backward, so the gradients of all parameters are never in memory together.
//
//   accel::Lomo lomo(net->parameters(), accel::LomoOptions().clip_grad_norm(1.0));
//   auto [model, optimizer] = accelerator.prepare(net, lomo);
//   accelerator.backward(loss, {.learning_rate = 1e-3});   // steps; optimizer.step() and zero_grad() do nothing more
//
// Each parameter is stepped as soon as its gradient exists, and the gradient is freed. With several ranks (the exchange has all
// gradients in its buckets) and with fp16 (an overflow skips all steps) the gradients are collected, and the steps happen at the end of
// the backward. With clip_grad_norm one process makes two backwards, the first for the norm.
//
//   Lomo       w -= lr g
//   AdaLomo    Adafactor's factored second moment instead of Adam's, by rows and columns of a matrix
//
// Threads:  the thread that trains; LibTorch's thread of the backward.
// Cost:     Lomo has no state, AdaLomo rows + columns numbers for a matrix, n for a vector, in fp32.
// Errors    constructors throw kInvalidArgument naming an option; step() of the original optimizer throws kUnsupported.
// Source:   Lv et al. 2023, "Full Parameter Fine-tuning for Large Language Models with Limited Resources", and "AdaLomo"; names,
//           defaults and formulas of the Python package lomo-optim 0.1.1. tests/peer/train_peer.py compares.
#pragma once

#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/detail/checkpointed_optimizer.h>
#include <accel/export.h>
#include <accel/state_dict.h>

namespace accel {

// The interface that Accelerator::backward() calls.
class ACCEL_EXPORT BackwardOptimizer : public detail::CheckpointedOptimizer {
 public:
  using CheckpointedOptimizer::CheckpointedOptimizer;

  // Begins a backward with this learning rate. Called once for all parameters.
  virtual void begin(double learning_rate) = 0;
  // Steps one parameter by its gradient, and frees the gradient.
  virtual void step_parameter(at::Tensor& parameter) = 0;
  [[nodiscard]] virtual std::optional<double> clip_grad_norm() const = 0;
  [[nodiscard]] virtual std::optional<double> clip_grad_value() const = 0;

  // Throws kUnsupported: Accelerator::backward() steps.
  at::Tensor step(LossClosure closure = nullptr) override;
};

struct ACCEL_EXPORT LomoOptions : torch::optim::OptimizerCloneableOptions<LomoOptions> {
  LomoOptions(double lr = 1e-3);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 1e-3;   // the rate of the last backward
  // Above 0; set only one of them. With fp16 the norm is clipped to 1 unless clip_grad_norm is set.
  TORCH_ARG(std::optional<double>, clip_grad_norm) = std::nullopt;
  TORCH_ARG(std::optional<double>, clip_grad_value) = std::nullopt;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT LomoState : torch::optim::OptimizerCloneableParamState<LomoState> {};

class ACCEL_EXPORT Lomo : public BackwardOptimizer {
 public:
  explicit Lomo(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                LomoOptions defaults = {});
  explicit Lomo(std::vector<at::Tensor> parameters, LomoOptions defaults = {});

  void begin(double learning_rate) override;
  void step_parameter(at::Tensor& parameter) override;
  [[nodiscard]] std::optional<double> clip_grad_norm() const override;
  [[nodiscard]] std::optional<double> clip_grad_value() const override;
};

// Options of AdaLomo, with the names of its paper.
struct ACCEL_EXPORT AdaLomoOptions : torch::optim::OptimizerCloneableOptions<AdaLomoOptions> {
  AdaLomoOptions(double lr = 1e-3);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 1e-3;
  typedef std::tuple<double, double> eps_t;
  TORCH_ARG(eps_t, eps) = std::make_tuple(1e-30, 1e-3);  // of squares; least scale of a parameter
  TORCH_ARG(double, clip_threshold) = 1;                 // of the root mean square of a step
  TORCH_ARG(double, decay_rate) = -0.8;
  TORCH_ARG(std::optional<double>, clip_grad_norm) = std::nullopt;
  TORCH_ARG(std::optional<double>, clip_grad_value) = std::nullopt;
  TORCH_ARG(double, weight_decay) = 0;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT AdaLomoState : torch::optim::OptimizerCloneableParamState<AdaLomoState> {
  TORCH_ARG(at::Tensor, exp_avg_sq);      // of a vector
  TORCH_ARG(at::Tensor, exp_avg_sq_row);  // of a matrix, or of the last two axes
  TORCH_ARG(at::Tensor, exp_avg_sq_col);
};

// Needs whole tensors: Accelerator::backward() throws kUnsupported if a model is divided.
class ACCEL_EXPORT AdaLomo : public BackwardOptimizer, public Stateful {
 public:
  explicit AdaLomo(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                   AdaLomoOptions defaults = {});
  explicit AdaLomo(std::vector<at::Tensor> parameters, AdaLomoOptions defaults = {});

  void begin(double learning_rate) override;
  void step_parameter(at::Tensor& parameter) override;
  [[nodiscard]] std::optional<double> clip_grad_norm() const override;
  [[nodiscard]] std::optional<double> clip_grad_value() const override;

  // By group and position in the group.
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::int64_t num_steps_ = 0;
};

}  // namespace accel
